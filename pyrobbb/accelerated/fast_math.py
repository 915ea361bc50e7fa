"""Soft-plus, sigmoid, sine and cosine written for speed: short polynomials and no denormals.

Vector libraries evaluate `log1p` several times slower than `exp`, and an exponential that underflows to
a denormal costs a hundred cycles on most CPUs: under the paper's spike prior many weights do that at
every step. Soft-plus and sigmoid are functions of t = exp(-|x|) in (0, 1], where log(1 + t) is a
polynomial to float32 precision. `RULES` are applied while a program is recorded; the program itself
keeps calling torch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

_LEAST = -86.0  # exp(-86) = 4.5e-38 is still a normal float32 number


def _fit(f: Callable[[Any], Any], degree: int, high: float) -> tuple[float, ...]:
    """Coefficients of the polynomial that meets `f` in the Chebyshev points of [0, high]."""
    fitted = Chebyshev.interpolate(f, degree, domain=[0, high]).convert(kind=Polynomial)
    return tuple(float(c) for c in fitted.coef)


_LOG1P = _fit(lambda t: np.log1p(t) / t, 9, 1.0)  # of t, relative error 4e-8 before rounding
_SIN = _fit(lambda z: np.pi * np.sinc(np.sqrt(z)), 5, 0.25)  # of v^2
_COS = _fit(lambda z: np.cos(np.pi * np.sqrt(z)), 5, 0.25)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value = value * x + c
    return value


def _decayed(x: Tensor) -> Tensor:
    return torch.exp(torch.clamp_min(-x.abs(), _LEAST))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    r""":math:`\log(1 + e^{\beta x}) / \beta`; `threshold` needs no case of its own here."""
    x = x if beta == 1 else beta * x
    t = _decayed(x)
    log1p = t * _polynomial(_LOG1P, t) if t.dtype == torch.float32 else torch.log1p(t)
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
    _aten.softplus.default: softplus,
    _aten.softplus_backward.default: softplus_backward,
    _aten.sigmoid.default: sigmoid,
}
