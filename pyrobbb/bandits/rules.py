"""The two rules of choice: Thompson sampling from q(w), and epsilon-greedy."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.bandits.agent import Agent


class ThompsonSampling(Agent):
    r"""Takes :math:`\arg\max_a \frac1S \sum_{s=1}^S E[r \mid x, a, w_s]` with fresh :math:`w_s \sim q`.

    Of actions with the same value it takes the first.

    Source: Blundell et al. 2015, sections 4.1 and 5.3, which averages S = 2 draws.

    The arguments are those of `Agent`; S is its `draws`.
    """

    def choose(self, rows: Tensor) -> Tensor:
        return self.learner.predict(rows, self.draws).argmax(dim=1)


class EpsilonGreedy(Agent):
    r"""Takes :math:`\arg\max_a E[r \mid x, a]`, or with probability epsilon an action at random.

    Of actions with the same value it takes the first.

    Args:
        epsilon: One probability for all runs, or one for each; the other arguments are those of `Agent`.
        draws: Weight draws over which a Bayesian learner's expected reward is averaged; the time of a choice
            grows with them.
    """

    def __init__(
        self, *args: Any, epsilon: float | Sequence[float] = 0.05, draws: int = 30, **kwargs: Any
    ) -> None:
        super().__init__(*args, draws=draws, **kwargs)
        each = list(epsilon) if isinstance(epsilon, Iterable) else [epsilon] * self.learner.runs
        if len(each) != self.learner.runs:
            raise ValueError(f"epsilon needs one value per run ({self.learner.runs}), got {len(each)}")
        self.epsilon = torch.tensor([checks.between("epsilon", e, 0, 1) for e in each])

    def made_with(self) -> dict[str, Any]:
        return super().made_with() | {"epsilon": self.epsilon.tolist()}

    def choose(self, rows: Tensor) -> Tensor:
        best = self.learner.predict(rows, self.draws).argmax(dim=1)
        chance = torch.stack([torch.rand((), generator=random) for random in self.randoms])
        other = torch.stack([torch.randint(self.actions, (), generator=random) for random in self.randoms])
        return torch.where(chance < self.epsilon, other, best)
