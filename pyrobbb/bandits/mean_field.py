r"""Bayes by Backprop for R runs at once: the mean-field normal guide, its ELBO and Adam in one program.

For each run, with :math:`w = \mu + \sigma\epsilon` and :math:`\sigma = \mathrm{softplus}(\rho)`, an update
follows the gradient of the paper's minibatch cost (eq. 9) for one weight draw,

.. math::
    F = s\,[\log q(w) - \log P(w)] - \log P(D_i \mid w)

as `ReferenceStep` does with Pyro's `Trace_ELBO`. With :math:`g = G - s\,\partial\log P/\partial w`, where G
is the likelihood's gradient with respect to w, its gradients are

.. math::
    \nabla_\mu F = g, \qquad \nabla_\rho F = (g\,\epsilon - s/\sigma)\,\mathrm{sigmoid}(\rho)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.fast_math import cos_sin
from pyrobbb.accelerated.fused_kl import laws
from pyrobbb.accelerated.rng import threefry
from pyrobbb.bandits.learner import Learner
from pyrobbb.bandits.stacked import (
    adam,
    adam_rates,
    column_order,
    leaves,
    named,
    nll_gradient,
    outputs,
    prepared,
)
from pyrobbb.bnn import BayesianNetwork


class StackedMeanField(Learner):
    """R mean-field posteriors over R networks of one shape, trained in one batch.

    The noise of update t of a run is a function of the run's seed and t, whoever else is in the batch.

    Args:
        model: The Pyro model, whose prior, likelihood and network all runs share.
        guides: One for each run, with flat parameters `loc` and `rho` and their `shapes`, as
            `MeanFieldNormal` has them; they are read here and written by `write_back`.
        seeds: One for each run; each decides the initial values and the noise of its run.
        width: Length of one input row.
        lr: Adam's learning rate.
        compiled: Compile the update; without a C++ compiler it runs uncompiled, several times slower.

    Raises:
        ValueError: If a guide is of another kind, or the model has point parameters or a prior that is
            not element-wise.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guides: Sequence[Any],
        seeds: Sequence[int],
        *,
        width: int,
        lr: float = 1e-3,
        compiled: bool = True,
    ) -> None:
        if len(guides) != len(seeds) or not seeds:
            raise ValueError(f"each run needs a guide and a seed, got {len(guides)} and {len(seeds)}")
        if any(True for _ in model.parameters()):
            raise ValueError("the model has parameters without a prior; PyroLearner trains those as well")
        for guide, seed in zip(guides, seeds, strict=True):
            with isolated(seed), torch.no_grad():
                guide(torch.zeros(1, width))  # guides make their parameters at the first call
        if not all(hasattr(guide, name) for guide in guides for name in ("loc", "rho", "shapes")):
            raise ValueError("the guides must have flat `loc` and `rho`, as MeanFieldNormal; see PyroLearner")
        self.model, self.guides, self.runs = model, list(guides), len(seeds)
        self.lr, self.compiled, self.steps = checks.positive("lr", lr), compiled, 0
        self.shapes: dict[str, torch.Size] = dict(guides[0].shapes)
        self.order = column_order(self.shapes)
        self.loc = torch.stack([guide.loc.detach()[self.order] for guide in guides])
        self.rho = torch.stack([guide.rho.detach()[self.order] for guide in guides])
        self.moments = [torch.zeros_like(self.loc) for _ in range(4)]
        size = self.loc.shape[1]
        self.eps = torch.zeros(self.runs, 2 * ((size + 1) // 2))
        self.keys = torch.tensor([[seed & 0x7FFFFFFF, 0x5EED] for seed in seeds], dtype=torch.int32)
        self.clock = torch.zeros(2, dtype=torch.int32)  # which noise: update t, or draw t for predictions
        self.scalars = torch.zeros(3)  # the KL's share and Adam's two rates
        self.choices = 0  # draws made for predictions
        with isolated():
            self.laws = laws({name: model.prior_of(name) for name in model.sites})
        self.vectors = self._law_vectors()
        self._programs: dict[Any, Any] = {}

    def _law_vectors(self) -> list[Tensor]:
        """The prior's parameters that differ from weight to weight, in column order."""
        found, begin = [], 0
        for law in self.laws:
            order = self.order[begin : begin + law.length] - begin
            found += [vector[order] for vector in law.vectors.values()]
            begin += law.length
        return found

    def _draw(self, keys: Tensor, clock: Tensor, eps: Tensor) -> None:
        """Fill `eps` with standard normals: Threefry of key, position and clock, then Box and Muller."""
        half = eps.shape[1] // 2
        counter = torch.arange(half, dtype=torch.int32)
        key = torch.stack([keys[:, 0], keys[:, 1] ^ clock[1]])[..., None]
        bits0, bits1 = threefry(key, counter, clock[0])
        uniform = ((bits0 >> 8) & 0xFFFFFF).to(torch.float32) * 2**-24 + 2**-25
        turns = (bits1 >> 8).to(torch.float32) * 2**-24
        radius = torch.sqrt(-2.0 * torch.log(uniform))
        cosine, sine = cos_sin(turns)
        eps[:, :half].copy_(radius * cosine)
        eps[:, half:].copy_(radius * sine)

    def _update(
        self, loc: Tensor, rho: Tensor, m: Tensor, v: Tensor, m_rho: Tensor, v_rho: Tensor, eps: Tensor,
        x: Tensor, y: Tensor, scalars: Tensor, *vectors: Tensor,
    ) -> None:  # fmt: skip
        """One update of all runs, in place."""
        eps, share = eps[:, : loc.shape[1]], scalars[0]
        sigma = F.softplus(rho)
        w = loc + sigma * eps
        likelihood = nll_gradient(self.model.apply_network, self.model.likelihood, self.shapes, w, x, y)
        slopes, waiting = [], list(vectors)
        for law, part in zip(self.laws, w.split([law.length for law in self.laws], dim=1), strict=True):
            given = [waiting.pop(0) for _ in law.vectors]
            slopes.append(law.score(part, given)[1])
        gradient = likelihood - share * (torch.cat(slopes, dim=1) if len(slopes) > 1 else slopes[0])
        to_rho = (gradient * eps - share / sigma) * torch.sigmoid(rho)
        adam(loc, gradient, m, v, scalars[1:])
        adam(rho, to_rho, m_rho, v_rho, scalars[1:])

    def _program(self, name: str, program: Any, inputs: Sequence[Tensor]) -> Any:
        key = (name, *(tuple(t.shape) for t in inputs))
        if key not in self._programs:
            self._programs[key] = prepared(program, inputs, self.compiled)
        return self._programs[key]

    def train(self, x: Tensor, y: Tensor, share: float, eps: Tensor | None = None) -> None:
        """One update; `eps` (R, D), in the order of the guides, replaces the noise, for comparisons."""
        with torch.no_grad():
            if eps is None:
                self._noise(self.eps, self.steps, stream=0)
            else:
                self.eps[:, : eps.shape[1]] = eps[:, self.order]
            self.steps += 1
            self.scalars.copy_(torch.tensor([share, *adam_rates(self.lr, self.steps)]))
            inputs = [self.loc, self.rho, *self.moments, self.eps, x, y, self.scalars]
            inputs += self.vectors
            self._program("update", self._update, inputs)(*inputs)

    def _noise(self, eps: Tensor, time: int, stream: int) -> None:
        """Standard normals for update or draw number `time`; compiled or not, the same run gives the same."""
        self.clock.copy_(torch.tensor([time, stream], dtype=torch.int32))
        inputs = [self.keys, self.clock, eps]
        self._program("draw", self._draw, inputs)(*inputs)

    def predict(self, rows: Tensor, draws: int) -> Tensor:
        total = torch.zeros(rows.shape[:2])
        eps = torch.zeros_like(self.eps)
        with torch.no_grad():
            for _ in range(draws):
                self._noise(eps, self.choices, stream=1)
                self.choices += 1
                w = self.loc + F.softplus(self.rho) * eps[:, : self.loc.shape[1]]
                law = self.model.likelihood(
                    outputs(self.model.apply_network, named(leaves(w, self.shapes), self.shapes), rows)
                )
                total += law.mean[..., 0]
        return total / draws

    def write_back(self) -> list[Any]:
        """The guides, with what they have learnt: for `Posterior`, ArviZ and everything else."""
        with torch.no_grad():
            for guide, loc, rho in zip(self.guides, self.loc, self.rho, strict=True):
                guide.loc[self.order] = loc
                guide.rho[self.order] = rho
        return self.guides

    def state_dict(self) -> dict[str, Any]:
        return {
            "loc": self.loc,
            "rho": self.rho,
            "moments": self.moments,
            "steps": self.steps,
            "choices": self.choices,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loc.copy_(state["loc"])
        self.rho.copy_(state["rho"])
        for own, given in zip(self.moments, state["moments"], strict=True):
            own.copy_(given)
        self.steps, self.choices = state["steps"], state["choices"]
