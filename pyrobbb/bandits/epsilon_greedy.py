"""Epsilon-greedy: the action that looks best, except now and then one at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.bandits.agent import Agent


class EpsilonGreedy(Agent):
    r"""Takes :math:`\arg\max_a E[r \mid x, a]`, or with probability epsilon an action at random.

    Args:
        epsilon: One probability for all runs, or one for each; the other arguments are those of `Agent`.
    """

    def __init__(self, *args: Any, epsilon: float | Sequence[float] = 0.05, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        each = [epsilon] * self.learner.runs if isinstance(epsilon, int | float) else list(epsilon)
        if len(each) != self.learner.runs:
            raise ValueError(f"epsilon needs one value per run ({self.learner.runs}), got {len(each)}")
        self.epsilon = torch.tensor([checks.between("epsilon", e, 0, 1) for e in each])

    def made_with(self) -> dict[str, Any]:
        return super().made_with() | {"epsilon": self.epsilon.tolist()}

    def choose(self, rows: Tensor) -> Tensor:
        best = self.learner.predict(rows, 1).argmax(dim=1)
        chance = torch.stack([torch.rand((), generator=random) for random in self.randoms])
        other = torch.stack([torch.randint(self.actions, (), generator=random) for random in self.randoms])
        return torch.where(chance < self.epsilon, other, best)
