"""What chains that take their steps together have in common: `batched_chains`, `interleaved_chains`."""

from collections.abc import Sequence
from typing import Any

from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms
from pyrobbb.training.chain import Chain


class JointChains:
    """Takes the steps of several chains at once."""

    chains: list[Chain]

    def __call__(self, parts: Sequence[Split], kl_weights: Sequence[float]) -> Terms:
        """Step every chain on a minibatch of its own; the terms have a row for each."""
        raise NotImplementedError

    def take_many(self) -> list[Terms]:
        """The next steps of every chain with one launch each; asked where every chain has a graph."""
        raise NotImplementedError

    def check_still(self) -> None:
        """Raise ValueError if a callback changed a network so that the joint step computes another by now."""

    def keep_noise(self) -> None:
        """Leave each chain's random state with it."""

    def release(self) -> None:
        """Let each chain step alone from here on."""


def check_in_step(chains: Sequence[Chain]) -> None:
    """NotBatchableError unless the chains can take their steps at the same time."""
    first = chains[0]
    for c in chains:
        if c.ranks.size > 1:
            raise NotBatchableError("trainings on several processes are not batched")
        same(
            ("devices", first.device, c.device),
            ("numbers of data", len(first.train), len(c.train)),
            ("batch sizes", first.batch_size, c.batch_size),
            ("epochs", first.epochs, c.epochs),
            ("places to resume from", (first.epoch, first.batch), (c.epoch, c.batch)),
        )


def same(*each: tuple[str, Any, Any]) -> None:
    for name, mine, theirs in each:
        if mine != theirs:
            raise NotBatchableError(f"trainings with different {name}: {mine} and {theirs}")
