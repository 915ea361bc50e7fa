"""Network outputs for many weight draws and many rows, computed in blocks that fit the memory."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pyrobbb.bnn import BayesianNetwork, Weights

logger = logging.getLogger(__name__)

LARGE = 50_000  # weights


def out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python raised `error` because memory ran out, on the CPU or on a device.

    On the CPU torch has no class for it, only the allocator's message.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def is_large(model: BayesianNetwork) -> bool:
    """Whether one draw of its weights keeps the processor busy, so that draws are best taken singly.

    Not where most of the network is the same for every draw, such as a frozen backbone: as one batch of draws
    it is computed once.
    """
    if model.num_weights < LARGE:
        return False
    shared = (*model.frozen.values(), *model.network.parameters())
    return model.num_weights >= sum(weight.numel() for weight in shared)


@dataclass
class Block:
    """How much is computed at a time: at most this many rows and draws, within this much memory."""

    rows: int
    megabytes: float
    draws: int = sys.maxsize
    logged: bool = False

    def shrink(self, rows: int, draws: int) -> bool:
        """Allow half of what was too much; False if it was one row and one draw."""
        if not self.logged:
            message = "out of memory for %d rows and %d draws at a time; retrying with fewer"
            logger.warning(message, rows, draws)
        self.logged = True
        if rows > 1:
            self.rows = rows // 2
        elif draws > 1:
            self.draws = draws // 2
        return rows > 1 or draws > 1


def outputs(model: BayesianNetwork, weights: Weights, x: Tensor, block: Block) -> Tensor:
    """Network outputs `(S, M, width)`, computed block by block over the rows of `x`.

    The draws of a large network are computed one after another, so that a layer's values stay in cache. If
    memory runs out, the blocks become smaller; the draws are the same.
    """
    S = weights[model.sites[0]].shape[0] if model.sites else 1
    large = is_large(model) or not model.sites
    draws = 1 if large else min(S, block.draws)
    shared, own = _activations(model, weights, x)
    fitting = int(block.megabytes * 2**20 / (shared + draws * own))
    rows = max(1, min(block.rows, fitting, len(x)))
    parts = x.split(rows)
    try:
        if large:
            each = ({name: value[s] for name, value in weights.items()} for s in range(S))
            return torch.stack([torch.cat([model.apply_network(w, part) for part in parts]) for w in each])
        groups = ({name: value[s : s + draws] for name, value in weights.items()} for s in range(0, S, draws))
        return torch.cat([torch.cat([model.apply_network(w, part) for part in parts], dim=1) for w in groups])
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error) or not block.shrink(rows, draws):
            raise
    return outputs(model, weights, x, block)  # here, where the error no longer keeps tensors alive


def _activations(model: BayesianNetwork, weights: Weights, x: Tensor) -> tuple[int, int]:
    """Bytes of activations for one row: those that all draws share, and those of each draw.

    Either is twice the largest output of a layer, seen as one row passes through the network. Draws share
    what is computed before the first layer with drawn weights.
    """
    largest = {False: 0, True: 1}
    drawn = False

    def begin(module: nn.Module, inputs: Any) -> None:
        nonlocal drawn
        drawn = drawn or module in owners

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            largest[drawn] = max(largest[drawn], output.numel() * output.element_size())

    owners = {model.owner(path) for path in model.places}
    modules = [*model.network.modules()]
    hooks = [
        hook for m in modules for hook in (m.register_forward_pre_hook(begin), m.register_forward_hook(note))
    ]
    try:
        model.apply_network({name: w[0] for name, w in weights.items()}, x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    if not drawn:  # the weights are used without their layers, wherever that is
        return 0, 2 * max(largest.values())
    return 2 * largest[False], 2 * largest[True]
