"""What goes into `posterior.nc`: not 2.4 million weights, but what an analysis needs.

Draws of a chosen or random subset of weights and of every other latent site, from posterior and prior, with
their log prior; the variational parameters' summary by layer; for a random subset of the training data,
the posterior's log-likelihood (that is what `az.loo` is defined on) and predictive draws from posterior and
prior; and the predictions for the test set. Several targets have an axis of their own, a single one has none.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import support_of, univariate
from pyrobbb._support.random_state import isolated, mixed_seed
from pyrobbb.data.columns import Columns, Names, Numeric, Raw
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.draws import distinct, order
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.kl_ledger import Entry
from pyrobbb.evaluation.layer_summary import LEVELS, as_numpy, variational
from pyrobbb.evaluation.metrics import entropy
from pyrobbb.evaluation.weight_selection import WeightSelection
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction, Prediction, ValuePrediction

__all__ = ["WeightSelection", "to_arviz", "to_groups"]

logger = logging.getLogger(__name__)
Groups = dict[str, dict[str, np.ndarray]]
DRAWN = ("posterior", "log_prior", "posterior_predictive", "log_likelihood", "predictions", "sample_stats")
FEATURES = 100  # of an input, at most, for the inputs to be kept
SHOWN = 24  # the most uncertain test inputs, kept for their picture

DIMS: dict[str, dict[str, Sequence[str]]] = {
    **{group: {"weight": ("parameter",)} for group in ("posterior", "prior", "log_prior")},
    **{
        group: {"y": ("row",)}
        for group in ("posterior_predictive", "prior_predictive", "log_likelihood", "observed_data")
    },
    "constant_data": {"x": ("row", "feature"), "training_row": ("row",), "row_weight": ("row",)},
    "predictions": {"y": ("test_row",), "mean": ("test_row",)},
    "predictions_constant_data": {
        "y": ("test_row",),
        "row_weight": ("test_row",),
        "probs": ("test_row", "class"),
        "predictive_entropy": ("test_row",),
        "expected_entropy": ("test_row",),
        "predictive_mean": ("test_row",),
        "predictive_sd": ("test_row",),
        "predictive_quantile": ("level", "test_row"),
        "x": ("shown", "feature"),
        "shown_row": ("shown",),
    },
    "variational": {
        **dict.fromkeys(("loc", "scale", "draw", "sample_site"), ("parameter_sample",)),
        **dict.fromkeys(("size", "kl", "kl_mcse", "informative", "slab", "slab_mcse"), ("layer",)),
        **dict.fromkeys(("latent_size", "latent_kl", "latent_kl_mcse"), ("latent",)),
        **{f"{name}_{what}": ("layer",) for name in ("loc", "scale", "snr") for what in ("mean", "sd")},
        **{f"{name}_quantile": ("layer", "level") for name in ("loc", "scale", "snr")},
    },
}


def to_groups(
    posterior: Posterior,
    data: Dataset,
    *,
    draws: int = 100,
    weights: int | Sequence[str] = 200,
    observations: int = 1000,
    seed: int = 0,
    ledger: Mapping[str, Entry] | None = None,
) -> tuple[Groups, dict[str, Any]]:
    """Arrays by ArviZ group and variable, and the labels of their dimensions.

    Args:
        posterior: The fit.
        data: What it was fitted to.
        draws: Of each chain; of a sampler no more than it kept.
        weights: How many single weights, at random, or their names (`WeightSelection`).
        observations: Training rows, at most, with their log-likelihoods and predictive draws; the same ones
            whatever the seed, so that posteriors can be compared.
        seed: Which draws.
        ledger: What `kl_ledger` gives for this posterior and seed, where it is there already.

    Shapes: draws are `(chain, draw, ...)`.

    Raises:
        ValueError: The model has no Bayesian weights.
    """
    checks.check_kinds(posterior=(posterior, Posterior), data=(data, Dataset))
    if not posterior.model.sites:
        raise ValueError("the model has no Bayesian weights, so there are no draws to export")
    if len(set(posterior.chain_weights or (1,))) > 1:
        logger.warning(
            "the chains have weights %s, but ArviZ counts all draws alike: only what is stored of the test "
            "rows, in predictions_constant_data, is of the weighted mixture",
            posterior.chain_weights,
        )  # fmt: skip
    chosen = WeightSelection(posterior.model, weights, seed)
    shuffled = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    places = shuffled[: checks.count("observations", observations)].sort().values
    rows = data.train.take(places.to(data.train.x.device))
    prior = Posterior([(posterior.model, posterior.model)])  # the model without data draws from the prior
    if (kept := distinct(posterior.chains, draws)) < draws:
        # more would repeat some, which R-hat and the effective sample size take for new
        logger.info("each chain's sampler kept %d draws, which are exported, not %d", kept, draws)
        draws = kept
    own = mixed_seed(seed, -2)  # else the prior's draws are the posterior's, moved and scaled
    values, log_prior = _latents(posterior, draws, seed, chosen)
    if "weight" not in log_prior:
        logger.warning(
            "posterior.nc has no log_prior of weights: some have a joint prior, one density for all"
        )
    groups: Groups = {
        "posterior": values,
        "log_prior": log_prior,
        "prior": _latents(prior, draws, own, chosen)[0],
        "variational": variational(posterior, seed, ledger),
        "constant_data": {"training_row": places.numpy().astype(np.int32)},
    }
    if rows.x[0].numel() <= FEATURES:
        groups["constant_data"]["x"] = as_numpy(rows.x.flatten(1))
    try:
        predictive = prior.predict(rows.x, draws=draws, seed=own, sample=True)
        groups["prior_predictive"] = {"y": _samples(predictive)[None]}
    except (RuntimeError, ValueError) as error:  # a prior so wide that the network's output overflows
        logger.warning("posterior.nc has no prior_predictive: %s", error)
    _add_training(groups, posterior, rows, draws, seed)
    if data.test is not None:
        _add_test(groups, posterior, data.test, draws, seed)
    _as_drawn(groups, posterior, draws, seed)
    sites = {"layer": list(posterior.model.sites), "latent": list(posterior.model.other_latents)}
    return groups, {"parameter": chosen.labels, **sites, "level": LEVELS}


def to_arviz(posterior: Posterior, data: Dataset, **options: Any) -> Any:
    """The posterior as ArviZ's container; options are those of `to_groups`."""
    groups, coords = to_groups(posterior, data, **options)
    attrs = {"data": data.name, **_names(data.columns)}
    return arviz_io.to_arviz(groups, dims=_dims(groups), coords=coords, attrs=attrs)


