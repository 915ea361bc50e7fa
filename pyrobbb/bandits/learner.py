"""An agent's model: the expected reward of an input, for R runs side by side, and how it learns."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class Learner(ABC):
    """E[reward | row], where a row is what the agent makes of a context and an action.

    Everything is stacked over `runs` independent runs: run r learns from its own
    rows alone, with its own weights and its own noise.
    """

    runs: int

    @abstractmethod
    def predict(self, rows: Tensor, draws: int) -> Tensor:
        """Expected rewards of `rows` (R, K, width), shape (R, K), averaged over `draws` weight draws."""

    @abstractmethod
    def train(self, x: Tensor, y: Tensor, share: float) -> None:
        """One update on a minibatch: `x` (R, B, width), `y` (R, B, 1); `share` is the KL's pi_i (eq. 9)."""

    def made_with(self) -> dict[str, Any]:
        """The settings that a resumed game must share, as plain values: its rates, its networks."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, as tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave."""
