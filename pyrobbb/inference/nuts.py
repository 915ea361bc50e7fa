r"""The exact answer for small networks: Hamiltonian Monte Carlo (Pyro's NUTS) on the same model.

Draws of :math:`p(w \mid D) \propto e^{-U(w)}` with :math:`U(w) = -\log P(w) - \log P(D \mid w)`, by
trajectories of a particle of energy :math:`U(w) + \tfrac12 v^T M^{-1} v` (Hoffman and Gelman 2014, arXiv
1111.4246).
"""

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from pyro import infer
from pyro.infer import MCMC
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.copies import own_copy
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.inference.collapsed import Collapsed
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.inference.energy import Energy
from pyrobbb.inference.method import Log, MakeGuide, OwnStep, Rows
from pyrobbb.kl_weights import Uniform
from pyrobbb.svi import Step

logger = logging.getLogger(__name__)

MANY = 10_000  # weights, for which the sampler is not made


class NUTSGuide(EmpiricalGuide):
    """The draws, in the order of the chain, and which of them ended a trajectory that diverged."""

    def __init__(self, model: BayesianNetwork, draws: int) -> None:
        super().__init__(model, draws)
        self.register_buffer("diverging", torch.zeros(draws, dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class NUTS(OwnStep):
    """The No-U-Turn sampler on all data, in double precision on the CPU; `epochs` and `optim` are not used.

    A gradient costs a pass over all data and a draw up to 2^max_tree_depth gradients: for hundreds of
    weights, not more. An interrupted chain starts again.

    Args:
        warmup: Draws that adapt step size and mass matrix, and are discarded.
        draws: Draws kept, of each chain.
        start: Standard deviation of the starting weights.
        max_tree_depth: Bound on the length of a trajectory.
        collapsed: Integrate the last layer out (`pyrobbb.inference.collapsed`), where the noise and its prior
            are normal: the same posterior, whose chains mix far sooner.
    """

    warmup: int = 500
    draws: int = 500
    start: float = 1.0
    max_tree_depth: int = 7
    collapsed: bool = False

    steps = False
    samples = True
    holds = NUTSGuide
    why = "it draws from the posterior of all data at once"

    def __post_init__(self) -> None:
        for name in ("warmup", "max_tree_depth"):
            checks.count(name, getattr(self, name))
        checks.count("draws", self.draws, minimum=4)  # as Pyro's diagnostics need
        checks.positive("start", self.start)
        checks.check_kinds(collapsed=(self.collapsed, bool))

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        if not isinstance(options.kl, Uniform):  # first: there are no minibatches for it to weigh
            raise ValueError(
                "NUTS draws from the posterior itself, in which the KL has no weight but 1; use kl=uniform"
            )
        super().check(model, guide, options, ranks)

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> NUTSGuide:
        return NUTSGuide(model, self.draws)

    def step(self, *args: Any, **kwargs: Any) -> Step:
        return Step()  # none is taken

    def finish(self, model: BayesianNetwork, guide: NUTSGuide, rows: Rows, log: Log) -> bool:
        if int(guide.kept) == self.draws:
            return False
        data = rows().whole()  # mapped files too
        model = own_copy(model).cpu().double().eval()  # without dropout: one energy for one w
        x, y = _in_double(data.x), _in_double(data.y)
        double = deepcopy(guide).cpu().double()
        energy = Collapsed(model, double, x) if self.collapsed else Energy(model, double)
        counts = None if data.weights is None else _in_double(data.weights)
        if energy.size > MANY:
            log(f"NUTS draws {energy.size:,} numbers together: it is for hundreds, and may take hours here")
        initial = {"z": self.start * torch.randn(energy.size, dtype=torch.float64)}
        gradients = (self.warmup + self.draws) * 2 ** (self.max_tree_depth - 1)
        gradient = energy.prepared(initial["z"], x, y, gradients, log)
        one = torch.ones((), dtype=torch.float64)

        def potential(at: Weights) -> Tensor:
            return _Energies.apply(at["z"], lambda z: gradient(z, one, x, y, counts))

        _check_start(potential, initial)
        kernel = infer.NUTS(potential_fn=potential, max_tree_depth=self.max_tree_depth)
        run = MCMC(kernel, self.draws, self.warmup, initial_params=initial, disable_progbar=True)
        run.run()
        guide.kept.zero_()  # an interruption may have left some
        for flat in run.get_samples()["z"]:
            guide.keep(energy.whole(flat, x, y, counts).to(guide.loc))
        guide.diverging.zero_()
        for where in run.diagnostics()["divergences"].values():
            guide.diverging[where] = True
        divergences = int(guide.diverging.sum())
        log(f"NUTS drew {self.draws} times, {divergences} of them divergent")
        if 10 * divergences > self.draws:
            logger.warning(
                "NUTS diverged in %d of its %d draws: the chain may be stuck and its draws far from the "
                "posterior; give it a longer warmup",
                divergences, self.draws,
            )  # fmt: skip
        return True


class _Energies(torch.autograd.Function):
    """U(z), with the gradient that its program computes beside it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, gradient: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        prior, nll, found = gradient(z.detach())
        ctx.save_for_backward(found)
        return prior + nll

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (found,) = ctx.saved_tensors
        return outer[0] * found, None


def _check_start(potential: Callable[[Weights], Tensor], initial: Weights) -> None:
    """ValueError unless the starting weights have an energy, the same at each call."""
    once, again = (_start_energy(potential, initial) for _ in range(2))
    if bool(once.isnan()):
        raise ValueError(
            "NUTS: the energy of the starting weights is not a number: scale x and y, or let the weights "
            "start nearer to 0 (start)"
        )
    if not torch.allclose(once, again, rtol=1e-5):
        raise ValueError(
            f"NUTS needs one energy for one draw of the weights, but two calls of the network gave "
            f"{float(once):.6g} and {float(again):.6g}: it has noise of its own, or changes its buffers"
        )


def _start_energy(potential: Callable[[Weights], Tensor], initial: Weights) -> Tensor:
    """NaN where a matrix is singular, as Pyro takes it."""
    try:
        return potential(initial)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return torch.tensor(torch.nan)


def _in_double(values: Tensor) -> Tensor:
    values = values.cpu()
    return values.double() if values.is_floating_point() else values  # class numbers and tokens stay whole
