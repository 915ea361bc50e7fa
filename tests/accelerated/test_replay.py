"""A replayed recording computes what its program does, to the bit, and says when the program has changed."""

import random
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from engine_fakes import classes, values
from pyrobbb import BayesianNetwork, MeanFieldNormal, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.agreement import gradients
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.record import METHODS, CannotRecordError, replay
from pyrobbb.inference import MAP, NUTS, SVI, Inference, MCDropout
from pyrobbb.svi import ReferenceStep
from pyrobbb.training.callbacks import Callback
from step_cases import AUTOGUIDES, PRIORS, Case, Looking

MANY = 10_000  # steps, for which a recording pays


@pytest.mark.parametrize(("count", "samples"), [(6, 1), (3, 3)])
@pytest.mark.parametrize("prior", PRIORS)
def test_the_same_terms_and_gradients_to_the_bit(prior: str, count: int, samples: int) -> None:
    case = Case(PRIORS[prior], "normal_learnt")
    plain, replayed = (case.step(samples=samples, steps=steps) for steps in (0, MANY))
    assert not plain.recorded
    assert replayed.recorded
    assert not case.said
    noise = torch.randn(plain.noise_shape)
    rows = case.data.head(count)
    expected, found = (gradients(step, rows, noise, share=0.3) for step in (plain, replayed))
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=0 if count == len(case.data) else 1e-5, atol=1e-6 * (count < 6))


@pytest.mark.parametrize("guide", AUTOGUIDES)
def test_pyros_program_too(guide: str) -> None:
    """Guides without a fast path of their own need not run Pyro at each step."""
    case = Case(PRIORS["normal"], "normal_learnt", AUTOGUIDES[guide])
    step = case.step(samples=2, steps=MANY)
    assert isinstance(step, ProgramStep)
    assert not case.said
    case.assert_close(step, samples=2)


def test_a_tensor_may_lie_otherwise_than_the_one_that_was_traced() -> None:
    """The gradient of softplus behind a batch norm does: torch's fake tensors promise other strides."""
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5).eval(), nn.Softplus(), nn.Linear(5, 3))
    case = Case(PRIORS["normal"], "normal", AUTOGUIDES["auto_diagonal_normal"], network=network)
    step = case.step(samples=3, steps=MANY)
    assert step.recorded
    case.assert_close(step, samples=3)


def test_it_sees_parameters_as_they_change() -> None:
    case = Case(PRIORS["mixture"])
    step = case.step(steps=MANY)
    for _ in range(3):
        step(case.data.x, case.data.y, 0.2, 0.5)
    case.assert_close(step)
    for parameter in case.guide.parameters():
        parameter.data = parameter.data + 0.1  # in other memory
    case.assert_close(step)


@pytest.mark.parametrize(
    "method", [SVI(), MAP(), MCDropout(p=0.3), NUTS(warmup=3, draws=5, max_tree_depth=2)]
)
def test_a_training_ends_where_it_ends_without(method: Inference, monkeypatch: pytest.MonkeyPatch) -> None:
    data = values(20, outputs=1)
    ends = []
    for part in (1e9, 1e-9):  # of what compiling costs: never, always
        monkeypatch.setattr("pyrobbb.accelerated.compilation_cost._OF_RECORDING", part)

        def model() -> BayesianNetwork:
            net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
            return BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=0.5), 20)

        guide: Any = MeanFieldNormal if isinstance(method, SVI) else None
        posterior = fit(
            model, guide, data, inference=method, epochs=4, batch_size=10, seed=2, device="cpu", progress=None
        )
        ends.append(posterior.predict(data.train.x, draws=5, seed=1).mean)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def every_method(x: Tensor) -> list[Tensor]:
    """Of a square of positive numbers: one result for each of `METHODS`, which are methods of C."""
    given: dict[str, tuple[Any, ...]] = {
        "add": (2.0,), "addmm": (x, x), "bmm": (x[None],), "clamp_min": (0.5,), "div": (x + 1,),
        "expand": ([2, 3, 3],), "logsumexp": ([0], True), "mean": ([1],), "mm": (x,), "mul": (x,),
        "permute": ([1, 0],), "pow": (2,), "reshape": ([9],), "split_with_sizes": ([1, 2],), "squeeze": (0,),
        "sub": (x,), "sum": ([-1], True), "transpose": (0, 1), "unsqueeze": (1,),
    }  # fmt: skip
    found = []
    for name in METHODS:
        assert type(getattr(Tensor, name)) is type(Tensor.add)
        made = getattr(x[None] if name == "bmm" else x, name)(*given.get(name, ()))
        found += [made] if isinstance(made, Tensor) else made
    return [*found, x.sub(x, alpha=2), x.t().t(), (x**1).add_(1), 2**x, x]


