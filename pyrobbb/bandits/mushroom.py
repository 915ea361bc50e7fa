"""The mushroom bandit: eat or leave each of 8124 mushrooms of the UCI table, some of them poisonous."""

import gzip
from functools import cache
from importlib import resources

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyrobbb.bandits.environment import Environment, Round

LEAVE, EAT = 0, 1


class Mushroom(Environment):
    r"""Blundell et al. 2015, section 5.3 (after Guez 2015): leave for 0, eat for +5 or -35.

    .. math::
        r(\text{leave}) = 0, \quad r(\text{eat} \mid \text{edible}) = 5, \quad
        r(\text{eat} \mid \text{poisonous}) = \begin{cases}
            5 & \text{with probability } 1/2 \\ -35 & \text{otherwise}\end{cases}

    so that a poisonous mushroom is worth -15 on average and an oracle earns 5 or 0. Contexts are drawn
    with replacement from the rows of the table. Expected regret per round: 4.9101 for actions at random,
    2.5899 for leaving all, 7.2304 for eating all.

    The context is the one-hot code of the 22 attributes, 117 values of 0 and 1; a missing value (of
    stalk-root only) counts as a level of its own. Actions: `LEAVE` = 0, `EAT` = 1.

    The table ships with this package: "Mushroom", UCI Machine Learning Repository (1981),
    https://doi.org/10.24432/C5959T, licence CC BY 4.0, with the level names written out.
    """

    features = 117
    actions = 2

    def __init__(self) -> None:
        self.contexts, self.edible = table()

    def draw(self, random: torch.Generator) -> Round:
        row = int(torch.randint(len(self.edible), (), generator=random))
        lucky = bool(torch.rand((), generator=random) < 0.5)
        edible = bool(self.edible[row])
        return Round(
            self.contexts[row],
            torch.tensor([0.0, 5.0 if edible else -15.0]),
            torch.tensor([0.0, 5.0 if edible or lucky else -35.0]),
        )


@cache
def table() -> tuple[Tensor, Tensor]:
    """The contexts, float32 of shape (8124, 117), and which rows are edible, bool of shape (8124,)."""
    packed = resources.files(__package__).joinpath("mushroom.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode("utf-8").splitlines()
    rows = np.loadtxt(lines, dtype=str, delimiter=",", skiprows=1)
    edible = torch.from_numpy(rows[:, 0] == "edible")
    levels = [torch.from_numpy(np.unique(column, return_inverse=True)[1]) for column in rows.T[1:]]
    return torch.cat([one_hot(level) for level in levels], dim=1).float(), edible
