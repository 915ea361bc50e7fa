"""What a bandit plays against: each round a context, and a reward for the action that is taken."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobbb._support import checks, text


class Round(NamedTuple):
    """One round: what the agent sees, and what each of its K actions would bring.

    `context` has shape `(features,)`; `expected` is E[reward | context, action] and `rewards` one draw
    of the rewards themselves, both of shape `(K,)`. The agent learns `rewards[action]` alone. Because
    the draw does not depend on the action, agents that play from one seed have the same luck.
    """

    context: Tensor
    expected: Tensor
    rewards: Tensor


class Environment(ABC):
    """A contextual bandit; to make your own, set `features` and `actions` and write `draw`.

    >>> class Coin(Environment):
    ...     features, actions = 1, 2
    ...     def draw(self, random):
    ...         side = torch.rand(1, generator=random).round()
    ...         pay = torch.cat([side, 1 - side])
    ...         return Round(context=side, expected=pay, rewards=pay)
    """

    features: int
    actions: int

    @abstractmethod
    def draw(self, random: torch.Generator) -> Round:
        """The next round, which depends on `random` and on nothing that an earlier round has changed.

        Several runs draw from one environment in turn, and a resumed game begins with a new one.
        """

    def check(self, given: Round) -> Round:
        """`given`, if it is a round whose shapes are what `features` and `actions` say.

        Raises:
            ValueError: If it is not; it names the part.
        """
        if not isinstance(given, Round):
            raise ValueError(f"{type(self).__name__}.draw must return a Round, got {text.short(given)}")
        wanted = {"context": self.features, "expected": self.actions, "rewards": self.actions}
        for name, length in wanted.items():
            checks.shaped(f"{type(self).__name__}.draw: {name}", getattr(given, name), (length,))
        return given
