"""From a table to a posterior in one call: the pieces of `fit`, with choices that suit small tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from pyrobbb._support import checks
from pyrobbb._support.files import make_folder
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.data.tables import TableData
from pyrobbb.likelihoods import Categorical, HeteroscedasticNormal, Likelihood, Normal, in_units
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.priors import FanInNormal, PerParameter, Prior
from pyrobbb.training.history import History
from pyrobbb.training.trainer import fit

STEPS = 4000
NOISE = ("learned", "heteroscedastic")
GAINS = (1.0, 8.0)  # of the prior of a classifier's hidden layers
DRAWS = 200  # of the weights, to compare them with
HELD = 5  # a classifier holds back every fifth row to choose between them


def fit_table(
    data: TableData,
    *,
    hidden: Sequence[int] = (50,),
    noise: str | None = None,
    prior: Prior | None = None,
    seed: int = 1,
    **options: Any,
) -> Posterior:
    """Fit a perceptron to a table, with defaults for small tables.

    They were searched on validation rows of four tables of scikit-learn and four of UCI; the search saw some
    test scores as well (`experiments.studies.own_tables`). Two choices are made for each table, from its
    training rows alone: which noise, by the free energy, which bounds -log P(D); and how wide the prior of a
    classifier's hidden layers is, by the log-likelihood of its validation rows, or of a fifth of the training
    rows, which it fits again afterwards. (There the bound misleads: under a mean field it prefers narrow
    priors.) The first takes the time of two fits, the second of three.

    >>> data = from_table("houses.csv", target="price", test=0.1)  # doctest: +SKIP
    >>> prediction = fit_table(data).predict(data.inputs(new_rows))  # doctest: +SKIP

    Args:
        data: The table; its `columns` are kept in `folder`, if there is one, as `columns.json`.
        hidden: Units of each hidden layer.
        noise: For regression: "learned", the same for all rows, as a share of each target's standard
            deviation; "heteroscedastic", which lets it depend on the inputs; or None: both are fitted, and
            the one with the lower free energy is returned.
        prior: By default `table_prior`, for classes with the better of two gains.
        seed: Decides everything random.
        options: Those of `fit`, such as `epochs`, `chains`, `folder` or `progress`.

    Raises:
        ValueError: An option is outside its domain.
    """
    if not isinstance(data, TableData):
        raise ValueError(f"data must be a table, such as from_table(...) returns, got {type(data).__name__}")
    checks.seed("seed", seed)
    checks.counts("hidden", hidden)
    if noise is not None:
        checks.one_of("noise", noise, NOISE)
    folder = options.pop("folder", None)
    if folder is not None:
        make_folder(folder)
        data.columns.save(Path(folder) / "columns.json")
    if data.spec.task == "classification" and prior is None:
        return _classifier(data, hidden, seed, folder, **options)
    if noise is not None or data.spec.task == "classification":
        likelihood = table_likelihood(data.spec, noise or NOISE[0])
        return _fit(data, likelihood, hidden, prior, seed, folder=folder, **options)
    fitted = [
        _fit(
            data, table_likelihood(data.spec, each), hidden, prior, seed,
            folder=None if folder is None else Path(folder) / each, **options,
        )
        for each in NOISE
    ]  # fmt: skip
    return min(fitted, key=lambda posterior: _free_energy(posterior.history))


def _classifier(
    data: TableData, hidden: Sequence[int], seed: int, folder: Path | str | None, **options: Any
) -> Posterior:
    """A fit with the gain under which rows that were held back have the higher log-likelihood."""
    part, held = data, data.validation
    if held is None:
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
        rows = order.to(data.train.x.device).tensor_split([max(1, len(order) // HELD)])
        part, held = replace(data, train=data.train.take(rows[1])), data.train.take(rows[0])
        part = replace(part, spec=replace(data.spec, N=len(part.train)))
    found = []
    for gain in GAINS:
        prior = table_prior(data.spec, f"{2 * len(hidden)}.*", gain)
        inside = None if folder is None else Path(folder) / f"gain-{gain:g}"
        posterior = _fit(part, Categorical(), hidden, prior, seed, folder=inside, **options)
        scores = posterior.predict(held.x, held.y, draws=DRAWS).log_predictive
        score = float(scores.mean() if held.weights is None else scores @ held.weights)
        found.append((score, prior, posterior))
    _, prior, posterior = max(found, key=lambda one: one[0])
    if data.validation is not None:
        return posterior
    return _fit(data, Categorical(), hidden, prior, seed, folder=folder, **options)


def _free_energy(history: Any) -> float:
    """In nats per row, the mean of the last twentieth of the epochs: one epoch's is an estimate."""
    chains = [history.rows] if isinstance(history, History) else [one.rows for one in history]
    return fmean(row.free_energy for rows in chains for row in rows[-max(1, len(rows) // 20) :])


def _fit(
    data: TableData,
    likelihood: Likelihood,
    hidden: Sequence[int],
    prior: Prior | None,
    seed: int,
    **options: Any,
) -> Posterior:
    def model() -> BayesianNetwork:
        network = perceptron(data.spec.features[0], hidden, likelihood.width(data.spec.outputs))
        own = prior or table_prior(data.spec, f"{len(network) - 1}.*")
        return BayesianNetwork(network.to(data.train.x.dtype), own, likelihood, N=data.spec.N)

    batch_size = min(options.pop("batch_size", max(64, data.spec.N // 100)), data.spec.N)
    chosen: dict[str, Any] = {
        "epochs": ceil(STEPS / ceil(data.spec.N / batch_size)),
        "optim": partial(torch.optim.Adam, lr=0.01),
        "samples": 8,
    } | options
    if "schedule" not in chosen:
        chosen["schedule"] = partial(CosineAnnealingLR, T_max=chosen["epochs"])
    guide = partial(MeanFieldNormal, init_rho=-2.0 if data.spec.task == "classification" else -6.0)
    return fit(model, guide, data, batch_size=batch_size, seed=seed, **chosen)


def perceptron(features: int, hidden: Sequence[int], width: int) -> nn.Sequential:
    """The layers features -> hidden[0] -> ... -> width, with ReLU between them."""
    layers: list[nn.Module] = []
    for units in checks.counts("hidden", hidden):
        layers += [nn.Linear(features, units), nn.ReLU()]
        features = units
    return nn.Sequential(*layers, nn.Linear(features, width))


def table_likelihood(spec: Spec, noise: str = "learned") -> Likelihood:
    """Class labels; or values in the units of the table, with noise that starts at their whole spread."""
    checks.one_of("noise", noise, NOISE)
    if spec.task == "classification":
        return Categorical()
    learned = noise == "learned"
    return in_units(Normal(scale=1.0, learn_scale=True) if learned else HeteroscedasticNormal(), spec)


def table_prior(spec: Spec, last: str, gain: float = 8.0) -> Prior:
    r""":math:`N(0, g^2 / \text{fan-in})`, so that the size of a layer's outputs does not depend on its width.

    For values g = 1, and 0.7 in the last layer, whose parameters match the pattern `last`: hidden units are
    as large as the standardised inputs, and the function has half the variance of the standardised targets,
    besides its bias. For classes g = 8 in the last layer, else `gain`: under narrower priors the mean field,
    whose every weight is noisy, cannot be as sure of a class as most tables allow
    (`python -m experiments.studies.own_tables`).
    """
    if spec.task == "classification":
        return PerParameter(default=FanInNormal(gain=gain), where={last: FanInNormal(gain=8.0)})
    return PerParameter(default=FanInNormal(gain=1.0), where={last: FanInNormal(gain=0.7)})