def _names(columns: Columns | Names | None) -> dict[str, str | float]:
    """What a single input and target are called, and what a table standardises that input by."""
    found: dict[str, str | float] = {}
    if columns is not None and len(columns.targets) == 1:
        found["y_name"] = columns.targets[0]
    if isinstance(columns, Names) and len(columns.names) == 1:
        found["x_name"] = columns.names[0]
    if isinstance(columns, Columns):
        match [kind for kind in columns.kinds if not (isinstance(kind, Numeric) and kind.empty)]:
            case [Raw(name)]:
                found["x_name"] = name
            case [Numeric(name, mean, sd, missing=0)]:
                found |= {"x_name": name, "x_mean": mean, "x_sd": sd}
    return found


def _dims(groups: Groups) -> dict[str, Sequence[str]]:
    """`DIMS`, and names for the further axes of several targets and of latent sites."""
    dims: dict[str, Sequence[str]] = {}
    for group, variables in groups.items():
        for name, array in variables.items():
            named = DIMS.get(group, {}).get(name, ())
            more = array.ndim - 2 * (group in arviz_io.SAMPLE_GROUPS) - len(named)
            further = ["target"] * more if named else [f"{name}_dim_{i}" for i in range(more)]
            dims[f"{group}/{name}"] = (*named, *further)
    return dims


