"""Negative controls and odd choices of published code, by name, so that their effect can be shown.

None of them is a way to get a good network; `docs/errata.md` says where each was found.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrobbb import checks
from pyrobbb.likelihoods import Categorical


class DoubleSoftmax(Categorical):
    r"""The softmax taken twice: p(y = c | f) = softmax(softmax(f))_c, from a softmax layer before the loss.

    The inner softmax lies in [0, 1], so no example's loss falls below :math:`\log(1 + 9 / e) = 1.4612`
    for ten classes, and no probability rises above e / (e + 9) = 0.232.
    """

    def forward(self, output: Tensor) -> TorchDistribution:
        return super().forward(output.softmax(-1))


class LogSizeNormal:
    """Starting means from N(0, s^2) with s = scale * (the sum of ln(size) over the dimensions).

    For a weight of n inputs and m outputs s = scale (ln n + ln m), about three times Kaiming's; for a
    bias s = scale ln m.
    """

    def __init__(self, scale: float = 0.01) -> None:
        self.scale = checks.positive("scale", scale)

    def __call__(self, site: dict[str, Any]) -> Tensor:
        shape = site["fn"].event_shape
        return torch.randn_like(site["infer"]["init"]) * self.scale * sum(math.log(n) for n in shape)
