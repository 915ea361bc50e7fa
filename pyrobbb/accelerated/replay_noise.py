"""Hand a program the standard normals that it would have drawn itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class NoiseUsedUpError(ValueError):
    """A program draws more normals than it was given."""


class Injected(TorchDispatchMode):
    """While active, `rsample` of normal distributions takes its noise from `noise`, in order of the draws.

    Args:
        noise: Standard normals, one-dimensional; used up from the front. None: let the program draw,
            and only count in `used`.

    Raises:
        NoiseUsedUpError: If the program draws more than `noise` holds.
    """

    def __init__(self, noise: Tensor | None) -> None:
        super().__init__()
        self.noise, self.used = noise, 0

    def _next(self, like: Tensor) -> Tensor:
        begin, self.used = self.used, self.used + like.numel()
        if self.noise is None:
            return torch.randn(like.shape, dtype=like.dtype, device=like.device)
        if self.used > self.noise.numel():
            raise NoiseUsedUpError(f"the program draws more than {self.noise.numel()} normals")
        return self.noise[begin : self.used].reshape(like.shape).to(like)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.normal_.default and tuple(args[1:]) in ((), (0.0, 1.0)):
            return args[0].copy_(self._next(args[0]))
        if func is _aten.normal.Tensor_Tensor:
            return args[0] + args[1] * self._next(args[0])
        if func in (_aten.randn.default, _aten.randn_like.default):
            like = func(*args, **kwargs)
            return like.copy_(self._next(like))
        return func(*args, **kwargs)
