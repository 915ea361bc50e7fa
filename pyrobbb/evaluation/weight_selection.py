"""Some of a network's weights, named or at random: those whose draws are kept for ArviZ."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.flat import split
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
        chosen = torch.zeros(model.num_weights, dtype=torch.bool)
        parts = split(chosen, self.shapes)  # views, by which names choose
        if not isinstance(weights, Sequence):
            most = checks.count("weights", weights)
            chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))[:most]] = True
        elif not weights:
            raise ValueError("weights names no weight; give how many, or the names of some")
        else:
            for name in [weights] if isinstance(weights, str) else weights:  # whose first letter may be a *
                _choose(name, parts)
        self.places = chosen.nonzero()[:, 0]
        self.labels = [
            f"{site}[{','.join(map(str, index))}]"
            for site, part in parts.items()
            for index in part.nonzero().tolist()
        ]

    def pick(self, weights: dict[str, Tensor]) -> Tensor:
        """The chosen entries of one draw `{site: value}`, as a vector."""
        flat = torch.cat([weights[name].reshape(-1) for name in self.shapes])
        return flat[self.places.to(flat.device)]


def _choose(text: str, parts: Mapping[str, Tensor]) -> None:
    """Set to true what a text names."""
    name, bracket, index = text.partition("[")
    sites = [site for site in parts if fnmatchcase(site, name)]
    if not sites:
        raise ValueError(f"{text!r} matches no weight; the parameters are {', '.join(parts)}")
    for site in sites:
        try:
            parts[site][tuple(int(i) for i in index.rstrip("]").split(",")) if bracket else ()] = True
        except (IndexError, ValueError):
            shape = tuple(parts[site].shape)
            raise ValueError(f"{text!r} is not a weight; {site} has shape {shape}") from None
