"""Any of our models and guides as a bandit's learner, run by run, with Pyro's own `Trace_ELBO` and Adam."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn

from pyrobbb._support.optim import MakeOptimizer, named_parameters, parameter_groups
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb.bandits.learner import Learner
from pyrobbb.bnn import BayesianNetwork, evaluating
from pyrobbb.svi import ReferenceStep


class PyroLearner(Learner):
    """R pairs of a Pyro model and a Pyro guide, one for each run; slow, but general.

    Args:
        chains: The pairs; each model's N must be at least the minibatch's size (it does not matter else).
        seeds: One for each run.
        width: Length of one input row.
        optim: Makes a torch optimiser from parameter groups.
        samples: Weight draws per update.
    """

    def __init__(
        self,
        chains: Sequence[tuple[BayesianNetwork, nn.Module]],
        seeds: Sequence[int],
        *,
        width: int,
        optim: MakeOptimizer = partial(torch.optim.Adam, lr=1e-3),
        samples: int = 1,
    ) -> None:
        if len(chains) != len(seeds) or not seeds:
            raise ValueError(
                f"each run needs a model, a guide and a seed, got {len(chains)} and {len(seeds)}"
            )
        self.chains, self.runs = list(chains), len(seeds)
        self.noise, self.optimizers, self.steps = [], [], []
        for (model, guide), seed in zip(self.chains, seeds, strict=True):
            with isolated(seed):
                guide(torch.zeros(1, width))  # autoguides make their parameters at the first call
                self.noise.append(random_state("cpu"))
            groups = parameter_groups(named_parameters(model, guide), optim, {})
            self.optimizers.append(optim(groups))
            self.steps.append(ReferenceStep(model, guide, self.optimizers[-1], samples=samples))

    def train(self, x: Tensor, y: Tensor, share: float) -> None:
        for r, (model, _) in enumerate(self.chains):
            assert model.N is not None
            with isolated():
                set_random_state(self.noise[r], "cpu")
                self.steps[r](x[r], y[r], share, len(x[r]) / model.N)
                self.noise[r] = random_state("cpu")

    def predict(self, rows: Tensor, draws: int) -> Tensor:
        return torch.stack([self._predict(r, rows[r], draws) for r in range(self.runs)])

    def _predict(self, r: int, rows: Tensor, draws: int) -> Tensor:
        model, guide = self.chains[r]
        total = torch.zeros(len(rows))
        with isolated(), torch.no_grad(), evaluating(model):
            set_random_state(self.noise[r], "cpu")
            for _ in range(draws):
                nodes = poutine.trace(guide).get_trace(rows).nodes
                output = model.apply_network({name: nodes[name]["value"] for name in model.sites}, rows)
                total += model.likelihood(output).mean[..., 0]
            self.noise[r] = random_state("cpu")
        return total / draws

    def state_dict(self) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model, _ in self.chains],
            "guides": [guide.state_dict() for _, guide in self.chains],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "noise": self.noise,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for r, (model, guide) in enumerate(self.chains):
            model.load_state_dict(state["models"][r])
            guide.load_state_dict(state["guides"][r])
            self.optimizers[r].load_state_dict(state["optimizers"][r])
        self.noise = list(state["noise"])
