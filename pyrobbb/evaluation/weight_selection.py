"""Some of a network's weights, named or at random: those whose draws are kept for ArviZ."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.bnn import BayesianNetwork


class WeightSelection:
    """Some of a model's weights, by place; labels read `0.weight[12,33]`.

    Args:
        model: The model with the weights.
        weights: How many at random, or names: a parameter (`4.bias`), a pattern of parameters
            (`*.bias`), one weight (`0.weight[12,33]`) or a row of them (`0.weight[12]`).
        seed: Which ones at random.

    Raises:
        ValueError: If a name matches no weight, or none is asked for.
    """

    def __init__(self, model: BayesianNetwork, weights: int | Sequence[str], seed: int = 0) -> None:
        self.shapes = {name: value.shape for name, value in model.initial().items()}
        sizes = [shape.numel() for shape in self.shapes.values()]
        starts = dict(zip(self.shapes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        if not isinstance(weights, Sequence):
            total, most = sum(sizes), checks.count("weights", weights)
            order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
            self.places = order[:most].sort().values
        elif not weights:
            raise ValueError("weights names no weight; give how many, or the names of some")
        else:
            names = [weights] if isinstance(weights, str) else weights  # a text's first letter may be a *
            places = [p for name in names for p in self._find(name, starts)]
            self.places = torch.tensor(sorted(set(places)))
        self.labels = [self._label(place, starts) for place in self.places.tolist()]

    def _find(self, text: str, starts: dict[str, int]) -> list[int]:
        name, bracket, index = text.partition("[")
        matches = [n for n in self.shapes if fnmatchcase(n, name)]
        found = []
        for site in matches:
            grid = torch.arange(starts[site], starts[site] + self.shapes[site].numel())
            grid = grid.reshape(self.shapes[site])
            try:
                part = grid[tuple(int(i) for i in index.rstrip("]").split(","))] if bracket else grid
            except (IndexError, ValueError):
                raise ValueError(
                    f"{text!r} is not a weight; {site} has shape {tuple(self.shapes[site])}"
                ) from None
            found += part.flatten().tolist()
        if not found:
            raise ValueError(f"{text!r} matches no weight; the parameters are {', '.join(self.shapes)}")
        return found

    def _label(self, place: int, starts: dict[str, int]) -> str:
        site = max((n for n in starts if starts[n] <= place), key=lambda n: starts[n])
        index = np.unravel_index(place - starts[site], self.shapes[site])
        return f"{site}[{','.join(str(i) for i in index)}]"

    def pick(self, weights: dict[str, Tensor]) -> Tensor:
        """The chosen entries of one draw `{site: value}`, as a vector."""
        flat = torch.cat([weights[name].reshape(-1) for name in self.shapes])
        return flat[self.places.to(flat.device)]
