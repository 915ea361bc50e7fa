"""A guide that holds draws: what a sampler leaves."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.initializers import Initial, from_network


class EmpiricalGuide(FlatGuide):
    """Each of the stored draws with the same probability; before the first, the sampler's position `loc`.

    Args:
        model: As for `FlatGuide`.
        draws: How many it has room for.
        init_loc: As for `FlatGuide`.
    """

    gathers = "the draws of the whole training"

    def __init__(self, model: BayesianNetwork, draws: int, init_loc: Initial = from_network) -> None:
        super().__init__(model, init_loc)
        self.register_buffer("stored", self.loc.new_zeros(draws, self.loc.numel()))
        self.register_buffer("kept", torch.zeros((), dtype=torch.long))

    @property
    def form(self) -> dict[str, Any]:
        return {"draws in all": len(self.stored)}

    def restart(self) -> None:
        self.kept.zero_()

    def keep(self, flat: Tensor) -> None:
        """Store one more draw, of coordinates `(D,)`."""
        self.stored[int(self.kept)] = flat
        self.kept += 1

    def draw(self) -> Tensor:
        """One of the stored draws."""
        loc, kept = self.loc, int(self.kept)
        return self.stored[torch.randint(kept, ())] if kept else loc

    def place(self, number: int, seed: int) -> int:
        """Which of the stored draws is draw `number` of a posterior with this seed.

        However few are asked for, they are spread over the whole chain (`_golden`), none twice before all
        were there once. Where the seeds 0, 1, 2, ... begin in that order is spread over it in the same way,
        so that they have few draws in common.
        """
        order = _golden(max(1, int(self.kept)))
        return order[(number + order[seed % len(order)]) % len(order)]

    def stored_draw(self, number: int, seed: int) -> Weights:
        """Draw `number` of a posterior with this seed; the sampler's position while there is none."""
        return self.values(self.stored[self.place(number, seed)] if int(self.kept) else self.loc)

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of the stored draws."""
        kept = int(self.kept)
        if kept < 2:
            return super().loc_and_scale()
        values = self.values(self.stored[:kept])
        means = {name: value.mean(0) for name, value in values.items()}
        return means, {name: value.std(0) for name, value in values.items()}


@cache
def _golden(size: int) -> list[int]:
    """The numbers below `size` in an order of which any stretch is spread over all of them.

    They are the ranks of the multiples of the golden section, modulo 1. Whole steps round and round may fall
    into a short cycle instead: three steps of 27 in 40 are one.
    """
    multiples = torch.arange(size, dtype=torch.float64) * (5**0.5 - 1) / 2 % 1
    return multiples.argsort().argsort().tolist()
