"""`fit_table`: a posterior of a table, fitted and kept; `load_table` opens it again."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pyrobbb._support import checks
from pyrobbb._support.files import read_json
from pyrobbb._support.random_state import isolated
from pyrobbb.compression.pruning import PrunedGuide
from pyrobbb.data.dataset import Spec, Units, scattered
from pyrobbb.data.tables import TableData
from pyrobbb.evaluation.metrics import row_mean
from pyrobbb.inference import SVI, Inference
from pyrobbb.inference.method import check_method
from pyrobbb.posterior import Posterior
from pyrobbb.priors import Prior
from pyrobbb.tabular.choice import DRAWS, chosen
from pyrobbb.tabular.model import NOISES, TableModel

logger = logging.getLogger(__name__)

FILE = "table.json"
USUAL = ("learned", "heteroscedastic", "mixture")  # of these the best one, if nothing is said
NETWORKS = ((50,), ())  # units of hidden layers; of values a linear model is better where rows are few
GAINS = (1.0, 16.0)  # of the prior of a classifier's hidden layers
LITTLE = 0.02  # nats per row that the inputs say: of a linear signal, 2 % of the variance
ROWS = 2000  # of which that is asked


def fit_table(
    data: TableData,
    *,
    hidden: Sequence[int] | Sequence[Sequence[int]] | None = None,
    noise: str | Sequence[str] | None = None,
    prior: Prior | None = None,
    seed: int = 1,
    **options: Any,
) -> Posterior:
    """Fit a perceptron to a table, with defaults for small tables.

    The defaults were searched on validation rows of four tables of scikit-learn and four of UCI; the search
    saw some test scores as well (`experiments.studies.own_tables`). Three choices are made for each table.
    The network, and how wide the prior of a classifier's hidden layers is, are those under which its
    validation rows are likeliest; if it has none, a fifth of the training rows is held back for this, and the
    chosen model is fitted to all of them. (The bound would mislead: under a mean field it prefers narrow
    priors and few weights.) The noise is then that of the lowest free energy, which bounds -log P(D); a
    method without a bound, such as `Laplace`, chooses it with the network. Each candidate costs one fit: by
    default a regression takes five, of two networks with the first noise and of three noises with the better
    network.

    >>> data = from_table("houses.csv", target="price", test=0.1)  # doctest: +SKIP
    >>> prediction = fit_table(data).predict(new_rows)  # doctest: +SKIP

    Args:
        data: The table.
        hidden: Units of each hidden layer, where `()` makes a linear model; or several such lists, of which
            the best is chosen. None means one layer of 50 units, or for regression the better of this and a
            linear model.
        noise: For regression: "learned", a number for each target, the same for all rows; "heteroscedastic",
            which lets it depend on the inputs; "student_t", for targets with outliers, up to tens of standard
            deviations of the other rows; "mixture" of five normals, for a target that has several values or a
            skewed spread at the same inputs; or several names, of which the best is returned. None means
            "learned", "heteroscedastic" and, for a method with a bound, "mixture".
        prior: By default `table_prior`, for classes with the better of two gains.
        seed: Decides everything random.
        options: Those of `fit`, such as `epochs`, `chains`, `inference` or `progress`, but for `model` and
            `guide`, which are made here. With `folder` the fit resumes, and `load_table` finds the posterior
            there, as wherever its `save` wrote it. Several fits use copies of the `callbacks`, each with a
            folder of its own within theirs; afterwards yours hold the state of the returned fit's.

    Raises:
        TypeError: There is no option of that name.
        ValueError: An option is outside its domain.
    """
    if not isinstance(data, TableData):
        raise ValueError(f"data must be a table, such as from_table(...) returns, got {type(data).__name__}")
    if data.columns.raw:
        raise ValueError(
            "fit_table standardises every input, and so takes no columns that come as they stand (raw): "
            "leave raw out, or give fit a network that knows their units"
        )
    seed = checks.seed("seed", seed)
    inference = options.get("inference") or SVI()
    check_method(inference)
    noises = _noises(noise, data, inference)
    if options.get("batch_size") is not None:
        checks.count("batch_size", options["batch_size"])
    checks.count("samples", options.get("samples", 1))
    for name in ("model", "guide", "likelihood"):
        if name in options:
            raise ValueError(
                f"fit_table makes the {name}: choose by hidden=, prior= and noise=, one or more of "
                f"{', '.join(NOISES)}, or use fit"
            )
    folder = options.pop("folder", None)
    folder = None if folder is None else Path(folder)
    dtype = str(data.train.x.dtype).removeprefix("torch.")
    networks = _networks(hidden, data.spec.task)
    given = {"noises": [*noises], "networks": [[*sizes] for sizes in networks]}
    if folder is not None and (folder / FILE).exists():
        before = given | read_json(folder / FILE)
        for name, key in (("noise", "noises"), ("hidden", "networks")):
            if before[key] != given[key]:
                raise ValueError(f"{folder} holds a fit with {name}={before[key]}; give another folder")
    values = data.spec.task == "regression"
    by_bound = values and inference.bounds
    several = [
        TableModel(data.spec, sizes, each, gain, dtype, inference.samples)
        for sizes in networks
        for each in (noises[:1] if by_bound or not values else noises)
        for gain in _gains(data.spec.task, sizes, prior)
    ]
    checks.check_kinds(callbacks=(options.get("callbacks", ()), Sequence))
    model, posterior = chosen(several, noises if by_bound else (), data, prior, seed, folder, **options)
    if by_bound:
        _warn_of_little(posterior, data)
    given |= {"own prior": prior is not None, "inference": type(inference).__name__}
    posterior.beside[FILE] = asdict(model) | given
    if folder is not None:
        posterior.save(folder)
    return posterior


def load_table(
    folder: Path | str, *, prior: Prior | None = None, inference: Inference | None = None
) -> Posterior:
    """The posterior that `fit_table`, or its `save`, left in `folder`; it takes rows as the table has them.

    >>> posterior = load_table("houses")  # doctest: +SKIP
    >>> posterior.predict("new_houses.csv").interval(0.95)  # doctest: +SKIP

    Args:
        folder: That of the fit.
        prior: The one that the fit was given, if any.
        inference: The one that the fit was given, if any.

    Raises:
        ValueError: The folder holds no fit of a table, or that fit had a `prior` or `inference` that is not
            given here.
        CheckpointError: `posterior.pt` is missing or damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise ValueError(
            f"{path} does not exist: fit_table(folder=...) writes it, as does save(folder) of its result; to "
            f"open the posterior of another model, use Posterior.load(folder, model, guide)"
        )
    try:
        content = dict(beside := read_json(path))
        for choices in ("noises", "networks"):
            content.pop(choices, None)
        pruned = content.pop("pruned", False)
        own, kind, spec = content.pop("own prior"), content.pop("inference"), content.pop("spec")
        units = spec["units"] and Units(**{key: tuple(value) for key, value in spec["units"].items()})
        spec = Spec(**spec | {"features": tuple(spec["features"]), "units": units})
        model = TableModel(spec, **content | {"hidden": tuple(content["hidden"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not describe a fit of a table, such as fit_table(folder=...) leaves"
        ) from error
    for name, given, needed in (("prior", prior, own), ("inference", inference, kind != "SVI")):
        if needed and given is None:
            raise ValueError(f"the fit in {folder} was given {name}=; pass the same one")
    with isolated():
        made = model.made(prior)
        guide = (inference or SVI()).guide(made, model.guide)
        guide = PrunedGuide.like(made, guide) if pruned else guide
    posterior = Posterior.load(folder, made, guide)
    posterior.beside[FILE] = beside
    return posterior


def _noises(noise: str | Sequence[str] | None, data: TableData, inference: Inference) -> tuple[str, ...]:
    """The names of the noises to choose among; ValueError for one that is unknown, or for classes."""
    usual = USUAL if inference.bounds else USUAL[:2]
    names = usual if noise is None else tuple(noise) if isinstance(noise, list | tuple) else (noise,)
    if not names:
        raise ValueError(f"noise must name at least one of {', '.join(NOISES)}")
    checks.each_of("noise", names, NOISES)
    if noise is not None and data.spec.task == "classification":
        raise ValueError(f"noise={noise!r} is for values, but the target is a class: leave noise out")
    return names


def _networks(hidden: Any, task: str) -> tuple[tuple[int, ...], ...]:
    """The units of each hidden layer of each network: `hidden` is a list of them, or of such lists."""
    if hidden is None:
        return NETWORKS if task == "regression" else NETWORKS[:1]
    if isinstance(hidden, Sequence) and any(isinstance(each, list | tuple) for each in hidden):
        return tuple(checks.counts(f"hidden[{i}]", each) for i, each in enumerate(hidden))
    return (checks.counts("hidden", hidden),)


def _gains(task: str, hidden: Sequence[int], prior: Prior | None) -> tuple[float, ...]:
    """Which gains of the hidden layers' prior to choose among: several for classes."""
    return GAINS if task == "classification" and hidden and prior is None else (TableModel.gain,)


def _warn_of_little(posterior: Posterior, data: TableData) -> None:
    """Log a warning if other rows' inputs make y hardly less likely: a mean field may give up.

    Of several targets it is the likelihood of all together: one that collapsed beside others goes unnoticed.
    """
    rows = scattered(len(data.train), ROWS)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    shuffled = data.train.take(rows[order].to(data.train.x.device))
    both = torch.cat([shuffled.x, shuffled.x.roll(1, 0)])  # a mere shuffle may leave some with their own
    likely = posterior.predict(both, torch.cat([shuffled.y, shuffled.y]), draws=DRAWS).log_predictive
    own, others = likely.chunk(2)
    said = row_mean(own - others, shuffled.weights)
    if said < LITTLE:
        logger.warning(
            "the fit says hardly more about %s than a constant: with the inputs of other rows instead, the "
            "log-likelihood of a training row changes by %+.2g nats; if the inputs do matter, more epochs, "
            "another network, such as hidden=(10,), or inference=Laplace() may find how",
            ", ".join(data.columns.targets), -said,
        )  # fmt: skip
