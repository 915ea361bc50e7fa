"""Deep copies of what holds parts of a graph, which torch refuses to copy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor
from torch.overrides import TorchFunctionMode

T = TypeVar("T")


class _OfValues(TorchFunctionMode):
    """Under it a tensor that is part of a graph is copied by its values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            args = (args[0].detach(), *args[1:])
        return func(*args, **(kwargs or {}))


def own_copy(thing: T) -> T:
    """A deep copy; an autoguide's trace of a prior that is trained by gradients holds parts of a graph."""
    with _OfValues():
        return deepcopy(thing)
