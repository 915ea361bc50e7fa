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
gradient of any other prior is taken at the drawn weight, as part of :math:`\bar\ell`, and :math:`\delta = 0`.
What is kept of h is :math:`\sigma`, for which the third line reads

.. math::
    \sigma \leftarrow \sigma / \sqrt{1 + u + u^2 / 2}, \qquad
    u = (1 - \beta_2) [N \sigma (\hat g\, \epsilon + \delta\sigma) - 1]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.accelerated.compile import CannotCompileError, CannotRecordError, Program, compile, record
from pyrobbb.accelerated.dispatch import compilation_pays
from pyrobbb.accelerated.fused_kl import NotElementwiseError, PriorSegment, prior_segments
from pyrobbb.accelerated.rng import Normals
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference.energy import log_prior
from pyrobbb.inference.method import MakeGuide, OwnStep
from pyrobbb.mean_field import MeanFieldNormal, rho_of
from pyrobbb.svi import Step, Terms

LOG_2PI = math.log(2 * math.pi)
Pass = Callable[[], Any]


class NormalByScale(MeanFieldNormal):
    r"""The mean field with parameters `loc` and `scale`: the update knows :math:`\sigma`, and no rho."""

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        super()._set_up(*args, **kwargs)
        self.scale = nn.Parameter(self.sigma.detach())
        del self.rho

    @property
    def sigma(self) -> Tensor:
        return self.scale if "scale" in self._parameters else super().sigma

    def by_rho(self) -> MeanFieldNormal:
        """The same normal as SVI trains it."""
        guide = MeanFieldNormal(self._model[0])
        guide()
        guide.to(self.loc)
        with torch.no_grad():
            guide.loc.copy_(self.loc)
            guide.rho.copy_(rho_of(self.scale))
        return guide


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(OwnStep):
    r"""The mean field by natural gradients; the initial sigma follows from N, the prior and `h0`.

    `optim` trains what has no prior, if anything; `schedule` acts on `lr` as well.

    Args:
        lr: :math:`\alpha`, a share of a Newton step.
        beta1: Averages the gradient.
        beta2: Averages the curvature: about 1 / (1 - beta2) steps forget the start.
        h0: :math:`h_0`, the curvature of the mean loss at the start.
        radius: No weight moves further in a step, in units of its sigma. The printed algorithm has no such
            bound, and diverges where h0 is too small.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.9995
    h0: float = 0.1
    radius: float = 1.0

    bounds = True
    holds = NormalByScale
    why = "its step takes one natural gradient from one draw"

    def __post_init__(self) -> None:
        checks.positive("lr", self.lr)
        checks.positive("h0", self.h0)
        checks.positive("radius", self.radius)
        for name in ("beta1", "beta2"):
            checks.share(name, getattr(self, name), zero=True)

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        if options.rates:
            raise ValueError("rates have no meaning for NaturalGradient: it scales each weight's step itself")

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> nn.Module:
        chosen = MeanFieldNormal(model) if make is None else make(model)
        if not isinstance(chosen, MeanFieldNormal):
            raise ValueError(
                f"NaturalGradient knows the natural gradient of the mean field alone: use it with "
                f"MeanFieldNormal, or svi with {type(chosen).__name__}"
            )
        return NormalByScale(model, init_loc=chosen.init_loc, init_rho=chosen.init_rho)

    def step(
        self,
        model: BayesianNetwork,
        guide: Any,
        optimizer: torch.optim.Optimizer,
        first: Split,
        **options: Any,
    ) -> Step:
        try:
            segments = _element_wise(model, guide)
        except NotElementwiseError as reason:
            options["log"](f"the prior's gradient is taken by Pyro: {reason}")
            return NaturalGradientStep(self, model, guide, optimizer, None)
        if compilation_pays(options["fast"], guide.loc.numel(), options["steps"], device=first.x.device):
            try:
                return NaturalGradientStep(self, model, guide, optimizer, segments, compiled=True)
            except (CannotCompileError, CannotRecordError) as reason:
                options["log"](f"training without compiled code, several times slower: {reason}")
        return NaturalGradientStep(self, model, guide, optimizer, segments)


def _element_wise(model: BayesianNetwork, guide: NormalByScale) -> list[PriorSegment]:
    """The prior, weight by weight in the guide's order."""
    if set(model.latents) != set(model.sites):
        raise NotElementwiseError("the prior or likelihood has latent sites of its own")
    return prior_segments({name: model.prior_of(name) for name in guide.shapes})


