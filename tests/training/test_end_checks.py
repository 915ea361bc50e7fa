"""The warnings at the end of a fit of what was still under way: they speak once, or are silent."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine_fakes import normal
from pyrobbb import BayesianNetwork, fit, likelihoods, priors
from pyrobbb.data import from_arrays
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.end_checks import warn_of_falling
from pyrobbb.training.history import Epoch, History


def course(nll: Any, stopped: str | None = None) -> History:
    rows = [Epoch(0, i + 1, 1.0 + n, 1.0, n, 0.0, 0.0, 1e-3, 0.1) for i, n in enumerate(nll)]
    return History(rows, stopped)


@pytest.mark.parametrize(
    ("history", "falling"),
    [
        (course(np.linspace(3, 1, 16)), True),
        (course(np.linspace(1.2, 1, 16)), False),
        (course(3 * np.exp(-np.arange(40) / 4)), False),
        (course(1 + 0.3 * np.random.default_rng(0).standard_normal(800)), False),
        (course(np.linspace(3, 1, 16), "no better for 5 epochs"), False),
        (course(np.linspace(3, 1, 7)), False),
    ],
    ids=["falling", "slowly", "converged", "noisy", "stopped", "too short to say"],
)
def test_a_fit_that_was_still_falling(history: History, falling: bool, caplog: Any) -> None:
    warn_of_falling(history)
    assert sum(record.name.startswith("pyrobbb") for record in caplog.records) == falling
    assert not falling or "by 0.27 nats per row in the last eighth" in caplog.text


def test_a_fit_that_is_too_short_says_so(caplog: Any) -> None:
    x, net = normal(100, 1), nn.Linear(1, 1)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=0.05))
    data = from_arrays(x, x + 0.05 * normal(100, 1, seed=1), task="regression")
    slow = partial(torch.optim.Adam, lr=0.01)  # 32 steps of 0.01 of the way of 1
    guide = partial(MeanFieldNormal, init_rho=-8.0)
    fit(model, guide, data, epochs=8, batch_size=25, optim=slow, device="cpu", progress=None, seed=0)
    assert "still falling when it ended" in caplog.text
