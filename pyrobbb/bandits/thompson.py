"""Thompson sampling: draw weights from q(w), and take the action that is best under the draw."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.bandits.agent import Agent


class ThompsonSampling(Agent):
    r"""Takes :math:`\arg\max_a \frac1S \sum_{s=1}^S E[r \mid x, a, w_s]` with fresh :math:`w_s \sim q`.

    Source: Blundell et al. 2015, sections 4.1 and 5.3, which averages S = 2 draws.

    Args:
        draws: Weight draws per action taken, S; the other arguments are those of `Agent`.
    """

    def __init__(self, *args: Any, draws: int = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.draws = checks.count("draws", draws)

    def made_with(self) -> dict[str, Any]:
        return super().made_with() | {"draws": self.draws}

    def choose(self, rows: Tensor) -> Tensor:
        return self.learner.predict(rows, self.draws).argmax(dim=1)