class NaturalGradientStep:
    """One step on flat buffers: draw and score, the network, update; g and t lie in the optimiser's state.

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
        loc, scale = guide.loc.detach(), guide.scale.detach()
        self.normals = Normals(loc.numel(), loc, compiled=compiled)
        self.w, self.G, self.score, self.g = (torch.zeros_like(loc) for _ in range(4))
        self.weights = {name: part.detach().requires_grad_() for name, part in guide.split(self.w).items()}
        self.others = [p for g in optimizer.param_groups for p in g["params"]]
        self.others = [p for p in self.others if p is not guide.loc and p is not guide.scale]
        optimizer.state[guide.loc] = {"g": self.g, "step": torch.zeros(())}
        # what changes from step to step: 1 / (pi_i N), alpha_t, and 1 / (1 - beta1^t)
        self.scalars = [torch.zeros((), dtype=loc.dtype, device=loc.device) for _ in range(3)]
        self.initial_lr = float(optimizer.param_groups[0]["lr"])
        self.by_pyro = segments is None
        parts = [_Part(s, float(model.N)) for s in segments or [PriorSegment(None, {}, {}, loc.numel())]]
        for part, own in zip(parts, scale.split([part.segment.length for part in parts]), strict=True):
            own.copy_((part.N * (method.h0 + part.normal(tuple(part.segment.vectors.values()))[0])) ** -0.5)
        self.draws, self.updates = self._passes(parts, compiled)

    def _passes(self, parts: Sequence[_Part], compiled: bool) -> tuple[list[Pass], list[Pass]]:
        """What runs before and after the network, over each segment of the weights."""

        def bound(program: Program, *inputs: Tensor) -> Pass:
            run = compile(record(program, inputs), inputs) if compiled else program
            return partial(run, *inputs)

        method, eps = self.method, self.normals.values
        loc, scale = self.guide.loc.detach(), self.guide.scale.detach()
        draws, updates = [], []
        begin = 0
        for part in parts:
            where = slice(begin, begin + part.segment.length)
            begin = where.stop
            vectors = tuple(part.segment.vectors.values())
            drawn = [flat[where] for flat in (loc, scale, eps, self.w, self.score)]
            draws.append(bound(part.draw, *drawn, *vectors))
            updated = [flat[where] for flat in (self.G, self.score, eps, loc, scale, self.g)]
            update = partial(part.update, method.beta1, method.beta2, method.radius)
            updates.append(bound(update, *self.scalars, *updated, *vectors))
        return draws, updates

    def __call__(self, x: Tensor, y: Tensor, share: float, fraction: float) -> Terms:
        state: Any = self.optimizer.state[self.guide.loc]
        if state["g"] is not self.g:  # a checkpoint brings a tensor of its own
            state["g"] = self.g.copy_(state["g"])
        state["step"] += 1
        rate = self.method.lr * float(self.optimizer.param_groups[0]["lr"]) / self.initial_lr
        values = (1 / (share * self.model.N), rate, 1 / (1 - self.method.beta1 ** int(state["step"])))
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
        torch.cat(
            [torch.zeros_like(w).flatten() if G is None else G.flatten() for w, G in of_weights], out=self.G
        )
        with torch.no_grad():
            for run in self.updates:
                run()
        for parameter, gradient in zip(self.others, gradients[len(self.weights) :], strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        return Terms(kl, nll.detach())


@dataclass(frozen=True)
class _Part:
    """The passes over a segment of weights with a common family of priors; a family of None is Pyro's."""

    segment: PriorSegment
    N: float

    def normal(self, vectors: Sequence[Tensor]) -> tuple[Any, Any]:
        """Delta and c of a normal prior; 0 for another."""
        if self.segment.family is not dist.Normal:
            return 0.0, 0.0
        values: dict[str, Any] = {
            **self.segment.constants,
            **dict(zip(self.segment.vectors, vectors, strict=True)),
        }
        return 1 / (self.N * values["scale"] ** 2), values["loc"]

    def draw(
        self, loc: Tensor, sigma: Tensor, eps: Tensor, w: Tensor, score: Tensor, *vectors: Tensor
    ) -> Tensor:
        """Write w, and the prior's derivative there if it is not normal; returns log q(w) - log P(w)."""
        weight = loc + sigma * eps
        each = -0.5 * eps * eps - torch.log(sigma)  # log q - log P, up to constants
        constant: Any = -0.5 * LOG_2PI * eps.numel()
        delta, c = self.normal(vectors)
        if self.segment.family is dist.Normal:
            precision = torch.as_tensor(self.N * delta, dtype=w.dtype, device=w.device)
            each = each + 0.5 * precision * (weight - c) ** 2
            constant = 0.5 * precision.log().sum() * (-eps.numel() / precision.numel())
        elif self.segment.family is not None:
            log_P, derivative = self.segment.score(weight, vectors)
            each = each - log_P
            score.copy_(derivative)
        w.copy_(weight)
        return each.sum() + constant

    def update(
        self,
        beta1: float,
        beta2: float,
        radius: float,
        per_datum: Tensor,
        rate: Tensor,
        debias: Tensor,
        G: Tensor,
        score: Tensor,
        eps: Tensor,
        loc: Tensor,
        scale: Tensor,
        g: Tensor,
        *vectors: Tensor,
    ) -> None:
        """The method's four lines; `per_datum` makes the mean loss of the sum over the minibatch."""
        delta, c = self.normal(vectors)
        gradient = G * per_datum
        if self.segment.family not in (None, dist.Normal):
            gradient = gradient - score * (1 / self.N)
        momentum = beta1 * g + (1 - beta1) * gradient
        u = (1 - beta2) * (self.N * scale * (gradient * eps + delta * scale) - 1)
        sigma = scale * torch.rsqrt(1 + u + 0.5 * u * u)
        step = rate * (momentum * debias + delta * (loc - c)) * (self.N * sigma)  # in units of sigma
        loc.copy_(loc - sigma * step.clamp(-radius, radius))
        g.copy_(momentum)
        scale.copy_(sigma)
