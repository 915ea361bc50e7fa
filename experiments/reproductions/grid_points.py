"""The points of the hyperparameter grids: the paper's priors, Ghia's rates, both reports' presets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

PRESETS = ("reduced", "ghia", "rahmanto")
PI, WIDE, NARROW = (0.25, 0.5, 0.75), (0, 1, 2), (6, 7, 8)  # -log sigma1, -log sigma2: the paper's grid
RATES, SAMPLES = (1e-3, 1e-4, 1e-5), (1, 2, 3, 5)  # Ghia's
PAPERS_SAMPLES = (1, 2, 5, 10)
GHIAS_START = [
    "guide.init_loc={_target_: experiments.reproductions.controls.LogSizeNormal, _partial_: false}",
    "guide.init_rho=-4.5",
]


@dataclass(frozen=True)
class Point:
    """A point of the grid: -log sigma1 and -log sigma2 as in the paper."""

    pi: float
    log_sigma1: float
    log_sigma2: float
    lr: float = 1e-3
    samples: int = 1

    @property
    def sigmas(self) -> tuple[float, float]:
        """sigma1 and sigma2."""
        return math.exp(-self.log_sigma1), math.exp(-self.log_sigma2)

    def __str__(self) -> str:
        return (
            f"pi={self.pi:g},s1=e-{self.log_sigma1:g},s2=e-{self.log_sigma2:g},"
            f"lr={self.lr:g},samples={self.samples}"
        )

    def values(self) -> dict[str, float]:
        """The keys of the run that the point decides."""
        sigma1, sigma2 = self.sigmas
        prior = {"prior.pi": self.pi, "prior.sigma1": sigma1, "prior.sigma2": sigma2}
        return {**prior, "optim.lr": self.lr, "samples": self.samples}


def points(preset: str, quick: bool = False) -> tuple[list[Point], list[str]]:
    """The points of a preset, and the overrides that go with it."""
    if quick:
        return _every((0.25, 0.75), (0,), (6, 8)), []
    priors = _every(PI, WIDE, NARROW)
    if preset == "reduced":
        others = _every((0.5,), (0,), (6,), RATES, sorted({*SAMPLES, *PAPERS_SAMPLES}))
        return list(dict.fromkeys([*priors, *others])), []
    if preset == "ghia":
        return _every(PI, WIDE, NARROW, RATES, SAMPLES), [
            "model.hidden=[1200,1200]",
            "epochs=10",
            "schedule=constant",
            *GHIAS_START,
        ]
    of_rahmanto = ["model.hidden=[800,800]", "schedule=exponential", "schedule.gamma=0.95", "epochs=300"]
    return [replace(point, samples=5) for point in priors], of_rahmanto


def _every(*axes: Sequence[Any]) -> list[Point]:
    return [Point(*values) for values in product(*axes)]
