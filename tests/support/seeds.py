"""PYROBBB_TEST_SEED_SHIFT=k: every random stream of the tests starts from its seed plus k.

A test whose outcome turns on which numbers were drawn shows it under one shift or another. Seeds are shifted
where torch and NumPy take them, so the tests, the library and what a test imports all follow, and a test
written tomorrow does too. `FIXED`, a mark, is for numbers that belong to one seed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

SHIFT = int(os.environ.get("PYROBBB_TEST_SEED_SHIFT", "0"))
FIXED = pytest.mark.fixed_seeds


class _Generator(torch.Generator):
    def manual_seed(self, seed: int) -> torch.Generator:
        return super().manual_seed(seed + SHIFT)


class _Default:
    """torch's own generator, but for the seed that it is given."""

    def __init__(self) -> None:
        self.generator = torch.random.default_generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def manual_seed(self, seed: int) -> torch.Generator:
        return self.generator.manual_seed(seed + SHIFT)


def _default_rng(seed: Any = None) -> np.random.Generator:
    return _NUMPY(seed + SHIFT if isinstance(seed, int) else seed)


def _manual_seed(seed: int) -> torch.Generator:
    return _MANUAL(seed + SHIFT)


_NUMPY, _MANUAL = np.random.default_rng, torch.manual_seed
_PLACES: list[tuple[Any, str, Any]] = [
    (torch, "Generator", _Generator),
    (torch, "default_generator", _Default()),
    (torch, "manual_seed", _manual_seed),
    (np.random, "default_rng", _default_rng),
]
_GIVEN = [(place, name, getattr(place, name)) for place, name, _ in _PLACES]


def shift(on: bool = True) -> None:
    """From now on seeds are shifted, or as they are written."""
    for place, name, value in _PLACES if on and SHIFT else _GIVEN:
        setattr(place, name, value)


@contextmanager
def unshifted() -> Iterator[None]:
    """Inside, a seed is as it is written."""
    shift(on=False)
    try:
        yield
    finally:
        shift()
