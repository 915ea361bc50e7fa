"""Prior beliefs about the weights: fixed in advance (`fixed`), or learned from the same data (`learned`)."""

from pyrobbb.priors.fixed import (
    IID,
    Deterministic,
    FanInNormal,
    Laplace,
    Normal,
    PerParameter,
    Prior,
    ScaleMixture,
    StudentT,
    beside,
    elementwise,
)
from pyrobbb.priors.learned import Learned

__all__ = [
    "IID",
    "Deterministic",
    "FanInNormal",
    "Laplace",
    "Learned",
    "Normal",
    "PerParameter",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "beside",
    "elementwise",
]
