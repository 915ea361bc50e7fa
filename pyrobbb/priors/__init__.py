"""Prior beliefs about the weights: `fixed` in advance, `learned` with the posterior, or `hierarchical`."""

from pyrobbb.priors.fixed import (
    IID,
    Centred,
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
from pyrobbb.priors.hierarchical import ARD, GroupHorseshoe, Hierarchical, Horseshoe, sample_log
from pyrobbb.priors.learned import Learned

__all__ = [
    "ARD",
    "IID",
    "Centred",
    "Deterministic",
    "FanInNormal",
    "GroupHorseshoe",
    "Hierarchical",
    "Horseshoe",
    "Laplace",
    "Learned",
    "Normal",
    "PerParameter",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "beside",
    "elementwise",
    "sample_log",
]

Prior.__module__ = __name__  # where users find it