def test_every_operation_that_is_called_as_a_method_gives_the_same_bits() -> None:
    x = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    for given in (x, x.flip(0) + 0.1):
        again = given.clone()
        for one, other in zip(every_method(given), replay(every_method, [x])(again), strict=True):
            assert torch.equal(one, other)


class Picks(nn.Module):
    """Indexes by a list and by a buffer, which neither methods nor their gradients take."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([2, 0, 3]))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.places][:, [0, 2, 1]]


@pytest.mark.parametrize("first", [True, False], ids=["inputs", "outputs"])
def test_a_network_that_indexes_is_recorded(first: bool) -> None:
    layers = [Picks(), nn.Linear(3, 3)] if first else [nn.Linear(4, 4), Picks()]
    case = Case(PRIORS["normal"], "normal_learnt", network=nn.Sequential(*layers))
    step = case.step(steps=MANY)
    assert step.recorded
    case.assert_close(step)


def test_a_distribution_that_was_expanded_elsewhere_is_recorded() -> None:
    """`expand` writes torch's default of that moment, to check values, onto what it returns."""
    law = dist.HalfNormal(1.0).expand([2]).to_event(1)
    assert law.base_dist._validate_args
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5])
    replayed = replay(law.log_prob, [one])
    torch.testing.assert_close(replayed(other), law.log_prob(other))
    with pytest.raises(ValueError, match="support"):
        law.log_prob(-one)  # as before


def test_what_looks_at_a_value_is_not_recorded() -> None:
    case = Case(PRIORS["normal"])
    case.model.network.append(Looking())
    step = case.step(steps=MANY)
    assert not step.recorded
    assert not case.said
    with pytest.raises(CannotRecordError):
        replay(case.model.network, [case.data.x])
    case = Case(PRIORS["normal"], make_guide=AUTOGUIDES["auto_normal"])
    case.model.network.append(Looking())
    assert type(case.step(steps=MANY)) is ReferenceStep
    assert "its program cannot be compiled or recorded" in case.said[0]


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_what_draws_from_other_generators_than_torch_s_is_not_recorded(draw: Any) -> None:
    """A layer left out at random would be left out, or not, at every step."""
    with pytest.raises(CannotRecordError, match="draws from Python's or numpy's generator"):
        replay(lambda x: [x * draw()], [torch.ones(3)])


class Warmer(nn.Module):
    """A layer with a temperature that is no tensor."""

    by = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.by * x


class Warms(Callback):
    """Changes the temperature at the end of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch(self, chain: Any, row: Any) -> None:
        if row.epoch == self.epoch:
            chain.model.network[-1].by = 2.0


@pytest.mark.parametrize("epoch", [1, 30])
def test_a_network_that_changes_is_refused_where_the_step_would_not_see_it(epoch: int) -> None:
    def train(epochs: int, **options: Any) -> None:
        with isolated(0):
            net = nn.Sequential(nn.Linear(3, 3), Warmer())
            model = BayesianNetwork(net, priors.Normal(), likelihoods.Categorical(), 30)
            fit(
                model, MeanFieldNormal(model), classes(30), epochs=epochs, batch_size=3, device="cpu",
                callbacks=[Warms(epoch)], progress=None, **options,
            )  # fmt: skip

    with pytest.raises(ValueError, match=r"the network changed in training.* train with fast='off'"):
        train(60)
    train(epoch + 1, fast="off")
