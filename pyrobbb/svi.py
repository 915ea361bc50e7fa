"""One training step by Pyro's own means: `pyro.infer.SVI` with `Trace_ELBO`, the reference path."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from pyrobbb._support.optim import JointOptimizer
from pyrobbb.kl_weights import LatentScale


class Terms(NamedTuple):
    """The two parts of the free energy that one step saw, in nats.

    `kl` estimates KL[q || P] whole and unweighted; `nll` is -log P(D_i | w) summed over the minibatch.
    """

    kl: Tensor
    nll: Tensor


class Step(Protocol):
    """Takes one optimiser step on a minibatch and returns the terms it saw."""

    def __call__(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        """Step on rows `x`, `y`; `share` is the KL's pi_i, `data` the minibatch's fraction B/N."""
        ...


class RecordingELBO(Trace_ELBO):
    """Pyro's `Trace_ELBO`, which also keeps the unscaled terms of the traces it has just scored."""

    terms: list[Terms]

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        model_trace, guide_trace = super()._get_trace(model, guide, args, kwargs)
        with torch.no_grad():
            self.terms.append(terms_of(model_trace, guide_trace))
        return model_trace, guide_trace


class ClosedFormELBO(RecordingELBO, TraceMeanField_ELBO):
    """The same with the KL of each site in closed form where its two laws have one, at the draw where not.

    The terms that it keeps are still those at the drawn weights.
    """


def terms_of(model_trace: Any, guide_trace: Any) -> Terms:
    """KL estimate and negative log-likelihood of one pair of scored traces, without scales."""
    kl: Any = 0.0
    nll: Any = 0.0
    for site in guide_trace.nodes.values():
        if site["type"] == "sample":
            kl = kl + site["unscaled_log_prob"].sum()
    for site in model_trace.nodes.values():
        if site["type"] == "sample" and site["is_observed"]:
            nll = nll - site["unscaled_log_prob"].sum()
        elif site["type"] == "sample":
            kl = kl - site["unscaled_log_prob"].sum()
    return Terms(torch.as_tensor(kl), torch.as_tensor(nll))


@contextmanager
def no_nan_warnings() -> Iterator[None]:
    """Keep Pyro from warning of a loss that is not finite: the training says where it was, and why."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Encountered (NaN|.?inf)", UserWarning)
        yield


class ReferenceStep:
    r"""Minimises the paper's minibatch cost F_i = pi_i KL - log P(D_i | w) (eq. 9) with `SVI`.

    Pyro's loss is N/B F_i; the whole program is scaled by B/N, so that the optimiser follows F_i itself
    and a learning rate means what it means in the paper.

    Args:
        model: Pyro model(x, y) with one data plate.
        guide: Pyro guide(x, y) over the same weight sites.
        optimizer: Over the parameters of both.
        samples: Draws of the weights that each step averages over.
        vectorize: Evaluate these draws as one batch instead of one after another.
        closed_form: Take the KL of each site in closed form where there is one: not the paper's estimator,
            which takes it at the drawn weights.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        samples: int = 1,
        vectorize: bool = False,
        closed_form: bool = False,
    ) -> None:
        self.elbo = (ClosedFormELBO if closed_form else RecordingELBO)(
            num_particles=samples, vectorize_particles=vectorize and samples > 1, max_plate_nesting=1
        )
        self.samples = samples
        self.optimizer = optimizer
        self.svi = SVI(model, guide, JointOptimizer(optimizer), loss=self.elbo)

    def __call__(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        return self._run(self.svi.step, x, y, share, data)

    def evaluate(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        """The terms, without an optimiser step; adds the gradients of F_i to the parameters' `grad`."""
        return self._run(partial(self.svi.loss_and_grads, self.svi.model, self.svi.guide), x, y, share, data)

    def _run(self, what: Callable[..., Any], x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        self.elbo.terms = []
        with poutine.scale(scale=data), LatentScale(share / data):
            what(x, y)
        kls, nlls = zip(*self.elbo.terms, strict=True)
        return Terms(sum(kls) / self.samples, sum(nlls) / self.samples)
