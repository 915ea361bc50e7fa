"""One training step with Pyro's own tools: `pyro.infer.SVI` with any of its ELBOs, the reference path."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.infer import ELBO, SVI, RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from pyrobbb._support.optim import JointOptimizer, forget_gradients, trained
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.kl_weights import Weighted, of_rows

LINEAR = (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO, TraceEnum_ELBO)  # in the log-densities


class Terms(NamedTuple):
    """The two parts of the free energy that one step saw, in nats.

    `kl` estimates KL[q || P] whole and unweighted; `nll` is -log P(D_i | w) summed over the minibatch.
    """

    kl: Tensor
    nll: Tensor


class Step:
    """Takes one optimiser step on a minibatch and returns the terms it saw."""

    optimizer: torch.optim.Optimizer
    keeps_prior: bool = True  # uses the prior as it was before the first step; only its buffers may change
    recorded: bool = False  # repeats recorded operations: Python values that the network read stay as then

    def check_still(self, rows: Any, model: nn.Module) -> None:
        """Raise ValueError if the recorded program no longer computes what `model` does on `rows`."""

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None, /
    ) -> Terms:
        """Step on rows `x`, `y`, which count `counts` times, `(B,)`, or once.

        `share` is the KL's pi_i, `fraction` is B/N.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no steps on minibatches")

    def optimise(self) -> None:
        """Step along the gradients that lie in the parameters, and forget them: some would add up."""
        self.optimizer.step()
        forget_gradients(self.optimizer)


