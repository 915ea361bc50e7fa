r"""SWAG: a normal fitted to the course of an optimiser after it has converged (a baseline).

Of T snapshots :math:`\theta_i` with running means :math:`\bar\theta_i` (Maddox et al. 2019, arXiv 1902.02476,
section 3.3 and eq. 1), K of them for the low rank:

.. math::
    w = \bar\theta + \tfrac{1}{\sqrt 2} \Sigma_{diag}^{1/2} z_1
        + \tfrac{1}{\sqrt{2 (K - 1)}} \hat D z_2, \qquad
    \Sigma_{diag} = \overline{\theta^2} - \bar\theta^2, \quad \hat D_i = \theta_i - \bar\theta_i
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.inference.method import Log, MakeGuide, Rows, check_gathered, check_warm_up
from pyrobbb.inference.point import Descent, DescentStep, refuse_bounded
from pyrobbb.initializers import Initial, from_network


class SWAGGuide(FlatGuide):
    """A normal with a diagonal and a low-rank part of equal weight; a point until there are two snapshots."""

    gathers = "the snapshots of the whole training"

    def __init__(self, model: BayesianNetwork, rank: int, init_loc: Initial = from_network) -> None:
        super().__init__(model, init_loc)
        like = self.loc.detach()
        for name in ("mean", "squares"):  # the mean, and the sum of squared deviations from it
            self.register_buffer(name, torch.zeros_like(like))
        self.register_buffer("deviations", like.new_zeros(rank, len(like)))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("taken", torch.zeros((), dtype=torch.long))  # steps

    @property
    def form(self) -> dict[str, Any]:
        return {"rank": len(self.deviations)}

    def restart(self) -> None:
        for gathered in (self.mean, self.squares, self.deviations, self.seen):
            gathered.zero_()
        self.taken = torch.zeros((), dtype=torch.long)  # on the host, where reading it waits for nothing

    def collect(self) -> None:
        """Take a snapshot of `loc`."""
        n, theta = int(self.seen), self.loc.detach()
        before = theta - self.mean  # by Welford's sums: those of squares themselves would cancel
        self.mean.add_(before / (n + 1))
        self.squares.add_(before * (theta - self.mean))
        self.deviations[n % len(self.deviations)] = theta - self.mean
        self.seen += 1

    @property
    def diagonal(self) -> Tensor:
        """The variance of the snapshots."""
        return self.squares / self.seen.clamp_min(1)

    @property
    def low_rank(self) -> Tensor:
        """The last deviations from the running mean, `(at most K, D)`."""
        return self.deviations[: int(self.seen)]

    def draw(self) -> Tensor:
        """The mean of the snapshots, plus a deviation."""
        loc, columns = self.loc, self.low_rank
        if len(columns) < 2:
            return loc
        low = torch.randn_like(columns[:, 0]) @ columns / (2 * (len(columns) - 1)) ** 0.5
        return self.mean + (self.diagonal / 2).sqrt() * torch.randn_like(loc) + low

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of each weight."""
        columns = self.low_rank
        if len(columns) < 2:
            return super().loc_and_scale()
        variance = self.diagonal / 2 + columns.square().sum(0) / (2 * (len(columns) - 1))
        return self.split(self.mean), self.split(variance.sqrt())


class SWAGStep(DescentStep):
    """A step of the descent, after which a snapshot may be due."""

    replayable = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        method = self.method
        every = int(round((1 - method.start) * self.steps, 9)) // method.snapshots
        if self.steps and every < 1:
            raise ValueError(
                f"of {self.steps} steps too few come after start for {method.snapshots} snapshots; train for "
                f"more epochs, or take fewer snapshots"
            )
        self.due = {self.steps - every * i for i in range(method.snapshots)}

    def optimise(self) -> None:
        super().optimise()
        self.guide.taken += 1
        if int(self.guide.taken) in self.due:
            self.guide.collect()


@dataclass(frozen=True, kw_only=True)
class SWAG(Descent):
    """Snapshots at equal distances in the last part of a descent to the maximum a posteriori.

    `optim` is what it follows: the paper's is plain SGD at a constant, high rate.

    Args:
        snapshots: T; all of them make the mean and the diagonal.
        rank: K; the last K snapshots make the low-rank part.
        start: The share of all steps before the collection begins; the first snapshot comes one interval,
            (1 - start) / snapshots of all steps, later.
        init_loc: Where the weights start (`pyrobbb.initializers`).
    """

    snapshots: int = 30
    rank: int = 20
    start: float = 0.75

    takes = SWAGStep
    planned = True
    holds = SWAGGuide
    why = "it follows the descent of a point"

    def __post_init__(self) -> None:
        checks.count("snapshots", self.snapshots, minimum=2)
        checks.count("rank", self.rank, minimum=2)
        if self.rank > self.snapshots:
            raise ValueError(f"rank must not exceed snapshots={self.snapshots}, got {self.rank}")
        checks.share("start", self.start, zero=True)

    def check(self, model: BayesianNetwork, guide: Any, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        refuse_bounded(self, model, guide)
        check_warm_up(self, options.kl, self.start * options.epochs)

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> SWAGGuide:
        return SWAGGuide(model, self.rank, self.init_loc)

    def finish(self, model: BayesianNetwork, guide: Any, rows: Rows, log: Log) -> bool:
        check_gathered(self, "snapshots", int(guide.seen), self.snapshots)
        return False
