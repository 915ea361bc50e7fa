"""Standard normal noise for millions of weights, as a function of a key.

torch draws normals on one thread of the CPU, 6 ns each: half of a training step. Here a counter-based
generator turns key and position into normals: Threefry-2x32 with 13 rounds, the fewest that pass BigCrush
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), then Box and Muller's transform of a
uniform of 40 bits, whose tail is right beyond 7 standard deviations. Compiled, it runs at vector speed on all
threads, and the noise does not depend on their number. `Normals` takes a fresh key for each draw from torch's
global generator, `KeyedNormals` the seed of each chain and the time.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pyrobbb.accelerated.compile import compile, prepared
from pyrobbb.accelerated.fast_math import cos_sin
from pyrobbb.accelerated.record import Program, record

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def threefry(
    key: Tensor | tuple[Tensor, Tensor], x0: Tensor, x1: Tensor, rounds: int = 13
) -> tuple[Tensor, Tensor]:
    """Threefry-2x32: random int32 tensors from the counter words `x0`, `x1` and the two words of `key`."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for i in range(rounds):
        rotation = _ROTATIONS[i % 8]
        x0 = x0 + x1
        carried = (x1 >> (32 - rotation)) & ((1 << rotation) - 1)  # a logical shift of int32
        x1 = ((x1 << rotation) | carried) ^ x0
        if i % 4 == 3:
            j = i // 4 + 1
            x0, x1 = x0 + keys[j % 3], x1 + (keys[(j + 1) % 3] + j)
    return x0, x1


def draw_key(key: Tensor, generator: torch.Generator | None = None) -> None:
    """Fill `key`, int32 of shape (2,), from a generator, by default torch's global one."""
    key.random_(-(2**31), 2**31, generator=generator)


def box_muller(bits0: Tensor, bits1: Tensor) -> tuple[Tensor, Tensor]:
    r"""Pairs of independent standard normals from two words of random bits, int32.

    The uniform is :math:`u = 2^{-32} (k + (j + \tfrac12) / 2^8)` with k all bits of the first word and j the
    last eight of the second; the angle takes the other 24. Small u keep all 40 bits, which make the tail, and
    u never rounds to 1, where both normals would be 0.
    """
    fraction = ((bits1 & 0xFF).to(torch.float32) + 0.5) * 2**-40
    signed = bits0.to(torch.float32) * 2**-32 + fraction  # in (-1/2, 1/2]
    uniform = torch.where(bits0 >= 0, signed, (signed + 1.0).clamp_max(1 - 2**-24))
    turns = (bits1 >> 8).to(torch.float32) * 2**-24  # in [-1/2, 1/2)
    radius = torch.sqrt(-2.0 * torch.log(uniform))
    cosine, sine = cos_sin(turns)
    return radius * cosine, radius * sine


def normals(key: Tensor, time: Tensor, half: Tensor, other: Tensor) -> None:
    """Fill `half` and `other`, float32 of shape (*chains, n), with independent standard normals.

    `key` is int32 of shape (*chains, 2), `time` int32 without dimensions: other times, other noise.
    """
    counter = torch.arange(half.shape[-1], dtype=torch.int32, device=half.device)
    cosines, sines = box_muller(*threefry((key[..., :1], key[..., 1:]), counter, time))
    half.copy_(cosines)
    other.copy_(sines)


class Normals:
    """A vector of standard normals that can be drawn again and again.

    From torch's global random state, or from that of `generator` where one is set.

    Args:
        size: How many.
        like: Their precision and device.
        compiled: Use the generator of this file instead of torch's, where that is the faster one.

    Raises:
        CannotCompileError: If `compiled`, and there is no working compiler.
    """

    MINIMUM = 10_000  # with fewer the call costs more than torch's draws

    def __init__(self, size: int, like: Tensor, *, compiled: bool = False) -> None:
        both = torch.zeros(2 * ((size + 1) // 2), dtype=like.dtype, device=like.device)
        self.values = both[:size]
        self.generator: torch.Generator | None = None
        self._run: Callable[..., object] | None = None
        if compiled and size >= self.MINIMUM and both.dtype == torch.float32 and not both.is_cuda:
            zeros = torch.zeros(2, dtype=torch.int32), torch.zeros((), dtype=torch.int32)
            self._inputs = [*zeros, *both.chunk(2)]
            self._run = compile(record(normals, self._inputs), self._inputs)

    def draw(self) -> None:
        """Fill `values` afresh."""
        if self._run is None:
            self.values.normal_(generator=self.generator)
        else:
            draw_key(self._inputs[0], self.generator)
            self._run(*self._inputs)


def _high(seed: int) -> int:
    """What a seed has beyond 31 bits, as the upper half of a word: 0 of a small one."""
    high = (seed >> 31) % 2**64
    return int(np.random.SeedSequence(high).generate_state(1)[0]) & 0x7FFF0000 if high else 0


class KeyedNormals:
    """Standard normals (R, size) for R chains, a function of each chain's seed, the stream and the time.

    Compiled or not, the same seed gives the same noise up to rounding, regardless of the rest of the batch.

    Args:
        seeds: One for each chain.
        size: How many each chain takes.
        stream: Which of several independent streams.
        compiled: Compile the generator, if there is a compiler (`pyrobbb.accelerated.compile.prepared`).
    """

    def __init__(self, seeds: Sequence[int], size: int, *, stream: int, compiled: bool) -> None:
        both = torch.zeros(len(seeds), 2 * ((size + 1) // 2))
        self.values = both[:, :size]
        self.time = torch.zeros((), dtype=torch.int32)
        keys = [[seed & 0x7FFFFFFF, 0x5EED ^ stream ^ _high(seed)] for seed in seeds]
        self._inputs = [torch.tensor(keys, dtype=torch.int32), self.time, *both.chunk(2, dim=1)]
        self.compiled = compiled
        self._run: Program | None = None

    def draw(self, time: int) -> Tensor:
        """`values`, filled with the noise of `time` = 0, 1, 2, ..."""
        self.time.fill_(time)
        if self._run is None:  # not before everything else of a bandit has been checked
            self._run = prepared(normals, self._inputs, compiled=self.compiled)
        self._run(*self._inputs)
        return self.values