class ReferenceStep(Step):
    r"""Minimises the paper's minibatch cost F_i = pi_i KL - log P(D_i | w) (eq. 9) with `SVI`.

    Pyro's loss is N/B F_i; the whole program is scaled by B/N, so that the optimiser minimises F_i itself
    and a learning rate means what it means in the paper. For an objective that is not linear in the
    log-densities, such as `RenyiELBO`, the gradient is scaled by B/N instead.

    Args:
        model: Pyro model(x, y) with one data plate.
        guide: Pyro guide(x, y) over the same weight sites.
        optimizer: Over the parameters of both.
        samples: Draws of the weights that each step averages over; an instance in `elbo` has its own.
        vectorize: Evaluate these draws as one batch instead of one after another.
        elbo: Another of Pyro's ELBOs than `Trace_ELBO`, a class, a `partial` of one, or an instance.
            `TraceMeanField_ELBO` takes the KL of each site in closed form where there is one; the paper
            evaluates it at the drawn weights. The terms returned are those at the drawn weights in any case.
    """

    keeps_prior = False  # Pyro asks it at each step

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        samples: int = 1,
        vectorize: bool = False,
        elbo: Any = None,
    ) -> None:
        check_elbo(elbo, samples)
        self.elbo = _recording(elbo, samples, vectorize)
        at_once = self.elbo.vectorize_particles and self.elbo.num_particles > 1
        if at_once and isinstance(model, BayesianNetwork):
            model.check_draws()
        kind = _kind(elbo)
        self.name, self.linear = kind.__name__, kind in LINEAR
        self.optimizer = optimizer
        forget_gradients(optimizer)  # what a user's own backward() left would add to the first one
        self.svi = SVI(model, guide, JointOptimizer(optimizer), loss=self.elbo)
        if not self.linear:
            self.svi.loss_and_grads = self._scaled

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        return self._run(self.svi.step, x, y, share, fraction, counts)

    def evaluate(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        """The terms, without an optimiser step; the parameters, which have no `grad`, get that of F_i."""
        take = partial(self.svi.loss_and_grads, self.svi.model, self.svi.guide)
        return self._run(take, x, y, share, fraction, counts)

    def _scaled(self, *args: Any) -> float:
        """The loss of the whole program, and its gradient times B/N."""
        loss: float = self.elbo.loss_and_grads(*args)
        for p in trained(self.optimizer):
            if p.grad is not None:
                p.grad.mul_(self.fraction)
        return loss

    def _run(
        self,
        what: Callable[..., Any],
        x: Tensor,
        y: Tensor,
        share: float,
        fraction: float,
        counts: Tensor | None,
    ) -> Terms:
        self.elbo.terms, self.elbo.counts, self.fraction = [], counts, fraction
        scale = poutine.scale(scale=fraction if self.linear else 1.0)
        with scale, Weighted(share / fraction, counts):
            what(x, y)
        kls, nlls = zip(*self.elbo.terms, strict=True)
        particles = self.elbo.num_particles
        return Terms(sum(kls) / particles, sum(nlls) / particles)


def check_elbo(elbo: Any, samples: int) -> None:
    """Raise ValueError unless `elbo` is None or one of Pyro's ELBOs, for `samples` draws per step."""
    kind, made = _kind(elbo), None if isinstance(elbo, type | partial) else elbo
    if not isinstance(kind, type) or not issubclass(kind, ELBO):
        raise ValueError(f"elbo must be one of Pyro's ELBOs, a class or an instance, got {elbo!r:.80}")
    if kind.__name__.startswith("Jit") or not hasattr(kind, "_get_trace"):
        raise ValueError(
            f"elbo {kind.__name__} does not expose its traces at each step; use one that does, such as "
            f"Trace_ELBO or RenyiELBO"
        )
    if isinstance(elbo, partial) and elbo.args:
        raise ValueError(f"elbo: give the options of {kind.__name__} by their names, as in alpha=0.5")
    own = getattr(made, "num_particles", None)
    if isinstance(elbo, partial):
        own = elbo.keywords.get("num_particles")
    if issubclass(kind, RenyiELBO) and (own or samples) < 2:
        raise ValueError("RenyiELBO with one draw is the same as Trace_ELBO: use samples=2 or more")
    if own is not None and samples not in (1, own):
        raise ValueError(f"samples={samples}, but elbo has num_particles={own}; set only one of the two")


def _kind(elbo: Any) -> Any:
    """The class of an ELBO given as a class, a `partial` or an instance; `Trace_ELBO` for None."""
    if elbo is None:
        return Trace_ELBO
    if isinstance(elbo, partial):
        return elbo.func
    return elbo if isinstance(elbo, type) else type(elbo)


def is_default(elbo: Any) -> bool:
    """Whether the fast path computes the same gradient: no ELBO given, or the class `Trace_ELBO`."""
    return elbo is None or elbo is Trace_ELBO


def _recording(elbo: Any, samples: int, vectorize: bool) -> Any:
    """`elbo`, or a copy, for one data plate, that keeps the unscaled terms of the traces it scores.

    Of a class, with `samples` particles.
    """
    if elbo is None or isinstance(elbo, type | partial):
        given = elbo.keywords if isinstance(elbo, partial) else {}
        own = {"num_particles": samples, "vectorize_particles": vectorize, "max_plate_nesting": 1}
        made = _kind(elbo)(**{**own, **given})
    else:
        made = copy(elbo)
        if math.isinf(made.max_plate_nesting):  # the particles' own dimension is counted in it
            made.max_plate_nesting = 1 + int(made.vectorize_particles and made.num_particles > 1)
    get_trace = made._get_trace

    def recorded(*given: Any) -> Any:
        traces = get_trace(*given)
        with torch.no_grad():
            model_trace, guide_trace = traces
            made.terms.append(terms_of(model_trace, guide_trace, made.counts))
        return traces

    made._get_trace = recorded
    return made


def terms_of(model_trace: Any, guide_trace: Any, counts: Tensor | None = None) -> Terms:
    """KL estimate and negative log-likelihood of two scored traces, unscaled; rows count `counts` times."""
    nll = nll_of(model_trace, counts).sum()
    zero = nll.new_zeros(())  # so that the KL lies on the device of the rows where there is no latent, too
    return Terms(zero + kl_of(model_trace, guide_trace), nll)


def kl_of(model_trace: Any, guide_trace: Any) -> Tensor:
    """The estimate of KL[q || P] of two scored traces, unscaled."""
    kl: Any = 0.0
    for site in guide_trace.nodes.values():
        if site["type"] == "sample":
            kl = kl + site["unscaled_log_prob"].sum()
    for site in model_trace.nodes.values():
        if site["type"] == "sample" and not of_rows(site):
            kl = kl - site["unscaled_log_prob"].sum()
    return torch.as_tensor(kl)


def nll_of(model_trace: Any, counts: Tensor | None = None) -> Tensor:
    """-log P(D_i | w) of each row of a scored trace, unscaled, (*draws, B); rows count `counts` times."""
    sites = [site for site in model_trace.nodes.values() if site["type"] == "sample" and of_rows(site)]
    return -torch.as_tensor(sum(counted(site["unscaled_log_prob"], counts) for site in sites))


def counted(each: Tensor, counts: Tensor | None) -> Tensor:
    """Log-likelihoods of rows, (*draws, B), each times how often its row counts; None is once."""
    return each if counts is None else each * counts


@contextmanager
def no_nan_warnings() -> Iterator[None]:
    """Silence Pyro's warning about a loss that is not finite: the training reports where, and why."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Encountered (NaN|.?inf)", UserWarning)
        yield
