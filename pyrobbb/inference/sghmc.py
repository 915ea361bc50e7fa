r"""Cyclical stochastic gradient Hamiltonian Monte Carlo: draws from p(w | D) with minibatch gradients.

With :math:`\tilde U` the minibatch estimate of :math:`U(w) = -\log P(w) - \log P(D \mid w)`, a velocity v and
the friction :math:`\eta` (Chen et al. 2014, arXiv 1402.4102, eq. 15; Zhang et al. 2020, arXiv 1902.03932,
algorithm 2):

.. math::
    v \leftarrow (1 - \eta)\, v - \alpha_k \nabla \tilde U(w) + N(0, 2 \eta \alpha_k), \qquad
    w \leftarrow w + v

Each of M cycles lowers the step size from :math:`\alpha_0` towards 0 (Zhang et al., eq. 1),

.. math::
    \alpha_k = \frac{\alpha_0}{2}
        \left[\cos\frac{\pi\, \mathrm{mod}(k - 1, \lceil K / M \rceil)}{\lceil K / M \rceil} + 1\right]

first without noise, to find a mode, then with noise, to draw from it. The minibatches' own
noise, which both papers would subtract, is left in, since reshuffled epochs cancel a part of it: where
:math:`\nabla \tilde U` has variance V, that of the draws is too large by a factor of about

.. math::
    1 + \frac{\alpha_k V}{2 \eta}
"""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pyrobbb._support import checks
from pyrobbb._support.network_state import buffers_kept
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.inference.energy import Energy
from pyrobbb.inference.method import Log, MakeGuide, OwnStep, Rows, check_gathered, check_warm_up
from pyrobbb.initializers import Initial, from_network
from pyrobbb.svi import Step, Terms

logger = logging.getLogger(__name__)

TOO_WIDE = 1.1  # times the posterior's standard deviations, from which on it is said


class SGHMCGuide(EmpiricalGuide):
    """The draws, and the share by which the noise of minibatches widened the variance at each."""

    def __init__(self, model: BayesianNetwork, draws: int, init_loc: Initial = from_network) -> None:
        super().__init__(model, draws, init_loc)
        self.register_buffer("excess", self.loc.new_zeros(draws))


@dataclass(frozen=True, kw_only=True)
class SGHMC(OwnStep):
    r"""Draws kept at equal distances in the noisy part of each cycle; `optim` and `schedule` are not used.

    Gradients of minibatches add noise that widens the draws, more for smaller batches and larger
    lr / friction; a warning says by how much, if it matters.

    Args:
        lr: :math:`N \alpha_0`: the first step size of a cycle, for the mean loss.
        friction: :math:`\eta`, 1 minus the momentum. A velocity of sqrt(lr / N) a step lasts 1 / friction
            steps; with all rows in a batch, that should cross the posterior. In minibatches less friction
            lets more of their noise through.
        cycles: M.
        draws: Draws kept in each cycle.
        exploring: The share of each cycle without noise.
        init_loc: Where the weights start (`pyrobbb.initializers`).
    """

    lr: float = 0.01
    friction: float = 0.1
    cycles: int = 4
    draws: int = 10
    exploring: float = 0.7
    init_loc: Initial = field(default=from_network, repr=False)

    planned = True
    samples = True
    holds = SGHMCGuide
    why = "its step is a sampler's"

    def __post_init__(self) -> None:
        checks.positive("lr", self.lr)
        checks.share("friction", self.friction, one=True)
        checks.count("cycles", self.cycles)
        checks.count("draws", self.draws)
        checks.share("exploring", self.exploring, zero=True)

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        check_warm_up(self, options.kl, 0)

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> SGHMCGuide:
        return SGHMCGuide(model, self.cycles * self.draws, self.init_loc)

    def step(
        self, model: BayesianNetwork, guide: Any, optimizer: Optimizer, first: Split, **options: Any
    ) -> Step:
        _check_still(model, guide, first)
        return SGHMCStep(
            self, model, guide, optimizer, first, options["steps"], options["fast"], options["log"]
        )

    def finish(self, model: BayesianNetwork, guide: Any, rows: Rows, log: Log) -> bool:
        check_gathered(self, "draws", int(guide.kept), self.cycles * self.draws)
        return False

    def warn(self, guide: Any, N: int, steps: int) -> None:
        wide = (1 + float(guide.excess[: int(guide.kept)].nanmean())) ** 0.5
        if wide > TOO_WIDE:
            logger.warning(
                "SGHMC: the noise of minibatches makes standard deviations about %.1f times too large, over "
                "all weights: take larger batches (all rows in one have none), or a smaller lr or more "
                "friction, for more epochs",
                wide,
            )


