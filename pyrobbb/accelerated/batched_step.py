r"""One step of R chains at once: their flat parameters as rows of a matrix, one program for all.

The formulas are those of `pyrobbb.accelerated.fused_kl`. Each chain keeps its own noise, optimiser and
parameters; chains may differ in their priors' parameters, their data's order and their seeds, not in their
structure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pyro
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pyrobbb._support.flat import split
from pyrobbb._support.optim import add_gradient
from pyrobbb.accelerated.compilation_cost import Prepare
from pyrobbb.accelerated.fixed_batch import FixedProgram
from pyrobbb.accelerated.fused_kl import gradients, log_ratio
from pyrobbb.accelerated.prior_segments import PriorSegment, score_all
from pyrobbb.accelerated.programs import network_gradients
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.svi import Terms

LogLikelihood = Callable[..., Tensor]  # (weights, x, y), and the values of parameters without a prior if any


class NotBatchableError(ValueError):
    """The chains cannot be batched; the message says why."""


def stack_segments(each: Sequence[Sequence[PriorSegment]], dtype: torch.dtype) -> list[PriorSegment]:
    """The priors of R chains as one list of segments, whose parameters have a row for each where they differ.

    Rows are rounded to `dtype`, that of the weights.

    Raises:
        NotBatchableError: If their families or the lengths of their segments differ.
    """
    merged = []
    if any(segment.shape is not None for prior in each for segment in prior):
        raise NotBatchableError("their priors are learned, each by itself")
    if len({tuple((segment.family, segment.length) for segment in prior) for prior in each}) != 1:
        raise NotBatchableError("their priors are of different families")
    for same in zip(*each, strict=True):
        constants, vectors = {}, {}
        for key in (*same[0].constants, *same[0].vectors):
            found = [_row(segment, key) for segment in same]
            if all(len(row) == 1 and row == found[0] for row in found):
                constants[key] = float(found[0])
            else:
                vectors[key] = torch.stack(torch.broadcast_tensors(*found)).to(dtype)
        merged.append(replace(same[0], constants=constants, vectors=vectors))
    return merged


def _row(segment: PriorSegment, key: str) -> Tensor:
    if key in segment.vectors:
        return segment.vectors[key]
    return torch.tensor([segment.constants[key]], dtype=torch.float64)


def batched_gradients(
    log_likelihood: LogLikelihood,
    shapes: Mapping[str, torch.Size],
    w: Tensor,
    x: Tensor,
    y: Tensor,
    counts: Tensor | None = None,
    points: Sequence[Tensor] = (),
    samples: int = 1,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`network_gradients` of each chain, by w, `(*draws, R, D)`, and by the points.

    `log_likelihood(weights, x, y, *points)` gives log p(y_i | x_i, w) of one chain's rows, shape (B,); x, y
    and the points, parameters without a prior, have a leading R; there is at most one dimension of draws. Row
    i of chain r counts `counts[r, i]` times, or once.
    """
    call = torch.vmap(log_likelihood, randomness="different")
    if w.dim() == 3:
        others = (None,) * (2 + len(points))
        call = torch.vmap(call, in_dims=(0, *others), randomness="different")
    points = [point.detach().requires_grad_() for point in points]

    def of_chains(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return call(weights, x, y, *points)

    return network_gradients(of_chains, partial(split, shapes=shapes), w, points, x, y, counts, samples)


class StackedStep:
    """Gradients of R chains of mean-field normals on a minibatch each.

    The arguments are those of `MeanFieldStep`, one for each chain, of the same structure and likelihood.
    `batch` and `prepare` are those of `FixedProgram`: `(x, y)` of shapes (R, B, *features) and (R, B, ...);
    `noise`, (S, R, D), is such as `evaluate` will take.

    Raises:
        NotBatchableError: If they are of different structure.
        CannotRecordError: If the network looks at a tensor's value.
        CannotCompileError: If it cannot be compiled.
    """

    own: ClassVar[tuple[str, ...]] = ("loc", "rho")  # of a guide: the parameters that the program takes

    def __init__(
        self,
        models: Sequence[BayesianNetwork],
        guides: Sequence[Any],
        segments: Sequence[Sequence[PriorSegment]],
        batch: tuple[Tensor, Tensor],
        prepare: Prepare | None,
        noise: Tensor,
    ) -> None:
        if any(model.prior_parameters for model in models):
            raise NotBatchableError("their priors are trained, each by itself")
        self.model, self.guides = models[0], list(guides)
        self.samples = 1 if noise.dim() == 2 else len(noise)
        named = [dict(model.named_parameters()) for model in models]
        self.names = tuple(named[0])
        self.points = [[one[name] for one in named] for name in self.names]  # such as a scale of the noise
        loc = guides[0].loc.detach()
        self.segments = stack_segments(segments, loc.dtype)
        self.share = loc.new_zeros(len(guides), 1)
        inputs = [noise.detach(), torch.ones_like(self.share), *self._gathered()]
        self.run = FixedProgram(self._program, inputs, batch, prepare, dim=1)

    @torch.no_grad()
    def _gathered(self) -> list[Tensor]:
        """What the program takes of guides and models, a row for each chain."""
        own = [[getattr(guide, name) for guide in self.guides] for name in self.own]
        return [torch.stack(same) for same in (*own, *self.points)]

    def _log_likelihood(self, weights: dict[str, Tensor], x: Tensor, y: Tensor, *points: Tensor) -> Tensor:
        """Of one chain, whose points take the places of the first model's."""
        if not points:
            return self.model.log_likelihood(weights, x, y)
        values = {f"model.{name}": point for name, point in zip(self.names, points, strict=True)}
        with pyro.get_param_store().scope():  # else the store's own would take their places
            return functional_call(_Scored(self.model), values, (weights, x, y))

    def _program(self, *given: Any) -> list[Tensor]:
        """KL and NLL (R,), and the gradients (R, D) of F with respect to what was gathered."""
        noise, share, loc, rho, *points, x, y, counts = given
        sigma, slope = F.softplus(rho), torch.sigmoid(rho)
        w = loc + sigma * noise
        log_prior, score = score_all(self.segments, w)
        shapes, S = self.guides[0].shapes, self.samples
        nll, G, to_points = batched_gradients(self._log_likelihood, shapes, w, x, y, counts, points, S)
        to_loc, to_rho = gradients(G, score, noise, sigma, slope, share)
        kl = log_ratio(log_prior, sigma, noise).sum(-1).sum(0)
        return [kl / S, nll.sum((0, -1)) / S, to_loc, to_rho, *to_points]

    def evaluate(
        self, x: Tensor, y: Tensor, shares: Sequence[float], noise: Tensor, counts: Tensor | None = None
    ) -> Terms:
        """The terms (R,); leaves the gradients of each F in its guide's `grad`. `counts` is (R, B)."""
        with torch.no_grad():
            self.share.copy_(torch.tensor(shares, dtype=self.share.dtype)[:, None])
            inputs = [noise.detach(), self.share, *self._gathered()]
            kl, nll, *gradients = self.run(*inputs, x, y, counts)
        own = len(gradients) - len(self.points)
        self._leave(noise, *gradients[:own])
        for same, each in zip(self.points, gradients[own:], strict=True):
            for point, gradient in zip(same, each, strict=True):
                add_gradient(point, gradient)
        return Terms(kl, nll)

    def _leave(self, noise: Tensor, *to_own: Tensor) -> None:
        """Leave the gradients in each guide's `grad`."""
        for guide, *each in zip(self.guides, *to_own, strict=True):
            guide.loc.grad, guide.rho.grad = each


class StackedDescent(StackedStep):
    """Gradients of R chains of point estimates: KL is -log P(w), and `noise` the points w (R, D), drawn from
    the guides' `loc`.

    The gradients go back through the draws, and add to what `grad` holds.
    """

    own = ()

    def _program(self, *given: Any) -> list[Tensor]:
        noise, share, *points, x, y, counts = given
        log_prior, score = score_all(self.segments, noise)
        shapes = self.guides[0].shapes
        nll, G, to_points = batched_gradients(self._log_likelihood, shapes, noise, x, y, counts, points)
        return [-log_prior.sum(-1), nll.sum(-1), G - share * score, *to_points]

    def _leave(self, noise: Tensor, *to_own: Tensor) -> None:
        noise.backward(*to_own)


class _Scored(nn.Module):
    """A model's log-likelihood as a module, for `functional_call`."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.model.log_likelihood(weights, x, y)
