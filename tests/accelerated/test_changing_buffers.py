"""A network that changes a buffer at each call: in place on every path; one that replaces it is told."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine_fakes import Listens
from pyrobbb import BayesianNetwork, MeanFieldNormal, likelihoods, priors
from pyrobbb._support.network_state import buffers_kept
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import make_step
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Split
from pyrobbb.inference import MAP, SVI, Inference
from pyrobbb.svi import ReferenceStep
from pyrobbb.training.trainer import Training

B, STEPS = 8, 5


class Fading(nn.Module):
    """Multiplies its inputs by a number that falls at each call in training."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("mask", torch.ones(1).expand(2))  # which nothing can be written to

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.in_place:
            self.factor.mul_(0.5)
        elif self.training:
            self.factor = self.factor * 0.5
        return x * self.factor * self.mask


def made(fast: str, *, in_place: bool) -> tuple[Any, Fading, Split, list[str]]:
    """A step, the layer that fades, a batch for it, and what was said."""
    said: list[str] = []
    with isolated(0):
        fading = Fading(in_place=in_place)
        network = nn.Sequential(fading, nn.Linear(2, 1))
        model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.5), N=B)
        rows = Split(torch.randn(B, 2), torch.randn(B, 1))
        guide = MeanFieldNormal(model)
        guide(rows.x, rows.y)
        optimizer = torch.optim.Adam(guide.parameters(), lr=0.01)
        (own,) = [module for module in model.modules() if isinstance(module, Fading)]
        own.factor = torch.ones(())
        step = make_step(model, guide, optimizer, rows, fast=fast, steps=10**6, log=said.append)
    return step, own, rows, said


@pytest.mark.parametrize("fast", ["eager", "compiled"])
def test_one_that_is_changed_in_place_is_recorded(fast: str) -> None:
    step, fading, rows, _ = made(fast, in_place=True)
    assert not isinstance(step, ReferenceStep)
    assert float(fading.factor) == 1  # making a step tries it out
    for _ in range(STEPS):
        step(rows.x, rows.y, 1.0, 1.0)
    assert float(fading.factor) == 0.5**STEPS


def test_one_that_is_replaced_trains_on_pyro_s_path_and_is_named() -> None:
    step, fading, rows, said = made("compiled", in_place=False)
    assert isinstance(step, ReferenceStep)
    assert "another tensor in the place of its buffer '0.factor'" in said[-1]
    assert type(fading.factor) is Tensor
    for _ in range(STEPS):
        step(rows.x, rows.y, 1.0, 1.0)
    assert float(fading.factor) == 0.5**STEPS


@pytest.mark.parametrize("method", [SVI(), MAP()])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_training_sees_each_call_s_own_buffer(in_place: bool, method: Inference) -> None:
    """It neither ends, as where a network changed unseen, nor keeps the first call's."""
    with isolated(0):
        network = nn.Sequential(Fading(in_place=in_place), nn.Linear(2, 1))
        model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.5))
        data = from_arrays(torch.randn(4 * B, 2), torch.randn(4 * B, 1), task="regression")
    guide, said = method.guide(model, MeanFieldNormal if type(method) is SVI else None), Listens()
    training = Training(
        model, guide, data, inference=method, progress=said,
        epochs=3, batch_size=B, optim=partial(torch.optim.Adam, lr=0.01), fast="compiled",
    )  # fmt: skip
    (own,) = [module for module in training.model.modules() if isinstance(module, Fading)]
    before = float(own.factor)
    training.run()
    assert float(own.factor) == before * 0.5 ** (3 * 4)
    assert any("another tensor in the place of its buffer" in line for line in said.said) is not in_place


def test_what_the_body_did_to_buffers_is_undone() -> None:
    fading, replaced = Fading(in_place=True), Fading(in_place=False)
    both = nn.ModuleList([fading, replaced])
    with buffers_kept(both) as names:
        fading(torch.ones(2))
        replaced(torch.ones(2))
        assert [float(fading.factor), float(replaced.factor)] == [0.5, 0.5]
    assert [float(fading.factor), float(replaced.factor)] == [1.0, 1.0]
    assert names == ["1.factor"]
