"""Deep copies of what holds parts of a graph, which torch refuses to copy."""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class _OfValues(TorchFunctionMode):
    """Under it a tensor that is part of a graph, or of a `torch.func`, is copied by its values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__:
            value = args[0]
            while wrapped(value):
                value = torch._C._functorch.get_unwrapped(value)
            if isinstance(value, FakeTensor):  # of a recording: it has no values
                return value
            if value.layout not in (torch.strided, torch.sparse_coo):  # which torch clones, but does not copy
                return value.detach().clone()
            args = (value if value.is_leaf else value.detach(), *args[1:])
        return func(*args, **(kwargs or {}))


def wrapped(value: Tensor) -> bool:
    """Whether a tensor is one of `torch.func`'s, such as a batched one, rather than a plain one."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def own_copy(thing: T) -> T:
    """A deep copy, of parts of a graph by their values.

    A network's hook may have kept some, as may an autoguide's trace of a prior that is trained by gradients.
    """
    with _OfValues():
        return deepcopy(thing)


def own_pair(model: M, guide: nn.Module) -> tuple[M, nn.Module]:
    """Deep copies of both; Pyro's autoguides lose their model by being copied, and both get it back."""
    autos, kept = _autoguides(guide), [(part._model, part.master) for part in _autoguides(guide)]
    try:
        one, other = own_copy((model, guide))
    finally:
        for part, (given, master) in zip(autos, kept, strict=True):
            part._model, part.master = given, master
    for part, (given, _) in zip(_autoguides(other), kept, strict=True):
        part._model = given
    return one, other


def _autoguides(guide: nn.Module) -> list[Any]:
    return [part for part in guide.modules() if isinstance(part, AutoGuide)]
