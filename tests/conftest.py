"""Seeds start PYROBBB_TEST_SEED_SHIFT further on (tests/support/seeds.py); no device is seen (devices.py)."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

import seeds
from devices import OF_DEVICES, Devices

DEVICES = Devices()
seeds.shift()  # before the test modules, which draw some of their data when they are imported


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fixed_seeds: numbers that belong to one seed, which no shift moves")
    config.addinivalue_line("markers", "slow: takes tens of seconds")


@pytest.hookimpl(tryfirst=True)  # before fixtures of whole modules, which fit too
def pytest_runtest_setup(item: pytest.Item) -> None:
    DEVICES.hide(item.path.name != OF_DEVICES)


@pytest.fixture(autouse=True)
def _seeds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test draws without a seed of its own does not turn on which tests ran before it."""
    fixed = request.node.get_closest_marker("fixed_seeds")
    with seeds.unshifted() if fixed else nullcontext():
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True)
def _as_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown as where no service of continuous integration runs the tests."""
    monkeypatch.delenv("CI", raising=False)
