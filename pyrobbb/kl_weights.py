"""How much of the KL divergence each minibatch carries (section 3.4 of the paper).

The paper's minibatch cost is F_i = pi_i KL - log P(D_i | w) with sum_i pi_i = 1 (eq. 9). Pyro's plate
counts the likelihood N/B times, so its loss is N/B * F_i and the KL there has the weight
`N/B * weight(i, M, epoch, B/N)`; `Weighted` applies it to the weight sites of both model and guide: a
weight on only one of them would not optimise a free energy at all.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyrobbb._support import checks


def of_rows(site: Any) -> bool:
    """Whether a site is observed once for each row, in the plate "data".

    What a model observes outside it, such as a measurement of a prior's scale or a `pyro.factor`, counts once
    for all rows, as the prior does: it belongs to the KL term, not to the likelihood.
    """
    return bool(site["is_observed"]) and any(frame.name == "data" for frame in site["cond_indep_stack"])


class Weighted(Messenger):
    """Effect handler: what is observed of row i (`of_rows`) counts `counts[i]` times; once without `counts`.

    The log-density of every other site, latent or observed, counts `others` times. `counts` is `(B,)`.
    """

    def __init__(self, others: float = 1.0, counts: Tensor | None = None) -> None:
        super().__init__()
        self.others, self.counts = others, counts

    def _pyro_sample(self, msg: Any) -> None:
        factor = self.counts if of_rows(msg) else self.others
        if factor is not None:
            msg["scale"] = msg["scale"] * factor


class KLWeight(ABC):
    """The weight pi_i of the KL in minibatch i = 1..M of an epoch, which holds B of the N data."""

    @abstractmethod
    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        """pi_i for minibatch `i` of `M` in `epoch` (from 1), which holds `batch_fraction` = B/N."""


def within(kl: Any) -> Iterator[KLWeight]:
    """A weight, and those that it multiplies (`then`)."""
    while kl is not None:
        yield kl
        kl = getattr(kl, "then", None)


@dataclass(frozen=True, kw_only=True)
class Uniform(KLWeight):
    """pi_i = 1/M (eq. 8); a short last minibatch carries its share of the data, so that the sum is 1."""

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        return batch_fraction


@dataclass(frozen=True, kw_only=True)
class Geometric(KLWeight):
    r""":math:`\pi_i = 2^{M-i} / (2^M - 1)`, the paper's scheme: the first minibatch carries half.

    Computed as :math:`2^{-i} / (1 - 2^{-M})`, which is finite for every M.
    """

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        return 2.0**-i / (1.0 - 2.0**-M)


@dataclass(frozen=True, kw_only=True)
class WarmUp(KLWeight):
    r""":math:`\min(e / E, 1)\, \pi_i` in epoch e = 1, 2, ..., with :math:`\pi_i` of `then` and `epochs` E."""

    epochs: int
    then: KLWeight = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        checks.count("epochs", self.epochs)

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        return min(epoch / self.epochs, 1.0) * self.then.weight(i, M, epoch, batch_fraction)


@dataclass(frozen=True, kw_only=True)
class Tempered(KLWeight):
    """A departure from Bayes: `then`, multiplied by a `temperature`. Below 1 the posterior is "cold".

    The result minimises temperature * KL - E log P(D | w): `temperature` times the free energy under the
    likelihood P(D | w)^(1/temperature). So the likelihood alone is tempered; the cold posterior of Wenzel et
    al. 2020 tempers the prior as well.
    """

    temperature: float
    then: KLWeight = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        checks.positive("temperature", self.temperature)

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        return self.temperature * self.then.weight(i, M, epoch, batch_fraction)


@dataclass(frozen=True, kw_only=True)
class Full(KLWeight):
    """A negative control: the whole KL on every minibatch, M times too much (a published error)."""

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        return 1.0
