"""A guide that holds draws: what a sampler leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.initializers import Initial, network


class EmpiricalGuide(FlatGuide):
    """Each of the stored draws with the same probability; before the first, the sampler's position `loc`.

    Args:
        model: As of `FlatGuide`.
        draws: How many it has room for.
        init_loc: As of `FlatGuide`.
    """

    def __init__(self, model: BayesianNetwork, draws: int, init_loc: Initial = network) -> None:
        super().__init__(model, init_loc)
        self.register_buffer("stored", self.loc.new_zeros(draws, self.loc.numel()))
        self.register_buffer("kept", torch.zeros((), dtype=torch.long))

    @property
    def full(self) -> bool:
        """Whether every draw has been stored."""
        return int(self.kept) == len(self.stored)

    def keep(self, flat: Tensor) -> None:
        """Store one more draw, of coordinates `(D,)`."""
        self.stored[int(self.kept)] = flat
        self.kept += 1

    def draw(self) -> Tensor:
        """One of the stored draws."""
        loc, kept = self.loc, int(self.kept)
        return self.stored[torch.randint(kept, ())] if kept else loc

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of the stored draws."""
        kept = int(self.kept)
        if kept < 2:
            return super().loc_and_scale()
        values = self.values(self.stored[:kept])
        means = {name: value.mean(0) for name, value in values.items()}
        return means, {name: value.std(0) for name, value in values.items()}
