"""Standard normal noise for millions of weights, as a function of torch's global random state.

torch draws normals on one thread of the CPU, 6 ns each: half of a training step. Here its global
generator gives one fresh key per call, and a counter-based generator turns key and position into normals:
Threefry-2x32 with 13 rounds, the fewest that pass BigCrush (Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3"), then Box and Muller's transform. Compiled, it runs at vector speed on all threads,
and the noise does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobbb.accelerated.compile import compile, record
from pyrobbb.accelerated.fast_math import cos_sin

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right of int32."""
    return (x >> by) & ((1 << (32 - by)) - 1)


def threefry(key: Tensor, x0: Tensor, x1: Tensor, rounds: int = 13) -> tuple[Tensor, Tensor]:
    """Threefry-2x32: random int32 tensors from the counter words `x0`, `x1` and `key` of shape (2,)."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for i in range(rounds):
        rotation = _ROTATIONS[i % 8]
        x0 = x0 + x1
        x1 = ((x1 << rotation) | _shift(x1, 32 - rotation)) ^ x0
        if i % 4 == 3:
            j = i // 4 + 1
            x0, x1 = x0 + keys[j % 3], x1 + (keys[(j + 1) % 3] + j)
    return x0, x1


def draw_key(key: Tensor) -> None:
    """Fill `key`, int32 of shape (2,), from torch's global generator."""
    key.random_(-(2**31), 2**31)


def normals(key: Tensor, half: Tensor, other: Tensor) -> None:
    """Fill `half` and `other`, float32 of the same length, with independent standard normals."""
    counter = torch.arange(half.numel(), dtype=torch.int32, device=half.device)
    bits0, bits1 = threefry(key, counter, torch.zeros_like(counter))
    uniform = _shift(bits0, 8).to(torch.float32) * 2**-24 + 2**-25  # in (0, 1)
    turns = (bits1 >> 8).to(torch.float32) * 2**-24  # in [-1/2, 1/2)
    radius = torch.sqrt(-2.0 * torch.log(uniform))
    cosine, sine = cos_sin(turns)
    half.copy_(radius * cosine)
    other.copy_(radius * sine)


class Normals:
    """A vector of standard normals that can be drawn again and again.

    Args:
        size: How many.
        like: Their precision and device.
        compiled: Use the generator of this file instead of torch's, where that is the faster one.

    Raises:
        CannotCompileError: If `compiled`, and there is no working compiler.
    """

    LEAST = 10_000  # with fewer the call costs more than torch's draws

    def __init__(self, size: int, like: Tensor, *, compiled: bool = False) -> None:
        half = (size + 1) // 2
        both = torch.zeros(2 * half, dtype=like.dtype, device=like.device)
        self.values = both[:size]
        self._run: Callable[..., object] | None = None
        if compiled and size >= self.LEAST and both.dtype == torch.float32 and not both.is_cuda:
            self._inputs = [torch.zeros(2, dtype=torch.int32), both[:half], both[half:]]
            self._run = compile(record(normals, self._inputs), self._inputs)

    def draw(self) -> None:
        """Fill `values` afresh."""
        if self._run is None:
            self.values.normal_()
        else:
            draw_key(self._inputs[0])
            self._run(*self._inputs)
