"""Logarithm, soft-plus, sigmoid, sine and cosine written for speed: short polynomials and no denormals.

To a program that inductor compiles for the CPU, torch's exponentials and logarithms are calls of a vector
library, which take several times as long as polynomials among the program's own operations. An exponential
that underflows to a denormal costs a hundred cycles on most CPUs: under the paper's spike prior many weights
do that at every step. Soft-plus and sigmoid are functions of t = exp(-|x|) in (0, 1], where log(1 + t) is a
polynomial to float32 precision. `RULES` are applied while a program is recorded to be compiled; the program
itself keeps calling torch's own functions.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

MANY = 10_000
_LEAST = -86.0  # exp(-86) = 4.5e-38 is still a normal float32 number


def _fit(f: Callable[[Any], Any], degree: int, high: float, low: float = 0.0) -> tuple[float, ...]:
    """Coefficients of the polynomial that meets `f` in the Chebyshev points of [low, high]."""
    fitted = Chebyshev.interpolate(f, degree, domain=[low, high]).convert(kind=Polynomial)
    return tuple(float(c) for c in fitted.coef)


# log(1 + r) = r - r^2 / 2 + r^3 times this, where 1 + r lies between the roots of 1/2 and 2
_LOG = _fit(lambda r: (np.log1p(r) - r + r * r / 2) / r**3, 7, math.sqrt(2) - 1, math.sqrt(0.5) - 1)
_ROOT_OF_HALF = 0x3F3504F3  # as the bits of a float32
_NORMAL = 2.0**-126  # the least float32 that is not denormal
_EXP = _fit(np.exp, 6, 0.35, -0.35)  # of what is left of x beside multiples of log 2
_LOG2, _LOG2_REST = 0.693359375, math.log(2) - 0.693359375  # the first in so few bits that n log 2 is exact
_LOG1P = _fit(lambda t: np.log1p(t) / t, 9, 1.0)  # of t, relative error 4e-8 before rounding
_SIN = _fit(lambda z: np.pi * np.sinc(np.sqrt(z)), 5, 0.25)  # of v^2
_COS = _fit(lambda z: np.cos(np.pi * np.sqrt(z)), 5, 0.25)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """By Horner's rule in x^2, whose chain of operations that wait for each other is half as long as in x."""
    even, odd = coefficients[::2], coefficients[1::2]
    pairs: list[Any] = [a + b * x for a, b in zip(even, odd, strict=False)] + [*even[len(odd) :]]
    value, square = pairs.pop(), x * x
    while pairs:
        value = value * square + pairs.pop()
    return value


def log(x: Tensor) -> Tensor:
    """The natural logarithm to one unit in the last place, from exponent and fraction of each float32."""
    if not written_out(x):
        return NotImplemented
    denormal = x < _NORMAL
    bits = torch.where(denormal, x * 2.0**23, x).view(torch.int32)
    exponent = (bits - _ROOT_OF_HALF) >> 23
    r = (bits - (exponent << 23)).view(torch.float32) - 1.0
    twos = exponent.to(torch.float32) - torch.where(denormal, 23.0, 0.0)
    value = twos * math.log(2) + (r + r * r * (r * _polynomial(_LOG, r) - 0.5))
    value = torch.where(x > 0, value, torch.where(x == 0, -math.inf, math.nan))
    return torch.where(x < math.inf, value, x)


def written_out(x: Tensor) -> bool:
    """Whether it pays to write out exponential and logarithm, which takes longer to compile.

    CUDA has fast ones, other precisions need longer polynomials.
    """
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() >= MANY


def _decayed(x: Tensor) -> Tensor:
    """The t of soft-plus and sigmoid, exp(-|x|)."""
    x = torch.clamp_min(-x.abs(), _LEAST)
    if not written_out(x):
        return torch.exp(x)
    n = torch.round(x * math.log2(math.e))
    power = ((n.to(torch.int32) + 127) << 23).view(torch.float32)  # of two, the n-th
    return _polynomial(_EXP, (x - n * _LOG2) - n * _LOG2_REST) * power


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    r""":math:`\log(1 + e^{\beta x}) / \beta`; `threshold` needs no case of its own here."""
    x = x if beta == 1 else beta * x
    t = _decayed(x)
    # t^2 is not denormal either
    log1p = t * _polynomial(_LOG1P, t.clamp_min(1e-15)) if t.dtype == torch.float32 else torch.log1p(t)
    value = torch.clamp_min(x, 0.0) + log1p
    return value if beta == 1 else value / beta


def sigmoid(x: Tensor) -> Tensor:
    r""":math:`1 / (1 + e^{-x})`."""
    t = _decayed(x)
    return torch.where(x >= 0, 1.0, t) / (1.0 + t)


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    r"""Gradient of `softplus`: `grad` times :math:`\mathrm{sigmoid}(\beta x)`."""
    return grad * sigmoid(x if beta == 1 else beta * x)


def cos_sin(turns: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\cos 2\pi v` and :math:`\sin 2\pi v` for float32 `turns` v in [-1/2, 1/2], to 1e-6."""
    z = turns * turns
    s, c = turns * _polynomial(_SIN, z), _polynomial(_COS, z)  # of half the angle
    return 1.0 - 2.0 * s * s, 2.0 * s * c


_aten = torch.ops.aten
RULES: dict[Any, Callable[..., Tensor]] = {
    _aten.log.default: log,
    _aten.softplus.default: softplus,
    _aten.softplus_backward.default: softplus_backward,
    _aten.sigmoid.default: sigmoid,
}
