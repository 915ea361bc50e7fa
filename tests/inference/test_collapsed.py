"""The last layer integrated out: against Laplace's formula, which is exact where a layer enters squared."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from engine_fakes import normal
from own_priors import Hierarchical
from pyrobbb import BayesianNetwork, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays
from pyrobbb.inference import NUTS
from pyrobbb.inference.collapsed import Collapsed
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.inference.energy import Energy

N = 9
NORMAL = likelihoods.Normal(0.3)


@pytest.fixture(autouse=True)
def _as_within_a_fit() -> Iterator[None]:
    """Nothing is validated at each step."""
    with isolated():
        yield


def network(outputs: int = 1, bias: bool = True) -> nn.Module:
    with isolated(3):
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs, bias=bias)).double()


def model(net: nn.Module, likelihood: Any, prior: Any = None) -> BayesianNetwork:
    return BayesianNetwork(net, prior or priors.Normal(sigma=0.7), likelihood, N=N).double()


def rows(outputs: int = 1, grid: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    x = normal(N, *grid, 2, seed=1, dtype=torch.float64)
    return x, normal(N, *grid, outputs, seed=2, dtype=torch.float64)


CASES: dict[str, tuple[BayesianNetwork, int]] = {
    "plain": (model(network(), likelihoods.Normal(0.3)), 1),
    "no bias": (model(network(bias=False), likelihoods.Normal(0.3)), 1),
    "two outputs": (model(network(2), likelihoods.Normal([0.3, 0.8])), 2),
    "in units": (model(network(2), likelihoods.Rescaled(likelihoods.Normal(0.3), [5.0, 1.0], [3.0, 2.0])), 2),
    "latent noise": (model(network(), likelihoods.Normal(dist.HalfNormal(1.0))), 1),
    "scales with a prior": (model(network(), likelihoods.Normal(0.3), Hierarchical()), 1),
    "a grid": (model(network(2), likelihoods.Normal([0.3, 0.8])), 2),
    "a centre": (model(network(), likelihoods.Normal(0.3), priors.Centred(sigma=0.4)), 1),
}


def integrated(
    of: Energy, last: Tensor, at: Tensor, x: Tensor, y: Tensor, counts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and precision of the coordinates `last`, and minus the log of the integral over them."""

    def joint(w: Tensor) -> Tensor:
        prior, nll = of(at.index_copy(0, last, w), x, y, counts)
        return prior + nll

    zero = at.new_zeros(len(last))
    H: Any = torch.autograd.functional.hessian(joint, zero)
    g: Any = torch.autograd.functional.jacobian(joint, zero)
    mean = -torch.linalg.solve(H, g)
    total = joint(mean) - 0.5 * len(last) * math.log(2 * math.pi) + 0.5 * torch.logdet(H)
    return mean, H, total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_energy_is_the_integral_over_the_last_layer(
    case: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, outputs = CASES[case]
    x, y = rows(outputs, (4,) if case == "a grid" else ())
    counts = torch.arange(N, dtype=torch.float64) / 3 if weighted else None  # one row counts 0 times
    guide = EmpiricalGuide(made, 1)
    names = [name for name, shape in guide.shapes.items() for _ in range(shape.numel())]
    last = torch.tensor([i for i, name in enumerate(names) if name in made.last_layer])
    rest = torch.tensor([i for i, name in enumerate(names) if name not in made.last_layer])
    collapsed = Collapsed(made, guide, x)
    assert collapsed.size == len(rest)
    z = 0.5 * normal(len(rest), seed=5, dtype=torch.float64)
    at = torch.zeros(len(names), dtype=torch.float64).index_copy(0, rest, z)
    mean, H, total = integrated(Energy(made, guide), last, at, x, y, counts)
    torch.testing.assert_close(sum(collapsed(z, x, y, counts)), total, rtol=1e-10, atol=1e-10)

    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    whole = collapsed.whole(z, x, y, counts)
    torch.testing.assert_close(whole.index_select(0, rest), z)
    torch.testing.assert_close(whole.index_select(0, last), mean, rtol=1e-8, atol=1e-8)
    noise = normal(len(last), seed=6, dtype=torch.float64)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    step = (collapsed.whole(z, x, y, counts) - whole).index_select(0, last)
    assert float(step @ H @ step) == pytest.approx(float(noise @ noise)), "in the metric of the precision"


def test_the_gradient_is_one_program_with_the_same_numbers() -> None:
    """Of a network without biases, whose program is the shortest to compile."""
    with isolated(3):
        net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False)).double()
    made, (x, y) = model(net, NORMAL), rows()
    one = torch.ones((), dtype=torch.float64)
    collapsed = Collapsed(made, EmpiricalGuide(made, 1), x)
    z = normal(collapsed.size, seed=5, dtype=torch.float64)
    compiled = collapsed.prepared(z, x, y, calls=1, log=print, fast="compiled")
    assert compiled.recorded
    for mine, theirs in zip(compiled(z, one, x, y, None), collapsed.gradient(z, x, y, one), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


class Squashed(nn.Module):
    def __init__(self, by: Any = torch.tanh) -> None:
        super().__init__()
        self.inside = network()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return self.by(self.inside(x))


TINY = ([1e-9], [1e-9])  # the units of y
REFUSED: list[tuple[Any, Any, Any, str]] = [
    (network(), likelihoods.StudentT(scale=0.3), None, "y must be normal .* under StudentT it is StudentT"),
    (network(2), likelihoods.HeteroscedasticNormal(), None, "noise must not depend on them"),
    (Squashed(), NORMAL, None, r"must be linear in .* with Bayesian weights \(inside.2.weight, "),
    (Squashed(lambda f: f.clamp(-20, 20)), NORMAL, None, "must be linear"),
    (Squashed(), likelihoods.Rescaled(NORMAL, *TINY), None, "must be linear"),
    (Squashed(lambda f: f / f.abs()), NORMAL, None, "must be linear"),  # 0 / 0 at weights of 0
    (
        network(2),
        likelihoods.Rescaled(likelihoods.HeteroscedasticNormal(), *TINY),
        None,
        "noise must not depend on them",
    ),
    (
        network(),
        NORMAL,
        priors.Laplace(),
        "prior of the last layer must be normal, that of '2.weight' is Lap",
    ),
    (nn.Linear(2, 1), NORMAL, None, r"last layer \(weight, bias\) has all"),
    (Squashed(lambda f: f if f.sum() > 0 else f + 0), NORMAL, None, "vmap cannot batch .*collapsed=False"),
]


@pytest.mark.parametrize(("net", "likelihood", "prior", "message"), REFUSED)
def test_what_cannot_be_integrated_out_is_refused(
    net: Any, likelihood: Any, prior: Any, message: str
) -> None:
    x, y = (part.float() for part in rows())
    data = from_arrays(x, y, task="regression")
    made = BayesianNetwork(net.float(), prior, likelihood)
    method = NUTS(warmup=4, draws=4, max_tree_depth=2, collapsed=True)
    with pytest.raises(ValueError, match=message):
        fit(made, None, data, inference=method, progress=None)
    with pytest.raises(ValueError, match="collapsed must be"):
        NUTS(collapsed=1)  # type: ignore[arg-type]


class Grows(nn.Module):
    """Beyond all numbers where inputs are not scaled."""

    def forward(self, x: Tensor) -> Tensor:
        return (20 * x).exp()


def test_inputs_on_another_scale_are_not_taken_for_a_layer_that_is_not_linear() -> None:
    with isolated(0):
        net = nn.Sequential(nn.Linear(2, 8), Grows(), nn.Linear(8, 1)).double()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.02)  # so that nothing is lost before weights are drawn
        x, y = 30 * torch.randn(20, 2).double(), torch.randn(20, 1).double()
    data = from_arrays(x, y, task="regression", dtype=torch.float64)
    method = NUTS(warmup=4, draws=4, collapsed=True)
    with pytest.raises(ValueError, match="scale x and y"):
        fit(BayesianNetwork(net, priors.Normal(), NORMAL), None, data, inference=method, progress=None)


