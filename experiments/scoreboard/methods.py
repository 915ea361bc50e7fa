"""The methods that are compared: each as changes of one configuration, and what it tries on held-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments._runner.compose import declared

Changes = Mapping[str, Any]
PRIOR = "pyrobbb.priors"
NOISE_PRIOR = {"_target_": "pyro.distributions.LogNormal", "loc": 0.0, "scale": 2.0}


def each(key: str, values: Sequence[float]) -> Sequence[Changes]:
    """One trial for each value of a key."""
    return tuple({key: value} for value in values)


SIGMAS = each("prior.sigma", (0.1, 0.05, 0.3))
GAINS = each("prior.gain", (1.0, 2.0, 4.0))


@dataclass(frozen=True)
class Method:
    """One row of the scoreboard.

    Args:
        words: Overrides of `experiments.run`.
        trials: What is tried on validation rows of tables, as many entries for each method; of a mixture of
            restarts, by one of them.
        images: The same for images.
        last: Whether the last layer alone has a prior; the others are point estimates.
        samples_noise: Whether the scale of the noise is drawn as well, instead of a point estimate.
        around: The structure of the curvature that Laplace's method takes around the mean weights of each
            chain in the end, if it does.
    """

    words: Sequence[str]
    trials: Sequence[Changes] = GAINS
    images: Sequence[Changes] = SIGMAS
    last: bool = False
    samples_noise: bool = False
    around: str = ""


MEAN_FIELD = ["guide=mean_field", "guide.init_rho=-6", "estimator=local"]
# at a lower temperature weights that the data determine have less noise; those that they do not, such as of a
# pixel that is never lit, widen to the prior all the same
COLD = [*MEAN_FIELD, "kl=tempered", "kl.temperature=0.1"]
# what correlates weights has D entries for each: at the means' rate, noise would grow with sqrt(D)
FULL = ["guide=auto_multivariate_normal", "guide.init_scale=0.01", "+rates.scale_tril=0.05"]
LOW_RANK = ["guide=low_rank", "guide.init_scale=0.01", "+rates.cov_factor=0.1"]
FULL_LAPLACE = ["inference=laplace", "inference.structure=full"]
KRONECKER = ["inference=laplace", "inference.structure=kronecker"]
# around the mode that a wide prior finds, a narrower one: under the wide one itself every weight is noise
NARROWER = tuple({"prior.sigma": 0.3, "inference.prior_scale": scale} for scale in (0.5, 0.25, 0.15))
METHODS: Mapping[str, Method] = {
    "plain network": Method(["inference=map"]),
    "ensemble of 5": Method(["inference=ensemble"]),
    "dropout": Method(
        ["inference=dropout"], each("inference.p", (0.02, 0.005, 0.1)), each("inference.p", (0.5, 0.2, 0.1))
    ),
    "SWAG": Method(
        ["inference=swag", "schedule=constant"],
        each("optim.lr", (0.01, 0.003, 0.03)),
        each("optim.lr", (0.001, 0.003, 0.01)),
    ),
    "mean field": Method(MEAN_FIELD),
    "5 mean fields": Method([*MEAN_FIELD, "chains=5"]),
    "5 mean fields, Laplace": Method([*MEAN_FIELD, "chains=5"], around="full"),
    "cold mean field": Method(COLD),
    "low rank": Method(LOW_RANK),
    "full covariance": Method(FULL),
    "last layer": Method(FULL, last=True),
    "natural gradient": Method(
        ["inference=natural_gradient", "inference.beta2=0.99"],
        tuple({"inference.h0": h0, "inference.lr": lr} for h0, lr in ((1.0, 0.1), (10.0, 0.3), (100.0, 0.3))),
        tuple(  # thousands of steps on images: a curvature that forgets its start in a hundred is all noise
            {"inference.beta2": 0.9995, "inference.h0": 0.1, "prior.sigma": sigma}
            for sigma in (0.1, 0.05, 0.3)
        ),
    ),
    "Laplace, last layer": Method(["inference=laplace", "inference.structure=full", "inference.layers=last"]),
    "Laplace, diagonal": Method(["inference=laplace", "inference.structure=diagonal"]),
    "Laplace, Kronecker": Method(KRONECKER, images=NARROWER),
    "5 Laplace, Kronecker": Method([*KRONECKER, "chains=5"], images=NARROWER),
    "Laplace, full": Method(FULL_LAPLACE),
    "5 Laplace, full": Method([*FULL_LAPLACE, "chains=5"]),
    "SGHMC": Method(
        ["inference=sghmc", "inference.cycles=1", "inference.draws=50"],
        each("inference.lr", (0.01, 0.003, 0.03)),
        each("inference.lr", (0.01, 0.003, 0.03)),
        samples_noise=True,
    ),
    "NUTS": Method(
        ["inference=nuts", "inference.warmup=100", "inference.draws=100", "inference.max_tree_depth=6"],
        samples_noise=True,
    ),
}


def configured(name: str, words: Sequence[str], *, folder: Path, last: str = "") -> DictConfig:
    """The configuration of a method on the model and data that `words` choose.

    Args:
        name: Of `METHODS`.
        words: Overrides that all methods share.
        folder: Of its results.
        last: How the names of the last layer's parameters begin.
    """
    method = METHODS[name]
    config = declared("run", ["name=scoreboard", *method.words, *words])
    if method.last:
        config.prior = {
            "_target_": f"{PRIOR}.PerParameter",
            "default": {"_target_": f"{PRIOR}.Deterministic"},
            "where": {f"{last}*": config.prior},
        }
    if method.samples_noise and config.likelihood.get("learn_scale"):
        config.likelihood.learn_scale = False
        config.likelihood.scale = NOISE_PRIOR
    config.folder = str(folder)
    return config


def tried(config: DictConfig, trial: Changes) -> Changes:
    """The keys of a trial where the configuration has them: a prior of the last layer's within another's."""
    where = config.prior.get("where")
    inner = f"prior.where.{next(iter(where))}." if where else "prior."
    return {key.replace("prior.", inner): value for key, value in trial.items()}
