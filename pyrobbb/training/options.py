"""Every option of a training: listed, documented and checked here alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import NoneType
from typing import Any, Self

import torch

from pyrobbb._support import checks
from pyrobbb._support.device import best_device
from pyrobbb._support.optim import MakeOptimizer, MakeSchedule
from pyrobbb.accelerated import ESTIMATORS, FAST
from pyrobbb.inference import SVI, Inference
from pyrobbb.inference.method import check_method
from pyrobbb.kl_weights import KLWeight, Uniform
from pyrobbb.svi import check_elbo, is_default


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a posterior is fitted: the keyword arguments of `fit` and `Training`, and keys of `run.yaml`.

    Args:
        epochs: Passes over the training data.
        batch_size: Rows of a minibatch, B; the last of an epoch may be shorter. None is that of a
            `DataLoader`, else 128, or all rows if there are fewer.
        optim: Makes a torch optimiser from parameter groups. The loss is a sum over the minibatch: the
            learning rate of a recipe for mean losses must be divided by B.
        schedule: Makes a torch learning-rate schedule, stepped once per epoch.
        inference: How the posterior is found (`pyrobbb.inference`); `SVI` minimises the free energy.
        kl: Weight of the KL in each minibatch, pi_i.
        samples: Weight draws per training step.
        estimator: Where a step's noise lies: "weights", one draw for all rows; or "local", on the outputs of
            linear layers and convolutions, apart for each row, whose gradient has the same mean and less
            variance (`pyrobbb.accelerated.local_noise`). For mean-field normals, on the fast path.
        vectorize: Evaluate a step's `samples` draws as one batch in Pyro's own SVI; the fast path has its own
            way.
        fast: `auto`: the fast path where it fits, compiled or replayed from a recording if that pays;
            `compiled`: compiled in any case; `eager`: neither; `off`: Pyro's own SVI. All minimise the same
            free energy.
        elbo: One of Pyro's ELBOs, a class, a `partial` of one or an instance, run by Pyro's own SVI; None is
            `Trace_ELBO` on the path that `fast` says. The history's KL and NLL, and their sum, are those of
            the draws with any, though `RenyiELBO`, say, minimises another bound.
        rates: Factors on the learning rate by part of a parameter's name, such as `{"rho": 10}`.
        clip_norm: Maximum Euclidean norm of a step's gradient, that of F_i; a longer one is scaled down.
        seed: Decides the initial values of the guide, the order of the data and the noise.
        device: `auto` (CUDA if there is one), `cpu`, `cuda`, ...
        tf32: Multiply matrices in TF32 on CUDA: faster, with 10 bits of mantissa; elsewhere without effect.
        validation_draws: Weight draws for the validation error of an epoch; 0 uses the mean weights.
        record_every: Epochs between two rows of the history, each with a validation; the last epoch always
            has one.
        checkpoint_seconds: Minimum time between two checkpoints.

    Raises:
        ValueError: An option has the wrong type or is outside its domain; the message names it.
    """

    epochs: int = 10
    batch_size: int | None = None
    optim: MakeOptimizer = partial(torch.optim.Adam, lr=1e-3)
    schedule: MakeSchedule | None = None
    inference: Inference = field(default_factory=SVI)
    kl: KLWeight = field(default_factory=Uniform)
    samples: int = 1
    estimator: str = "weights"
    vectorize: bool = False
    fast: str = "auto"
    elbo: Any = None
    rates: Mapping[str, float] = field(default_factory=dict)
    clip_norm: float | None = None
    seed: int = 0
    device: str | None = "auto"
    tf32: bool = False
    validation_draws: int = 3
    record_every: int = 1
    checkpoint_seconds: float = 30.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The options by name; TypeError for a name that is none of them."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                rate = "lr" in name or "rate" in name
                whose = "; a learning rate is the optimiser's, optim=partial(torch.optim.Adam, lr=0.01)"
                raise TypeError(
                    f"there is no option {name!r}{whose if rate else ''}; besides the function's own "
                    f"arguments the options are {', '.join(known)}"
                )
        return cls(**given)

    def __post_init__(self) -> None:
        for name, default in (("kl", Uniform()), ("rates", {}), ("inference", SVI())):
            if getattr(self, name) is None:
                checks.keep(self, **{name: default})
        numbers = ["epochs", "samples", "record_every", *(["batch_size"] * (self.batch_size is not None))]
        checks.keep(
            self,
            **{name: checks.count(name, getattr(self, name)) for name in numbers},
            validation_draws=checks.count("validation_draws", self.validation_draws, minimum=0),
            seed=checks.seed("seed", self.seed),
        )
        checks.between("checkpoint_seconds", self.checkpoint_seconds, 0, math.inf)
        checks.one_of("fast", self.fast, FAST)
        checks.one_of("estimator", self.estimator, ESTIMATORS)
        if self.estimator == "local" and (self.fast == "off" or not is_default(self.elbo)):
            raise ValueError(
                "estimator='local' needs the fast path: it cannot be combined with fast='off' or elbo"
            )
        check_method(self.inference)
        checks.check_kinds(
            kl=(self.kl, (KLWeight, NoneType)),
            rates=(self.rates, (Mapping, NoneType)),
            vectorize=(self.vectorize, bool),
            tf32=(self.tf32, bool),
        )
        if self.clip_norm is not None:
            checks.positive("clip_norm", self.clip_norm)
        check_elbo(self.elbo, self.samples)
        best_device(self.device)
