"""A program compiled for one batch size: a shorter batch gives the terms and gradients of its own rows."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import make_step
from pyrobbb.accelerated.agreement import difference, gradients
from pyrobbb.accelerated.fixed_batch import FixedBatch, FixedProgram
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.data.dataset import Split
from pyrobbb.draws import NoWeights
from pyrobbb.inference import MAP, SWAG, Laplace, MCDropout
from pyrobbb.svi import ReferenceStep

N, B = 20, 8
METHODS = {"map": MAP(), "swag": SWAG(snapshots=2, rank=2), "laplace": Laplace(), "dropout": MCDropout()}
KINDS = ("weights", "local", "auto_normal", "point", *METHODS)


def rows(count: int) -> Split:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=draw)
    return Split(x, x.sum(1, keepdim=True)).head(count)


def made(kind: str, fast: str) -> ProgramStep | ReferenceStep:
    """The step of one layer, which is soon compiled; its noise is learned: a point parameter is there too."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(2, 1))
    if kind == "weights":
        network.insert(0, nn.Dropout(0.3))
    elif kind == "dropout":  # which drops the inputs of layers after the first
        network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    prior = priors.Deterministic() if kind == "point" else priors.Normal(sigma=0.5)
    model = BayesianNetwork(network, prior, likelihoods.Normal(scale=0.3, learn_scale=True), N=N)
    first = rows(B)
    guide: Any = NoWeights()
    if kind in METHODS:
        guide = METHODS[kind].guide(model, None)
    elif kind != "point":
        guide = AutoNormal(model) if kind == "auto_normal" else MeanFieldNormal(model)
        guide(first.x, first.y)  # makes its parameters
    optimizer = torch.optim.Adam([*model.parameters(), *guide.parameters()])
    options: dict[str, Any] = {"fast": fast, "steps": 100, "log": lambda message: None}
    if kind in METHODS:
        return METHODS[kind].step(model, guide, optimizer, first, **options)  # type: ignore[return-value]
    estimator = "local" if kind == "local" else "weights"
    return make_step(model, guide, optimizer, first, estimator=estimator, **options)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_batch_counts_its_own_rows_alone(kind: str) -> None:
    with isolated(0):
        compiled, plain = made(kind, "compiled"), made(kind, "eager")
    assert isinstance(compiled, ProgramStep)
    assert compiled.recorded
    assert not plain.recorded
    noise = torch.randn(compiled.noise_shape)
    for count, weighted in product((B, 3, 1), (False, True)):
        part = replace(rows(count), weights=1.0 + torch.arange(float(count))) if weighted else rows(count)
        seen = []
        for step in (compiled, plain):
            with isolated(2):  # the masks of dropout
                seen.append(gradients(step, part, noise, share=0.3, N=N))
        found = difference(*seen)
        assert found is None, (count, weighted, found)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_batch_is_filled_up_with_its_first_row(dim: int) -> None:
    x, y = torch.randn(4, 4, 2), torch.randn(4, 4, 1)
    filled = FixedBatch(x, y, torch.float64, dim)(x.narrow(dim, 0, 3), y.narrow(dim, 0, 3))
    assert filled is not None
    for mine, whole in zip(filled[:2], (x, y), strict=True):
        assert torch.equal(mine, whole.index_select(dim, torch.tensor([0, 1, 2, 0])))
    once = torch.tensor([1.0, 1, 1, 0], dtype=torch.float64)
    assert torch.equal(filled[2], once.expand(4, 4) if dim == 1 else once)


def test_a_batch_of_another_kind_is_left_alone() -> None:
    fixed = FixedBatch(torch.zeros(4, 2), torch.zeros(4, 1), torch.float32)
    for shape in ((5, 2), (0, 2), (3, 6)):
        assert fixed(torch.zeros(shape), torch.zeros(shape[0], 1)) is None
    assert fixed(torch.zeros(4, 2), torch.zeros(4, 1, dtype=torch.int64)) is None
    assert fixed(torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, 1)) is None


def test_a_check_compares_the_terms_alone() -> None:
    """At an optimum gradients are rounding."""
    part, one = rows(B), torch.ones(())

    def gives(kl: float, nll: float, gradient: float) -> Any:
        return lambda *given: [kl * one, nll * one, gradient * one]

    for kept, changed in (((1, 2, 0.5), False), ((1.1, 2, 0), True), ((1, 2.1, 0), True)):
        fixed = FixedProgram(gives(1, 2, 0), [one], (part.x, part.y), lambda *_, kept=kept: gives(*kept))
        with pytest.raises(ValueError, match="the network changed") if changed else nullcontext():
            fixed.check_still([one], part, nn.Module())
