"""What a call changes on a network, or leaves there, and how it is taken back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pyrobbb._support.copies import own_copy, wrapped
from pyrobbb._support.flat import strided
from pyrobbb._support.network_checks import EMBEDDINGS
from pyrobbb._support.settings import own_modules


def copied(network: nn.Module) -> nn.Module:
    """A deep copy; of a graph that an earlier call left on a layer, the values.

    Buffers have memory of their own for each element, where an expanded one could not be written.
    """
    made = own_copy(network)
    for module in made.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not nn.parameter.is_lazy(buffer) and buffer.layout is torch.strided:
                module._buffers[name] = buffer.contiguous()
    return made


@contextmanager
def nothing_left(network: nn.Module) -> Iterator[None]:
    """What the body makes of drawn weights and keeps on the network's own layers is taken away at the end.

    Such as features kept for a look at them: they are parts of a graph, or of a `torch.func` that has ended,
    which nothing can copy or save. Other attributes stay as the body leaves them.
    """
    own = list(own_modules(network).values())
    before = [dict(vars(module)) for module in own]
    try:
        yield
    finally:
        for module, kept in zip(own, before, strict=True):
            now = vars(module)
            for key in [key for key, value in now.items() if value is not kept.get(key)]:
                held = (value for value in tree_leaves(now[key]) if isinstance(value, Tensor))
                if any(value.grad_fn is not None or wrapped(value) for value in held):
                    del now[key]
                    now.update({key: kept[key]} if key in kept else {})


def take_padding(network: nn.Module) -> dict[str, int]:
    """The padding row of each embedding, by the name of its weights; of other look-ups it is taken away.

    Of weights that another layer trains as well, such as an output layer that is tied to the embedding, no
    row is padding: torch would leave out the gradient that comes through the embedding, and train the row
    all the same. What the look-up computes stays as it was.
    """
    rows: dict[Tensor, set[int | None]] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            row = (
                module.padding_idx if isinstance(module, EMBEDDINGS) and parameter is module.weight else None
            )
            rows.setdefault(parameter, set()).add(row)
    for module in network.modules():
        if isinstance(module, nn.Embedding) and rows.get(module.weight) != {module.padding_idx}:
            module.padding_idx = None
    return {
        name: row
        for name, parameter in network.named_parameters()
        for row in rows[parameter]
        if row is not None and len(rows[parameter]) == 1
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every layer of `model` in evaluation mode (dropout off); each is restored at the end."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[list[str]]:
    """What the body does to the buffers of `model`, and to plain tensors, is undone at the end.

    The list then has the names of buffers in whose place the body put another tensor, which a recording of it
    does not see. The initial values of weights are buffers too, but a network is called with others.
    """
    replaced: list[str] = []
    found = [
        (held, name, f"{path}.{name}" if held is part._buffers else None, value, value.detach().clone())
        for path, part in model.named_modules()
        for held in (part._buffers, vars(part))
        for name, value in held.items()
        if isinstance(value, Tensor)
    ]
    try:
        yield replaced
    finally:
        for held, name, buffer, value, before in found:
            if held.get(name) is not value:
                held[name] = value
                replaced += [] if buffer is None else [buffer.removeprefix("network.")]
            if not torch.equal(strided(value), strided(before)):
                value.detach().copy_(before)


def says_replaced(names: Sequence[str]) -> str:
    """Why a step of a network that puts other tensors in the place of its buffers cannot be recorded."""
    return (
        f"the network puts another tensor in the place of its buffer {names[0]!r} when it is called; one "
        f"that is changed in place, as by copy_(), can be recorded"
    )
