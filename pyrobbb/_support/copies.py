"""Deep copies of what holds parts of a graph, which torch refuses to copy."""

from copy import deepcopy
from typing import Any, TypeVar

from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)
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


def own_pair(model: M, guide: nn.Module) -> tuple[M, nn.Module]:
    """Deep copies of both; Pyro's autoguides, which copying takes their model from, still know theirs."""
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
