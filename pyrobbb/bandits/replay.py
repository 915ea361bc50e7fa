"""The last interactions of several runs, from which training draws its minibatches."""

from typing import Any

import torch
from torch import Tensor

from pyrobbb._support import checks


class Replay:
    """A ring of the last `capacity` interactions for each of R runs that go in step.

    Args:
        runs: R.
        width: Length of one input row.
        capacity: Interactions kept; the oldest gives way to the newest (the paper: 4096).
    """

    def __init__(self, runs: int, width: int, capacity: int = 4096) -> None:
        self.runs = checks.count("runs", runs)
        self.capacity = checks.count("capacity", capacity)
        self.x = torch.zeros(runs, capacity, checks.count("width", width))
        self.y = torch.zeros(runs, capacity, 1)
        self.seen = 0
        self._first = torch.arange(runs)[:, None] * capacity  # of each run, in the flattened rings

    def __len__(self) -> int:
        """Interactions held, for each run."""
        return min(self.seen, self.capacity)

    @torch.no_grad()
    def add(self, x: Tensor, y: Tensor) -> None:
        """Keep one interaction of each run: `x` of shape (R, width), rewards `y` of shape (R,)."""
        at = self.seen % self.capacity
        self.x[:, at] = x
        self.y[:, at, 0] = y
        self.seen += 1

    def indices(self, batches: int, size: int, randoms: list[torch.Generator]) -> Tensor:
        """Which interactions make up the next minibatches, `(batches, R, size)`, drawn with replacement."""
        if not len(self):
            raise ValueError("there is nothing to draw from: no interaction has been added yet")
        drawn = [torch.randint(len(self), (batches, size), generator=random) for random in randoms]
        return torch.stack(drawn, dim=1)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at `indices` (R, size): inputs (R, size, width) and rewards (R, size, 1)."""
        flat = (indices + self._first).flatten()
        x = self.x.flatten(0, 1).index_select(0, flat).view(*indices.shape, -1)
        return x, self.y.flatten(0, 1).index_select(0, flat).view(*indices.shape, 1)

    def state_dict(self) -> dict[str, Any]:
        """Everything it holds."""
        return {"x": self.x[:, : len(self)].clone(), "y": self.y[:, : len(self)].clone(), "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave."""
        self.seen = state["seen"]
        self.x[:, : len(self)] = state["x"]
        self.y[:, : len(self)] = state["y"]
