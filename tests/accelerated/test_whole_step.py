"""The step with the optimiser in the program, beside the same gradients with torch's optimiser."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyrobbb import likelihoods, priors
from pyrobbb._support.optim import clip_gradients, load_state, trained
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import whole_step
from pyrobbb.accelerated.cuda_rewrites import rewritten
from pyrobbb.accelerated.dispatch import element_wise
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.programs import flat_program
from pyrobbb.accelerated.record import record
from pyrobbb.accelerated.updates import Update
from pyrobbb.accelerated.whole_step import WholeStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal

B = 6
ADAM = partial(torch.optim.Adam, lr=1e-2, betas=(0.8, 0.99), fused=True)
OPTIMIZERS = {
    "Adam": ADAM,
    "SGD": partial(torch.optim.SGD, lr=1e-5, fused=True),
    "momentum": partial(torch.optim.SGD, lr=1e-5, momentum=0.9, fused=True),
}
aten = torch.ops.aten


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded program takes the compiled one's place: the same operations."""
    monkeypatch.setattr(whole_step, "compile", lambda graph, inputs: graph)


def made(whole: bool, samples: int = 1, optim: Any = ADAM, small: bool = False) -> tuple[Any, Split]:
    """Two families of priors, one with vectors; point parameters; a rate of its own for rho. Or one layer."""
    with isolated(1):
        network = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 30), nn.Tanh(), nn.Linear(30, 2))
        own = {"0.bias": priors.Deterministic(), "2.weight": priors.FanInNormal(), "2.bias": priors.Normal()}
        prior: priors.Prior = priors.PerParameter(default=priors.ScaleMixture(), where=own)
        if small:
            network, prior = nn.Sequential(nn.Linear(4, 2)), priors.Normal()
        # the mixture's narrow component enlarges rounding too much for single precision, ReLU for any
        dtype = torch.float32 if small else torch.float64
        model = BayesianNetwork(network.to(dtype), prior, likelihoods.Normal(0.5, learn_scale=True), 30)
        guide = MeanFieldNormal(model, init_rho=-2.0)
        rows = Split(torch.randn(B, 4, dtype=dtype), torch.randn(B, 2, dtype=dtype))
        guide(rows.x, rows.y)
        groups: list[dict[str, Any]] = [
            {"params": [guide.loc, *model.parameters()]},
            {"params": [guide.rho], "lr": 3 * optim.keywords["lr"]},
        ]
        optimizer = optim(groups)
        segments = element_wise(model, guide, rows)
        if whole:
            return WholeStep(model, guide, optimizer, segments, samples, (rows.x, rows.y)), rows
        program = flat_program(model, guide, segments, trained(optimizer), samples)
        return ProgramStep(program, optimizer, (samples, guide.loc.numel())), rows


def state(step: Any) -> list[Tensor]:
    """Parameters, moments and step counts."""
    parameters = trained(step.optimizer)
    kept = [v for p in parameters for v in step.optimizer.state[p].values() if v is not None]
    return [v.detach().clone() for v in (*parameters, *kept)]


def agree(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert float((a - b).norm()) <= 1e-4 * float(b.norm()) + 1e-6


@pytest.mark.parametrize("optim", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("samples", [1, 3])
def test_it_takes_the_steps_of_torchs_optimiser(recorded: None, samples: int, optim: Any) -> None:
    """One by one, many at once, and a short batch in between, from one random state."""
    ends = []
    for whole in (False, True):
        step, rows = made(whole, samples, optim)
        with isolated(7):
            seen = []
            for i in range(7):
                part = Split(rows.x + 0.1 * i, rows.y).head(4 if i == 3 else B)
                seen.append(torch.stack(list(step(part.x, part.y, 0.1 * i, B / 30))).clone())
            xs, ys = torch.stack([rows.x - 0.1 * i for i in range(5)]), rows.y.expand(5, *rows.y.shape)
            seen.extend(torch.stack(list(step.take_all(xs, ys, 0.1 * torch.arange(5.0)))).T)
        ends.append([torch.stack(seen), *state(step)])
    agree(*ends)


def test_compiled_it_takes_them_too() -> None:
    """Weights of whole numbers among them: compiled code takes their bits for those of floats."""
    ends = []
    for whole in (False, True):
        step, rows = made(whole, small=True)
        with isolated(7):
            seen = [torch.stack(list(step(rows.x + i, rows.y, 0.2, B / 30))).clone() for i in range(4)]
            counts = torch.full((1, B), 2)
            seen.extend(torch.stack(list(step.take_all(rows.x[None], rows.y[None], torch.ones(1), counts))).T)
        ends.append([torch.stack(seen), *state(step)])
    agree(*ends)


def test_it_resumes_and_follows_what_the_program_has_not_fixed(recorded: None) -> None:
    """A loaded optimiser, another rate, and other betas, with which the optimiser steps for itself."""
    ends = []
    for whole in (False, True):
        step, rows = made(whole)
        with isolated(7):
            step(rows.x, rows.y, 0.2, B / 30)
            kept = deepcopy(step.optimizer.state_dict())
            step(rows.x, rows.y, 0.2, B / 30)
            load_state(step.optimizer, kept)
            step.reset()
            for betas in ((0.8, 0.99), (0.5, 0.9), (0.8, 0.99)):
                for group in step.optimizer.param_groups:
                    group["lr"], group["betas"] = group["lr"] / 2, betas
                step.reset()
                if whole:
                    assert step.same == (betas == (0.8, 0.99))
                step(rows.x, rows.y, 0.2, B / 30)
        ends.append(state(step))
    agree(*ends)


def test_only_plain_steps_are_supported() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    assert all(Update.supported(make(weights)) for make in OPTIMIZERS.values())
    assert not Update.supported(torch.optim.AdamW(weights))
    assert not Update.supported(torch.optim.Adam(weights, weight_decay=0.1))
    assert not Update.supported(torch.optim.Adam(weights, amsgrad=True))
    assert not Update.supported(torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True))
    clipped = torch.optim.SGD(weights, lr=0.1)
    clip_gradients(clipped, 1.0)
    assert not Update.supported(clipped)


@pytest.mark.parametrize("tf32", [True, False])
def test_rewrites_for_cuda_change_no_result(tf32: bool) -> None:
    """A class's log-probability and its gradient through ReLU: no scatter, no product with a bias alone."""

    def program(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            leaves = [w.detach().requires_grad_(), b.detach().requires_grad_()]
            logits = torch.relu(torch.nn.functional.linear(x, *leaves))
            return list(torch.autograd.grad(logits.log_softmax(-1).gather(-1, y[:, None]).sum(), leaves))

    with isolated(0):
        inputs = [torch.randn(8, 4), torch.randint(0, 5, (8,)), torch.randn(5, 4), torch.randn(5)]
    graph = record(program, inputs)
    expected = graph(*inputs)
    before = {node.target for node in graph.graph.nodes}
    assert {aten.scatter_add.default, aten.relu.default} <= before
    after = {node.target for node in rewritten(graph, tf32=tf32).graph.nodes}
    assert not {aten.scatter_add.default, aten.addmm.default} & after
    assert (aten._addmm_activation.default in after) is tf32
    assert (aten.relu.default in after) is not tf32
    for a, b in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(a, b)