def _latents(
    posterior: Posterior, draws: int, seed: int, chosen: WeightSelection
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draws `(chains, draws, ...)` of the chosen weights and all other latent sites, and their log priors."""
    values: list[list[dict[str, np.ndarray]]] = []
    densities: list[list[dict[str, np.ndarray]]] = []
    joint = False
    for chain, (model, _) in enumerate(posterior.chains):
        values.append([])
        densities.append([])
        for draw in posterior.each_draw(draws, chain=chain, seed=seed):
            with isolated(), torch.no_grad():  # of one value given the others, if the prior is hierarchical
                given = model.priors_given(draw)
                log_prior = {name: univariate(prior).log_prob(draw[name]) for name, prior in given.items()}
            joint = joint or any(log_prior[name].shape != draw[name].shape for name in model.sites)
            for kept, every in ((values, draw), (densities, log_prior)):
                some = {name: every[name] for name in model.other_latents}
                if kept is values or not joint:
                    some["weight"] = chosen.pick(every)
                kept[-1].append({name: as_numpy(value) for name, value in some.items()})
    return _stacked(values), _stacked(densities)


def _stacked(chains: list[list[dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    return {name: np.stack([np.stack([d[name] for d in draws]) for draws in chains]) for name in chains[0][0]}


def _add_training(groups: Groups, posterior: Posterior, rows: Split, draws: int, seed: int) -> None:
    """Targets, log-likelihoods and predictive draws of training rows; which draws of a sampler diverged."""
    chains = range(len(posterior.chains))
    seen = [
        posterior.predict(rows.x, rows.y, draws=draws, chains=[c], seed=seed, sample=True) for c in chains
    ]
    groups["posterior_predictive"] = {"y": np.stack([_samples(p) for p in seen])}
    groups["observed_data"] = {"y": _columns(rows.y, 1, whole=_whole(seen[0]))}
    if rows.weights is not None:
        groups["constant_data"]["row_weight"] = as_numpy(rows.weights)
        logger.warning(
            "the rows have weights, but log_likelihood ignores them: az.loo and az.compare count each row "
            "once, and leave out one of the copies that a weight above 1 stands for, so elpd is too high"
        )
    groups["log_likelihood"] = {"y": _untied(np.stack([as_numpy(p.log_likelihood) for p in seen]))}
    guides: list[Any] = [guide for _, guide in posterior.chains]
    if all(hasattr(guide, "diverging") and int(guide.kept) for guide in guides):
        each = [guide.diverging[[guide.place(s, seed) for s in range(draws)]] for guide in guides]
        groups["sample_stats"] = {"diverging": np.stack([as_numpy(chain) for chain in each])}


def _add_test(groups: Groups, posterior: Posterior, test: Split, draws: int, seed: int) -> None:
    """Predictions for the test rows, by draws and as the mixture that they make."""
    chains = range(len(posterior.chains))
    each = [posterior.predict(test.x, draws=draws, chains=[c], seed=seed, sample=True) for c in chains]
    groups["predictions"] = {"y": np.stack([_samples(p) for p in each])}
    constant = {"y": _columns(test.y, 1, whole=_whole(each[0]))}
    if test.weights is not None:
        constant["row_weight"] = as_numpy(test.weights)
    shown = torch.arange(len(test))
    if isinstance(each[0], ClassPrediction) and each[0].probs.dim() == 2:
        probs = _mixed([p.probs for p in each], posterior.chain_weights)
        uncertainty = entropy(probs)
        shown = uncertainty.argsort(descending=True)[:SHOWN]
        constant["probs"] = as_numpy(probs)
        constant["predictive_entropy"] = as_numpy(uncertainty)
        constant["expected_entropy"] = as_numpy(
            _mixed([p.expected_entropy for p in each], posterior.chain_weights)
        )
    elif isinstance(each[0], ValuePrediction):
        groups["predictions"]["mean"] = np.stack([_one_target(as_numpy(p.means), 2) for p in each])
        constant |= _exact(posterior.predict(test.x, draws=draws, seed=seed))
    constant["x"] = as_numpy(test.x[shown.to(test.x.device)].flatten(1))
    constant["shown_row"] = as_numpy(shown)
    groups["predictions_constant_data"] = constant


def _exact(prediction: ValuePrediction) -> dict[str, np.ndarray]:
    """Moments and quantiles of the predictive distribution, which draws of y only estimate."""
    found = {}
    with suppress(ValueError):  # y has none, as under a Cauchy distribution
        found["predictive_mean"] = _one_target(as_numpy(prediction.mean), 1)
        found["predictive_sd"] = _one_target(as_numpy(prediction.std), 1)
    if prediction.means[0, 0].numel() == 1:  # of all pixels of an image they would take an hour
        found["predictive_quantile"] = _one_target(as_numpy(prediction.predictive_quantiles([*LEVELS])), 2)
    return found


def _mixed(chains: list[Tensor], weights: Sequence[float] | None) -> Tensor:
    """The average over chains, by their weights if they have any."""
    stacked = torch.stack(chains)
    return stacked.mean(0) if weights is None else torch.tensordot(stacked.new_tensor(weights), stacked, 1)


def _as_drawn(groups: Groups, posterior: Posterior, draws: int, seed: int) -> None:
    """Sort what a sampler drew into the order of its chain: R-hat and ESS are about that order."""
    for c, chain in enumerate(posterior.chains):
        places = order(chain, draws, seed)
        for group in DRAWN if places is not None else ():
            for array in groups.get(group, {}).values():
                array[c] = array[c][places]


def _untied(log_likelihood: np.ndarray) -> np.ndarray:
    """Less than `arviz_io.UNTIED` nats subtracted at random, so that no two draws are equal.

    All draws give a sure prediction log-likelihood 0, and the Pareto smoothing of `az.loo` fails on ties.
    """
    noise = np.random.default_rng(0).random(log_likelihood.shape)
    return np.asarray(log_likelihood.astype(np.float64) - arviz_io.UNTIED * noise)


def _whole(prediction: Prediction) -> bool:
    """Whether y is a class or a count: ArviZ draws a histogram of integers, but a density of floats."""
    if not isinstance(prediction, ValuePrediction):
        return True
    support = support_of(prediction.components[0])
    return support is not None and bool(support.is_discrete)


def _samples(prediction: Prediction) -> np.ndarray:
    return _columns(prediction.samples, 2, whole=_whole(prediction))


def _columns(y: Tensor | None, axes: int, *, whole: bool) -> np.ndarray:
    """Targets as `(rows,)`, or `(rows, targets)`; of draws `(draws, rows)`, or `(draws, rows, targets)`.

    Whole numbers have the smallest of three integer types that holds them; if none does they stay.
    """
    array = as_numpy(y)
    if whole:
        most = max(-array.min().item(), array.max().item())
        fitting = (kind for kind in (np.int16, np.int32, np.int64) if most <= np.iinfo(kind).max)
        array = array.astype(next(fitting, array.dtype))
    return _one_target(array, axes)


def _one_target(array: np.ndarray, axes: int) -> np.ndarray:
    """`array` with what follows the first `axes` axes as one axis, or as none if it is one value."""
    return array.reshape(*array.shape[:axes], *([] if array[(0,) * axes].size == 1 else [-1]))
