"""Several chains on CUDA side by side: each takes its own step, on a stream of its own.

Alone, a small network's step leaves most of a device idle. Every chain has its own graph and generator, so
that it ends exactly as it would alone.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyrobbb._support.network_state import buffers_kept
from pyrobbb._support.optim import forget_gradients, moments
from pyrobbb._support.random_state import isolated, random_state
from pyrobbb.accelerated import GraphStep
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.accelerated.cuda_graph import side_by_side
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms
from pyrobbb.training.chain import Chain
from pyrobbb.training.joint_chains import JointChains, check_in_step


class InterleavedChains(JointChains):
    """Takes the steps of several chains at once.

    Args:
        chains: See `pyrobbb.training.trainer.train`.

    Raises:
        NotBatchableError: If they must be trained one after the other.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = list(chains)
        check_in_step(chains)
        self.steps = [step for chain in chains if (step := chain.graph) is not None]
        if len(self.steps) < len(chains):
            raise NotBatchableError(
                "training side by side needs CUDA graphs of many steps, but a training has no graph, a prior "
                "is learned, a callback observes each step, or the data stay on the host"
            )
        self.generators = [torch.Generator(chain.device) for chain in chains]
        self.apart: bool | None = None  # whether they must take turns, as they do until that is known
        try:
            for chain, step, generator in zip(self.chains, self.steps, self.generators, strict=True):
                step.draw_from(generator)
                if _draws_elsewhere(chain, step):
                    raise NotBatchableError("the network draws random numbers of its own, as dropout does")
                generator.set_state(chain.noise[chain.device.type].cpu())
        except BaseException:
            self.release()
            raise

    def __call__(self, parts: Sequence[Split], kl_weights: Sequence[float]) -> Terms:
        works = [
            lambda step=step, part=part, weight=weight: step(
                part.x, part.y, weight, len(part) / len(self.chains[0].train), part.weights
            )
            for step, part, weight in zip(self.steps, parts, kl_weights, strict=True)
        ]
        kl, nll = zip(*self._done(works, apart=self.apart is not False), strict=True)
        return Terms(torch.stack(kl), torch.stack(nll))

    def take_many(self) -> list[Terms]:
        if self.apart is None:
            self.apart = not self._same_apart()
            if self.apart:
                self.chains[0].log("the chains take turns: side by side they do not end as they do alone")
        return self._many(self.apart)

    def _many(self, apart: bool) -> list[Terms]:
        works = [
            lambda step=step, chain=chain: step.take_many(chain.batch)
            for step, chain in zip(self.steps, self.chains, strict=True)
        ]
        return self._done(works, apart)

    def _done(self, works: Sequence[Callable[[], Terms]], apart: bool) -> list[Terms]:
        if apart:
            return [work() for work in works]
        terms = []
        with (
            torch.cuda.device_of(self.steps[0].x),  # streams belong to the current device
            side_by_side([step.stream for step in self.steps]) as streams,
        ):
            for work, stream in zip(works, streams, strict=True):
                with stream:
                    terms.append(work())
        return terms

    def _same_apart(self) -> bool:
        """Whether the next steps end the same, bit for bit, one chain after the other; none is taken."""
        before, ends = self._state(), []
        for apart in (False, True):
            self._many(apart)
            ends.append(self._state())
            for value, kept in zip(self._tensors(), before[0], strict=True):
                value.copy_(kept)
            for generator, state in zip(self.generators, before[1], strict=True):
                generator.set_state(state)
        return all(
            torch.equal(a, b)
            for one, other in zip(*ends, strict=True)
            for a, b in zip(one, other, strict=True)
        )

    def _tensors(self) -> list[Tensor]:
        """All that a step changes."""
        modules = [module for chain in self.chains for module in (chain.model, chain.guide)]
        held = [value for module in modules for value in (*module.parameters(), *module.buffers())]
        held += [value for chain in self.chains for value in moments(chain.optimizer)]
        return [value.detach() for value in held]

    def _state(self) -> tuple[list[Tensor], list[Tensor]]:
        values = [value.clone() for value in self._tensors()]
        return values, [generator.get_state() for generator in self.generators]

    def keep_noise(self) -> None:
        for chain, generator in zip(self.chains, self.generators, strict=True):
            chain.noise = {**chain.noise, chain.device.type: generator.get_state()}

    def release(self) -> None:
        for step in self.steps:
            step.draw_from(None)


def _draws_elsewhere(chain: Chain, step: GraphStep) -> bool:
    """Whether a step draws from torch's global random states."""
    part = chain.train.head(chain.batch_size)
    with isolated(device=chain.device), buffers_kept(chain.model):
        before = random_state(chain.device)
        step.step.compute(part.x, part.y, counts=part.weights)
        forget_gradients(chain.optimizer)
        after = random_state(chain.device)
    return any(not torch.equal(state, after[device]) for device, state in before.items())
