r"""Natural-gradient mean field: variational online Newton with one gradient a step.

The guide is :math:`q(w) = N(m, \mathrm{diag}(\sigma^2))`, as in Bayes by Backprop. A step draws
:math:`w = m + \sigma\epsilon`, takes the gradient of the mean loss there, and reads the curvature from noise
times gradient (Shen et al. 2024, arXiv 2402.17641, algorithm 1, the "improved variational online Newton"
method; h stays positive by the term of Lin et al. 2020):

.. math::
    \hat g &= \nabla \bar\ell(w), \qquad \hat h = \hat g\, \epsilon / \sigma \\
    g &\leftarrow \beta_1 g + (1 - \beta_1) \hat g \\
    h &\leftarrow \beta_2 h + (1 - \beta_2) \hat h
         + \tfrac12 (1 - \beta_2)^2 (h - \hat h)^2 / (h + \delta) \\
    m &\leftarrow m - \alpha_t \frac{g / (1 - \beta_1^t) + \delta (m - c)}{h + \delta}, \qquad
    \sigma = 1 / \sqrt{N (h + \delta)}

A normal prior :math:`N(c, 1 / N\delta)` of each weight enters exactly, by its own :math:`\delta` and c. The
gradient of any other prior is taken at the drawn weight, as part of :math:`\bar\ell`; then :math:`\delta = 0`.
What is kept is the sum :math:`s = h + \delta`, for which the third line reads

.. math::
    s \leftarrow s\,[1 + u + u^2 / 2], \qquad u = (1 - \beta_2) (\hat h + \delta - s) / s
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb.accelerated.compile import CannotCompileError, CannotRecordError, Program, compile, record
from pyrobbb.accelerated.dispatch import NotFastError, compilation_pays, element_wise
from pyrobbb.accelerated.fused_kl import PriorSegment, log_ratio
from pyrobbb.accelerated.rng import Normals
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference.energy import log_prior
from pyrobbb.inference.method import Inference, MakeGuide, refuse_guide, refuse_options
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import Step, Terms


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(Inference):
    r"""The mean field by natural gradients; the initial sigma follows from N, the prior and `h0`.

    `optim` trains what has no prior, if anything; `schedule` acts on `lr` as well.

    Args:
        lr: :math:`\alpha`, a share of a Newton step.
        beta1: Averages the gradient.
        beta2: Averages the curvature: about 1 / (1 - beta2) steps forget the start.
        h0: :math:`h_0`, the curvature of the mean loss at the start.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.9995
    h0: float = 0.1

    def __post_init__(self) -> None:
        checks.positive("lr", self.lr)
        checks.positive("h0", self.h0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and less than 1, got {getattr(self, name)!r}")

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        refuse_guide(self, guide, MeanFieldNormal)
        refuse_options(self, options, ranks, "its step takes one natural gradient from one draw")
        if options.rates:
            raise ValueError("rates have no meaning for NaturalGradient: it scales each weight's step itself")

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> nn.Module:
        return MeanFieldNormal(model) if make is None else make(model)

    def step(
        self,
        model: BayesianNetwork,
        guide: Any,
        optimizer: torch.optim.Optimizer,
        first: Split,
        *,
        samples: int = 1,
        vectorize: bool = False,
        elbo: Any = None,
        fast: str = "auto",
        steps: int = 0,
        log: Callable[[str], None] = lambda message: None,
        ranks: ProcessGroup = SINGLE,
    ) -> Step:
        try:
            segments = element_wise(model, guide, first)
        except NotFastError as reason:
            log(f"the prior's gradient is taken by Pyro: {reason}")
            return NaturalGradientStep(self, model, guide, optimizer, None)
        if compilation_pays(fast, guide.loc.numel(), steps):
            try:
                return NaturalGradientStep(self, model, guide, optimizer, segments, compiled=True)
            except (CannotCompileError, CannotRecordError) as reason:
                log(f"training without compiled code, several times slower: {reason}")
        return NaturalGradientStep(self, model, guide, optimizer, segments)


class NaturalGradientStep:
    """One step on flat buffers: draw and score, the network, update; g, s and t lie in the optimiser's state.

    Args:
        method: Its options.
        model: The model.
        guide: Its mean-field guide.
        optimizer: Trains the parameters without a prior.
        segments: The prior of each segment of weights, in the guide's order; None takes its gradient by Pyro.
        compiled: Compile the element-wise passes and the noise.
    """

    def __init__(
        self,
        method: NaturalGradient,
        model: BayesianNetwork,
        guide: MeanFieldNormal,
        optimizer: torch.optim.Optimizer,
        segments: Sequence[PriorSegment] | None,
        *,
        compiled: bool = False,
    ) -> None:
        self.method, self.model, self.guide, self.optimizer = method, model, guide, optimizer
        loc, rho = guide.loc.detach(), guide.rho.detach()
        self.normals = Normals(loc.numel(), loc, compiled=compiled)
        self.w, self.G, self.score = torch.zeros_like(loc), torch.zeros_like(loc), torch.zeros_like(loc)
        self.weights = {name: part.detach().requires_grad_() for name, part in guide.split(self.w).items()}
        self.others = [p for g in optimizer.param_groups for p in g["params"]]
        self.others = [p for p in self.others if p is not guide.loc and p is not guide.rho]
        N = float(model.N)
        self.s, self.g = torch.full_like(loc, method.h0), torch.zeros_like(loc)
        optimizer.state[guide.loc] = {"g": self.g, "s": self.s, "t": 0}
        # what changes from step to step: 1 / (pi_i N), alpha_t, and 1 / (1 - beta1^t)
        self.scalars = [torch.zeros((), dtype=loc.dtype, device=loc.device) for _ in range(3)]
        self.initial_lr = float(optimizer.param_groups[0]["lr"])
        self.by_pyro = segments is None
        segments = segments or [PriorSegment(None, {}, {}, loc.numel())]
        deltas = [_normal(one, N, tuple(one.vectors.values())) for one in segments]
        for part, normal in zip(self.s.split([one.length for one in segments]), deltas, strict=True):
            part.add_(0.0 if normal is None else normal[0])
        rho.copy_(_inverse_softplus(torch.rsqrt(N * self.s)))
        self.draws, self.updates = self._passes(segments, N, rho, compiled)

    def _passes(
        self, segments: Sequence[PriorSegment], N: float, rho: Tensor, compiled: bool
    ) -> tuple[list[Callable[[], Any]], list[Callable[[], Any]]]:
        def bound(program: Program, *inputs: Tensor) -> Callable[[], Any]:
            run = compile(record(program, inputs), inputs) if compiled else program
            return partial(run, *inputs)

        loc, eps, method = self.guide.loc.detach(), self.normals.values, self.method
        draws, updates = [], []
        begin = 0
        for segment in segments:
            part = slice(begin, begin + segment.length)
            begin = part.stop
            vectors = tuple(segment.vectors.values())
            flats = (loc, self.s, eps, self.w, self.score)
            draws.append(bound(partial(_draw, segment, N), *(flat[part] for flat in flats), *vectors))
            flats = (self.G, self.score, eps, loc, rho, self.g, self.s)
            program = partial(_update, segment, N, method.beta1, method.beta2)
            updates.append(bound(program, *self.scalars, *(flat[part] for flat in flats), *vectors))
        return draws, updates

    def __call__(self, x: Tensor, y: Tensor, share: float, fraction: float) -> Terms:
        state: Any = self.optimizer.state[self.guide.loc]
        for name, own in (("g", self.g), ("s", self.s)):  # a checkpoint brings tensors of its own
            if state[name] is not own:
                state[name] = own.copy_(state[name])
        state["t"] += 1
        rate = self.method.lr * float(self.optimizer.param_groups[0]["lr"]) / self.initial_lr
        values = (1 / (share * self.model.N), rate, 1 / (1 - self.method.beta1 ** state["t"]))
        for scalar, value in zip(self.scalars, values, strict=True):
            scalar.fill_(value)
        self.normals.draw()
        with torch.no_grad():
            kl: Any = sum(run() for run in self.draws)
        loss = nll = -self.model.log_likelihood(self.weights, x, y).sum()
        if self.by_pyro:
            prior = -log_prior(self.model, self.weights)
            loss, kl = nll + share * prior, kl + prior.detach()
        gradients = torch.autograd.grad(loss, [*self.weights.values(), *self.others], allow_unused=True)
        of_weights = zip(self.weights.values(), gradients, strict=False)
        torch.cat([torch.zeros_like(w).flatten() if G is None else G.flatten() for w, G in of_weights], out=self.G)
        with torch.no_grad():
            for run in self.updates:
                run()
        for parameter, gradient in zip(self.others, gradients[len(self.weights) :], strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        return Terms(kl, nll.detach())


def _normal(segment: PriorSegment, N: float, vectors: Sequence[Tensor]) -> tuple[Any, Any] | None:
    """delta and c of a normal prior; None for another."""
    if segment.family is not dist.Normal:
        return None
    values = {**segment.constants, **dict(zip(segment.vectors, vectors, strict=True))}
    return 1 / (N * values["scale"] ** 2), values["loc"]


def _draw(
    segment: PriorSegment, N: float, loc: Tensor, s: Tensor, eps: Tensor, w: Tensor, score: Tensor, *vectors: Tensor
) -> Tensor:
    """Write w, and the prior's derivative there if it is not normal; returns log q(w) - log P(w)."""
    sigma = torch.rsqrt(N * s)
    weight = loc + sigma * eps
    log_P: Tensor | float = 0.0
    if segment.family is not None:  # else Pyro's
        log_P, derivative = segment.score(weight, vectors)
        if _normal(segment, N, vectors) is None:
            score.copy_(derivative)
    w.copy_(weight)
    return log_ratio(torch.as_tensor(log_P, dtype=w.dtype, device=w.device), sigma, eps).sum()


def _update(
    segment: PriorSegment,
    N: float,
    beta1: float,
    beta2: float,
    per_datum: Tensor,
    rate: Tensor,
    debias: Tensor,
    G: Tensor,
    score: Tensor,
    eps: Tensor,
    loc: Tensor,
    rho: Tensor,
    g: Tensor,
    s: Tensor,
    *vectors: Tensor,
) -> None:
    """The method's four lines; `per_datum` makes the mean loss of the sum over the minibatch."""
    normal = _normal(segment, N, vectors)
    gradient = G * per_datum
    delta, pull = 0.0, 0.0
    if normal is not None:
        delta, pull = normal[0], normal[0] * (loc - normal[1])
    elif segment.family is not None:
        gradient = gradient - score / N
    curvature = gradient * eps * torch.sqrt(N * s) + delta  # h^ + delta
    momentum = beta1 * g + (1 - beta1) * gradient
    u = (1 - beta2) * (curvature - s) / s
    precision = s * (1 + u + 0.5 * u * u)
    sigma = torch.rsqrt(N * precision)
    loc.copy_(loc - rate * (momentum * debias + pull) / precision)
    g.copy_(momentum)
    s.copy_(precision)
    rho.copy_(_inverse_softplus(sigma))


def _inverse_softplus(sigma: Tensor) -> Tensor:
    return sigma + torch.log(-torch.expm1(-sigma))

