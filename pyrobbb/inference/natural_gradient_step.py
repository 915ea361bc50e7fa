"""One step of `pyrobbb.inference.natural_gradient`, on flat buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobbb._support.optim import set_gradient, trained
from pyrobbb.accelerated.compile import Pass, bind, compiled_program
from pyrobbb.accelerated.prior_segments import PriorSegment, by_segment
from pyrobbb.accelerated.record import Program
from pyrobbb.accelerated.rng import Normals
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.inference.energy import log_prior
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import Step, Terms, counted

if TYPE_CHECKING:
    from pyrobbb.inference.natural_gradient import NaturalGradient

LOG_2PI = math.log(2 * math.pi)
UNSET = 1e-30  # the scale of a guide before its first training, which sets it
LARGE = 100_000  # weights; the gradient of a larger site is read where it is, not copied to its neighbours'


def _pieces(
    segments: Sequence[PriorSegment], sizes: Mapping[str, int]
) -> Iterator[tuple[PriorSegment, list[str]]]:
    """The segments cut so that a large site lies by itself; each piece with the names of its sites."""
    waiting = iter(sizes)
    for segment in segments:
        names, left = [], segment.length
        while left:
            names.append(next(waiting))
            left -= sizes[names[-1]]
        begin = 0
        for _, group in groupby(names, key=lambda name: name if sizes[name] >= LARGE else ""):
            own = list(group)
            where = slice(begin, begin + sum(sizes[name] for name in own))
            begin = where.stop
            vectors = {key: vector[where] for key, vector in segment.vectors.items()}
            yield replace(segment, vectors=vectors, length=where.stop - where.start), own


class NaturalGradientStep(Step):
    """One step on flat buffers: draw and score, the network, update; g and t lie in the optimiser's state.

    The arguments are those of `MeanFieldStep`, after the method; Pyro takes the gradient of a prior without
    segments.
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
        self.w, self.score, self.g = (torch.zeros_like(loc) for _ in range(3))
        self.weights = {name: part.detach().requires_grad_() for name, part in guide.split(self.w).items()}
        self.others = [p for p in trained(optimizer) if p is not guide.loc and p is not guide.scale]
        self.eps = self.normals.values
        optimizer.state[guide.loc] = {"g": self.g, "eps": self.eps, "step": torch.zeros(())}
        # what changes from step to step: 1 / (pi_i N), alpha_t, and 1 / (1 - beta1^t)
        self.scalars = [torch.zeros((), dtype=loc.dtype, device=loc.device) for _ in range(3)]
        group = optimizer.param_groups[0]
        self.initial_lr = float(group.get("initial_lr", group["lr"]))  # a schedule may begin at a part of it
        if self.initial_lr == 0:
            raise ValueError(
                "optim has rate 0, so a schedule's factor cannot be read from it: natural gradients have a "
                "rate of their own, lr, so give optim any rate above 0"
            )
        self.by_pyro = segments is None
        whole = segments or [PriorSegment(None, {}, {}, loc.numel())]
        flats = (loc, scale, self.eps, self.w, self.score)
        self.draws: list[Pass] = []
        untrained = bool((scale == UNSET).all())
        for segment, mean, sigma, *rest in by_segment(whole, *flats):
            part = _Part(method, segment, float(model.N))
            if untrained:
                h = method.first_curvature(part.N) + part.normal()[0]
                sigma.copy_((part.N * h) ** -0.5)
            self.draws.append(bind(part.draw, mean, sigma, *rest, compiled=compiled))
        self.pieces = list(_pieces(whole, {name: w.numel() for name, w in self.weights.items()}))
        self.fixed, self.update = self._update(compiled)

    def _update(self, compiled: bool) -> tuple[list[Tensor], Program]:
        """What runs after the network, as one program of each piece's gradient and of fixed tensors."""
        segments = [segment for segment, _ in self.pieces]
        parts = [_Part(self.method, segment, float(self.model.N)) for segment in segments]
        flats = (self.score, self.eps, self.guide.loc.detach(), self.guide.scale.detach(), self.g)
        owned = [own for _, *own in by_segment(segments, *flats)]
        fixed = [*self.scalars, *(tensor for own in owned for tensor in own)]

        def program(*inputs: Tensor) -> None:
            given = iter(inputs)
            gradients, scalars = ([next(given) for _ in one] for one in (parts, self.scalars))
            for part, G, own in zip(parts, gradients, owned, strict=True):
                part.update(scalars, G, *(next(given) for _ in own))

        if not compiled:
            return fixed, program
        inputs = [*(torch.zeros_like(own[0]) for own in owned), *fixed]
        return fixed, compiled_program(program, inputs)

    def _gathered(self, gradients: Mapping[str, Tensor | None]) -> list[Tensor]:
        """The gradient of each piece, flat."""
        flat = {
            name: torch.zeros_like(w).flatten() if (G := gradients[name]) is None else G.flatten()
            for name, w in self.weights.items()
        }
        return [
            torch.cat([flat[name] for name in names]) if len(names) > 1 else flat[names[0]]
            for _, names in self.pieces
        ]

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        state: Any = self.optimizer.state[self.guide.loc]
        if state["g"] is not self.g:  # a checkpoint brings tensors of its own
            state["g"], state["eps"] = self.g.copy_(state["g"]), self.eps.copy_(state["eps"])
            state["step"] = state["step"].cpu()  # where reading it waits for nothing
        state["step"] += 1
        # on CUDA the rate is a tensor, which is not read, as that would wait for the device
        rate = self.method.lr * self.optimizer.param_groups[0]["lr"] / self.initial_lr
        t = int(state["step"])
        values = (1 / (share * self.model.N), rate, 1 / (1 - self.method.beta1**t))
        for scalar, value in zip(self.scalars, values, strict=True):
            scalar.fill_(value)
        if t % 2:
            self.normals.draw()
        else:
            self.eps.neg_()
        with torch.no_grad():
            kl: Any = sum(run() for run in self.draws)
        loss = nll = -counted(self.model.log_likelihood(self.weights, x, y), counts).sum()
        if self.by_pyro:
            prior = -log_prior(self.model.priors_given(self.weights), self.weights)
            loss, kl = nll + share * prior, kl + prior.detach()
        gradients = torch.autograd.grad(loss, [*self.weights.values(), *self.others], allow_unused=True)
        own = self._gathered(dict(zip(self.weights, gradients, strict=False)))
        with torch.no_grad():
            self.update(*own, *self.fixed)
        for parameter, gradient in zip(self.others, gradients[len(self.weights) :], strict=True):
            set_gradient(parameter, gradient)
        self.optimizer.step()
        return Terms(kl, nll.detach())


