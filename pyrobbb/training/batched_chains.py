"""Several chains of a small network as one batch of steps: restarts, ensembles, settings of a prior.

A small network's step is mostly call overhead, not arithmetic; R in one program cost little more than one.
Every chain keeps its own data order, noise, optimiser, schedule, history and checkpoint.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support.flat import identical
from pyrobbb._support.network_state import buffers_kept
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb._support.text import kind_and_reason
from pyrobbb.accelerated.agreement import Seen, difference, gradients, seen
from pyrobbb.accelerated.batched_step import NotBatchableError, StackedDescent, StackedStep
from pyrobbb.accelerated.compilation_cost import MEAN_FIELD, POINT, Prepare, fastest, ways
from pyrobbb.accelerated.compile import near
from pyrobbb.accelerated.dispatch import element_wise
from pyrobbb.accelerated.fast_step import NotFastError
from pyrobbb.accelerated.mean_field_step import MeanFieldStep
from pyrobbb.accelerated.prior_segments import PriorSegment, prior_segments
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.data.dataset import Split
from pyrobbb.inference.point import DescentStep
from pyrobbb.svi import Terms
from pyrobbb.training.chain import Chain
from pyrobbb.training.joint_chains import JointChains, check_in_step, same

LARGEST = 400_000  # weights times draws of a chain; larger ones are bound by memory, not by calls


def _segments(chain: Chain) -> list[PriorSegment]:
    """What the step of all chains takes as the prior of this one."""
    if isinstance(chain.step, DescentStep):
        return prior_segments({name: chain.model.prior_of(name) for name in chain.model.sites})
    return element_wise(chain.model, chain.guide, chain.train.head(1))


def _drawn(step: MeanFieldStep | ProgramStep) -> Tensor:
    """What a step alone draws from torch's random state: noise (S, D), or the point (D,) of a descent."""
    if isinstance(step, DescentStep):
        return step.guide.at()
    parts = []
    for _ in range(torch.Size(step.noise_shape).numel() // step.normals.values.numel()):
        step.normals.draw()
        parts.append(step.normals.values.clone())
    return torch.cat(parts).reshape(step.noise_shape)


class BatchedChains(JointChains):
    """Takes one step of several chains at once.

    Args:
        chains: See `pyrobbb.training.trainer.train`.
        fast: "auto", "compiled" or "eager".

    Raises:
        NotBatchableError: If they cannot be batched.
    """

    def __init__(self, chains: Sequence[Chain], fast: str) -> None:
        self.chains = list(chains)
        self.alone: list[MeanFieldStep | ProgramStep] = []
        first = self._check_alike()
        point = isinstance(first.step, DescentStep)
        stacked, savings = (StackedDescent, POINT) if point else (StackedStep, MEAN_FIELD)
        with isolated(), ExitStack() as stack:
            for chain in self.chains:
                stack.enter_context(buffers_kept(chain.model))
            try:
                segments = [_segments(chain) for chain in self.chains]
            except NotFastError as reason:
                raise NotBatchableError(f"they cannot be trained together: {reason}") from reason
            parts = [c.train.head(first.batch_size) for c in self.chains]
            models = [c.model for c in self.chains]
            guides: list[Any] = [c.guide for c in self.chains]
            if any([*guide.shapes.items()] != [*guides[0].shapes.items()] for guide in guides):
                raise NotBatchableError("their networks have different weights")
            samples = self.alone[0].noise_shape[0]
            each = models[0].num_weights * samples
            if each > LARGEST:
                raise NotBatchableError(f"steps over {each:,} weights times draws are faster one at a time")

            batch, noise = _joined(parts), self._draw(advance=False)

            def make(prepare: Prepare | None) -> StackedStep:
                return stacked(models, guides, segments, batch, prepare, noise)

            steps, R = first.epochs * first.M, len(chains)
            self.step = fastest(make, ways(fast, each * R, steps, savings, calls=R), first.log)
            self._compare(parts, noise)
            if self.step.run.recorded and (changed := first.changed_by_a_call()):
                raise NotBatchableError(f"the network changes {changed} when it is called")

    def _check_alike(self) -> Chain:
        first = self.chains[0]
        check_in_step(self.chains)
        if first.device.type != "cpu":
            raise NotBatchableError(f"trainings are batched on the CPU only, but these are on {first.device}")
        for c in self.chains:
            if not isinstance(c.step, MeanFieldStep | ProgramStep) or len(c.step.noise_shape) != 2:
                raise NotBatchableError(
                    "each training must take the fast path with a mean-field normal guide, or descend to a "
                    "point"
                )
            self.alone.append(c.step)
            same(
                ("methods", type(first.inference).__name__, type(c.inference).__name__),
                ("shapes of an input", first.train.head(1).x.shape, c.train.head(1).x.shape),
                ("draws per step", self.alone[0].noise_shape[0], c.step.noise_shape[0]),
                ("likelihoods", repr(first.model.likelihood), repr(c.model.likelihood)),
            )
        return first

    def _compare(self, parts: Sequence[Split], noise: Tensor) -> None:
        """NotBatchableError unless each chain's own step sees the same terms and gradients."""
        at = torch.get_rng_state()
        buffers = [*self.chains[0].model.buffers()]
        before = [buffer.clone() for buffer in buffers]
        try:
            terms = self._evaluate(parts, [1.0] * len(parts), noise)
        except RuntimeError as error:  # a module that torch cannot batch, such as an LSTM
            raise NotBatchableError(f"the network cannot be batched: {kind_and_reason(error)}") from error
        if not all(map(identical, before, buffers)):
            raise NotBatchableError("the network changes its buffers, which each chain has for itself")
        if not torch.equal(at, torch.get_rng_state()):
            raise NotBatchableError("the network draws random numbers of its own, as dropout does")
        ours = self._seen(terms)
        for r, theirs in enumerate(self._alone(parts)):
            if (found := difference(ours[r], theirs)) is not None:
                raise NotBatchableError(f"training {r} has a different {found.name} in the batch than alone")

    def __call__(self, parts: Sequence[Split], kl_weights: Sequence[float]) -> Terms:
        terms = self._evaluate(parts, kl_weights, self._draw())
        for step in self.alone:
            step.optimise()
        return terms

    def check_still(self) -> None:
        """Raise ValueError if a callback changed a network so that the step computes another by now.

        One network computes all chains, and a recording of it keeps whatever is not a tensor as it was.
        """
        parts = [chain.train.head(self.chains[0].batch_size) for chain in self.chains]
        point = isinstance(self.chains[0].step, DescentStep)  # whose gradients may be what rounding leaves
        changed = not point and any(chain.changed for chain in self.chains)
        with ExitStack() as stack:
            for chain in self.chains:
                stack.enter_context(buffers_kept(chain.model))
            terms = self._evaluate(parts, [1.0] * len(parts), self._draw(advance=False))
            together = self._seen(terms)
            for r, theirs in enumerate(self._alone(parts)):
                other = not near(together[r][1], theirs[1], 0.0)
                if changed and not other:  # perhaps in its gradients
                    other = difference(together[r], theirs) is not None
                if other and bool(theirs[1].isfinite()):
                    raise ValueError(
                        f"the network of chain {r} changed in training, and the step of all chains did not "
                        f"see it: train them with together=False, or fast='off'"
                    )

    def _seen(self, terms: Terms) -> list[Seen]:
        """The joint step's terms and gradients of each chain."""
        each = [Terms(*both) for both in zip(terms.kl, terms.nll, strict=True)]
        return [seen(c.optimizer, own) for c, own in zip(self.chains, each, strict=True)]

    def _alone(self, parts: Sequence[Split]) -> Iterator[Seen]:
        """What each chain's own step sees, with the noise that it draws next."""
        for chain, step, part in zip(self.chains, self.alone, parts, strict=True):
            set_random_state(chain.noise, chain.device)
            yield gradients(step, part)

    def _evaluate(self, parts: Sequence[Split], kl_weights: Sequence[float], noise: Tensor) -> Terms:
        weighted = any(part.weights is not None for part in parts)
        counts = torch.stack([part.counts for part in parts]) if weighted else None
        return self.step.evaluate(*_joined(parts), kl_weights, noise, counts)

    def _draw(self, *, advance: bool = True) -> Tensor:
        """What each chain would draw alone, from its own random state: noise (S, R, D), or points (R, D)."""
        drawn = []
        for chain, step in zip(self.chains, self.alone, strict=True):
            set_random_state(chain.noise, chain.device)
            drawn.append(_drawn(step))
            if advance:
                chain.noise = random_state(chain.device)
        return torch.stack(drawn, dim=-2)


def _joined(parts: Sequence[Split]) -> tuple[Tensor, Tensor]:
    return torch.stack([part.x for part in parts]), torch.stack([part.y for part in parts])
