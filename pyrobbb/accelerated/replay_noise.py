"""Hand a program the standard normals that it would have drawn itself."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class NoiseUsedUpError(ValueError):
    """A program draws more normals than it was given."""


class Noise:
    """Standard normals, one-dimensional, taken piece by piece; None: fresh ones, only counted in `used`.

    Raises:
        NoiseUsedUpError: If more are taken than there are.
    """

    def __init__(self, values: Tensor | None) -> None:
        super().__init__()
        self.values, self.used = values, 0

    def take(self, *shape: int, like: Tensor) -> Tensor:
        """The next normals in this shape, of the precision and on the device of `like`."""
        begin, self.used = self.used, self.used + torch.Size(shape).numel()
        if self.values is None:
            return torch.randn(shape, dtype=like.dtype, device=like.device)
        if self.used > self.values.numel():
            raise NoiseUsedUpError(f"the program draws more than {self.values.numel()} normals")
        return self.values[begin : self.used].reshape(shape).to(like)


class Injected(Noise, TorchDispatchMode):
    """While active, `rsample` of normal distributions takes its noise from `values`, in order of the draws.

    With None the program draws it, and `used` counts.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.normal_.default and tuple(args[1:]) in ((), (0.0, 1.0)):
            return args[0].copy_(self.take(*args[0].shape, like=args[0]))
        if func is _aten.normal.Tensor_Tensor:
            return args[0] + args[1] * self.take(*args[0].shape, like=args[0])
        if func in (_aten.randn.default, _aten.randn_like.default):
            like = func(*args, **kwargs)
            return like.copy_(self.take(*like.shape, like=like))
        return func(*args, **kwargs)