def _check_still(model: BayesianNetwork, guide: EmpiricalGuide, first: Split) -> None:
    """Raise ValueError if a call of the network in training changes what the next one gives."""
    energy = Energy(model, guide)

    def nll(seed: int) -> Tensor:
        with torch.no_grad(), isolated(seed, device=first.x.device):
            return energy(guide.loc, first.x, first.y)[1]

    with buffers_kept(model):
        moved = not torch.allclose(nll(0), nll(1), rtol=1e-5, equal_nan=True)
    if moved:
        raise ValueError(
            "SGHMC draws from one posterior, but the network changes with each call in training, as by "
            "dropout or a running mean: give it as it is to stay, network.eval()"
        )


class SGHMCStep(Step):
    """One step of the sampler; what it carries on lies in the optimiser's state, so in checkpoints."""

    def __init__(
        self,
        method: SGHMC,
        model: BayesianNetwork,
        guide: SGHMCGuide,
        optimizer: Optimizer,
        first: Split,
        steps: int,
        fast: str,
        log: Log,
    ) -> None:
        self.method, self.guide, self.optimizer = method, guide, optimizer
        self.N = model.N
        self.gradient = Energy(model, guide).prepared(guide.loc, first.x, first.y, steps, log, fast)
        self.recorded = self.gradient.recorded
        self.length = math.ceil(steps / method.cycles)
        self.quiet = math.ceil(round(method.exploring * self.length, 9))  # steps of a cycle without noise
        # counted from the end of a cycle, where the steps are smallest and the draws best
        last = steps - (method.cycles - 1) * self.length  # steps of the last cycle, which may be shorter
        lengths = [self.length] * (method.cycles - 1) + [last]
        every = (self.length - self.quiet) // method.draws
        self.keeps = [{length - 1 - every * s for s in range(method.draws)} for length in lengths]
        if every < 1 or min(self.keeps[-1]) < self.quiet:  # before its noise begins
            raise ValueError(
                f"{steps} steps in {method.cycles} cycles of {self.length} leave {max(last, 0)} to the last, "
                f"too few with noise for its {method.draws} draws; train for more epochs, in fewer cycles or "
                f"with fewer draws"
            )
        optimizer.state[guide.loc] = {
            "velocity": torch.zeros_like(guide.loc),
            "gradient": torch.full_like(guide.loc, torch.nan),  # of the step before
            "step": torch.zeros(()),
        }

    def check_still(self, rows: Split, model: nn.Module) -> None:
        loc = self.guide.loc.detach()
        self.gradient.check_still([loc, loc.new_ones(())], rows, model)

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        method, loc = self.method, self.guide.loc
        state: Any = self.optimizer.state[loc]
        cycle, place = divmod(int(state["step"]), self.length)
        prior, nll, gradient = self.gradient(loc.detach(), loc.new_full((), share), x, y, counts)
        rate = method.lr / self.N * 0.5 * (math.cos(math.pi * place / self.length) + 1)
        with torch.no_grad():
            velocity = state["velocity"]
            velocity.mul_(1 - method.friction).sub_(gradient, alpha=rate)
            if place >= self.quiet:
                velocity.add_(torch.randn_like(velocity), alpha=(2 * method.friction * rate) ** 0.5)
            loc.add_(velocity)
            if place in self.keeps[cycle]:
                # in one step the position hardly moves: gradients differ by their minibatches' noise
                V = (gradient - state["gradient"]).square().mean() / 2 * (1 - fraction)  # 0 for all rows
                self.guide.excess[int(self.guide.kept)] = rate * V / (2 * method.friction)
                self.guide.keep(loc)
            state["gradient"].copy_(gradient)
        state["step"] = state["step"].cpu() + 1  # on the host, where reading it waits for nothing
        self.optimizer.step()  # nothing has a gradient; a schedule wants to see that it was called
        return Terms(prior, nll)
