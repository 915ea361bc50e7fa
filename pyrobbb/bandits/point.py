"""Plain networks for R runs at once, trained to a point by maximum likelihood: what the baselines know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pyrobbb._support import checks
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
from pyrobbb.likelihoods import Likelihood


class StackedNetworks(Learner):
    """R networks of one shape, trained by Adam on -log P(D_i | w) in one batch.

    Args:
        networks: One for each run, with its initial weights; they are copied and left as they were.
        likelihood: What a reward is, given the network's output.
        lr: Adam's learning rate.
        compiled: Compile the update; without a C++ compiler it runs uncompiled, several times slower.

    Raises:
        ValueError: If the networks differ in shape, one of their parameters is frozen, or the likelihood
            has parameters of its own.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        likelihood: Likelihood,
        *,
        lr: float = 1e-3,
        compiled: bool = True,
    ) -> None:
        if not networks:
            raise ValueError("networks must hold at least one network")
        if any(True for _ in likelihood.parameters()):
            raise ValueError(f"{type(likelihood).__name__} has parameters, which are not trained here")
        parameters = [dict(network.named_parameters()) for network in networks]
        frozen = [name for one in parameters for name, p in one.items() if not p.requires_grad]
        if frozen:
            raise ValueError(f"parameter {frozen[0]!r} is frozen, and all are trained here")
        self.shapes = {k: p.shape for k, p in parameters[0].items()}
        if any({k: p.shape for k, p in other.items()} != self.shapes for other in parameters):
            raise ValueError("networks must all have parameters of the same names and shapes")
        self.network, self.likelihood, self.runs = networks[0], likelihood, len(networks)
        self.lr, self.compiled, self.steps = checks.positive("lr", lr), compiled, 0
        self.order = column_order(self.shapes)
        flat = [torch.cat([p.detach().flatten() for p in one.values()]) for one in parameters]
        self.w = torch.stack(flat)[:, self.order]
        self.moments = [torch.zeros_like(self.w), torch.zeros_like(self.w)]
        self._programs: dict[Any, Any] = {}

    def _call(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.network, weights, (x,))

    def _update(self, w: Tensor, m: Tensor, v: Tensor, x: Tensor, y: Tensor, rates: Tensor) -> None:
        """One update of all runs, in place."""
        gradient = nll_gradient(self._call, self.likelihood, self.shapes, w, x, y)
        adam(w, gradient, m, v, rates)

    def train(self, x: Tensor, y: Tensor, share: float = 0.0) -> None:
        self.steps += 1
        rates = torch.tensor(adam_rates(self.lr, self.steps))
        inputs = [self.w, *self.moments, x, y, rates]
        if x.shape not in self._programs:
            self._programs[x.shape] = prepared(self._update, inputs, self.compiled)
        with torch.no_grad():
            self._programs[x.shape](*inputs)

    def predict(self, rows: Tensor, draws: int = 1) -> Tensor:
        with torch.no_grad():
            law = self.likelihood(outputs(self._call, named(leaves(self.w, self.shapes), self.shapes), rows))
            return law.mean[..., 0]

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w, "moments": self.moments, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.w.copy_(state["w"])
        for own, given in zip(self.moments, state["moments"], strict=True):
            own.copy_(given)
        self.steps = state["steps"]