def test_an_output_that_is_cut_off_at_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all weights are positive it is linear, at every row."""
    made, x = model(Squashed(torch.relu), NORMAL), rows()[0].abs()
    monkeypatch.setattr(torch, "randn", torch.ones)
    with pytest.raises(ValueError, match="must be linear"):
        Collapsed(made, EmpiricalGuide(made, 1), x)


def deep() -> BayesianNetwork:
    with isolated(3):
        layers = [nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1)]
    return BayesianNetwork(nn.Sequential(*layers), priors.Normal(), likelihoods.Normal(1e-3), N=N)


def test_where_there_is_an_energy_there_is_a_draw() -> None:
    """The precision is nearly singular, or is so for a computer."""
    made, (x, y) = deep().double(), rows()
    collapsed = Collapsed(made, EmpiricalGuide(made, 1), x)
    found = []
    for seed in range(20):
        z = 60 * normal(collapsed.size, seed=seed, dtype=torch.float64)
        with suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            collapsed(z, x, y)
            found.append(z)
    assert found
    for z in found:
        assert bool(collapsed.whole(z, x, y).isfinite().all())


@pytest.mark.parametrize("start", [1e5, 1e200])
def test_a_start_without_an_energy_is_refused(start: float) -> None:
    data = from_arrays(*(part.float() for part in rows()), task="regression")
    method = NUTS(warmup=4, draws=4, max_tree_depth=2, collapsed=start == 1e5, start=start)
    with pytest.raises(ValueError, match="energy of the starting weights"):
        fit(deep(), None, data, inference=method, progress=None)


def test_every_kept_draw_has_a_last_layer_that_fits_its_hidden_units() -> None:
    """Noise of 0.01 leaves a sum of 20 units, whatever they are, little freedom on a straight line."""
    x = torch.linspace(-1, 1, 5)[:, None]
    data = from_arrays(x, x * 0.5 + 0.2, task="regression")
    with isolated(3):
        net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    made = BayesianNetwork(net, priors.Normal(sigma=1.0), NORMAL)
    method = NUTS(warmup=4, draws=4, max_tree_depth=2, collapsed=True)
    tight = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Normal(0.01))
    for each, most in ((tight, 0.1), (made, 3.0)):
        posterior = fit(each, None, data, inference=method, seed=1, progress=None)
        f = posterior.model.apply_network(posterior.draw(4), x)
        assert 0 < float((f - data.train.y).abs().max()) < most