@dataclass(frozen=True)
class _Part:
    """The passes over a segment of weights with a common family of priors; a family of None is Pyro's."""

    method: NaturalGradient
    segment: PriorSegment
    N: float

    def normal(self) -> tuple[Any, Any]:
        """Delta and c of a normal prior; 0 for another."""
        if self.segment.family is not dist.Normal:
            return 0.0, 0.0
        values: dict[str, Any] = {**self.segment.constants, **self.segment.vectors}
        return 1 / (self.N * values["scale"] ** 2), values["loc"]

    def draw(self, loc: Tensor, sigma: Tensor, eps: Tensor, w: Tensor, score: Tensor) -> Tensor:
        """Write w, and the prior's derivative there if it is not normal; returns log q(w) - log P(w)."""
        weight = loc + sigma * eps
        each = -0.5 * eps * eps - torch.log(sigma)  # log q - log P, up to constants
        constant: Any = -0.5 * LOG_2PI * eps.numel()
        delta, c = self.normal()
        if self.segment.family is dist.Normal:
            precision = self.N * delta
            precision = precision.to(w) if isinstance(precision, Tensor) else w.new_full((), precision)
            each = each + 0.5 * precision * (weight - c) ** 2
            constant = 0.5 * precision.log().sum() * (-eps.numel() / precision.numel())
        elif self.segment.family is not None:
            log_P, derivative = self.segment.score(weight)
            each = each - log_P
            score.copy_(derivative)
        w.copy_(weight)
        return each.sum() + constant

    def update(
        self,
        scalars: Sequence[Tensor],
        G: Tensor,
        score: Tensor,
        eps: Tensor,
        loc: Tensor,
        scale: Tensor,
        g: Tensor,
    ) -> None:
        """The method's four lines; of the step's scalars, `per_datum` makes a mean of the minibatch's sum."""
        per_datum, rate, debias = scalars
        delta, c = self.normal()
        gradient = G * per_datum
        if self.segment.family not in (None, dist.Normal):
            gradient = gradient - score * (1 / self.N)
        beta1, beta2, radius = self.method.beta1, self.method.beta2, self.method.radius
        momentum = beta1 * g + (1 - beta1) * gradient
        u = (1 - beta2) * (self.N * scale * (gradient * eps + delta * scale) - 1)
        sigma = scale * torch.rsqrt(1 + u + 0.5 * u * u)
        step = rate * (momentum * debias + delta * (loc - c)) * (self.N * sigma)  # in units of sigma
        loc.copy_(loc - sigma * step.clamp(-radius, radius))
        g.copy_(momentum)
        scale.copy_(sigma)
