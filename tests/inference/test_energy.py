"""The energies of a flat vector as a compiled program: the same numbers, and where it is used."""

from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from torch import nn

from engine_fakes import Listens
from pyrobbb import BayesianNetwork, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.compression.pruning import prune
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset
from pyrobbb.evaluation.arviz_export import to_groups
from pyrobbb.inference import NUTS, SGHMC, energy
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.inference.energy import Energy
from pyrobbb.posterior import Posterior


def data(N: int = 20, dtype: torch.dtype = torch.float32) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=draw)
    return from_arrays(x, x.sum(1, keepdim=True), task="regression", dtype=dtype)


def model() -> BayesianNetwork:
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    return BayesianNetwork(network, priors.ScaleMixture(), likelihoods.Normal(scale=0.3), N=20)


def line() -> BayesianNetwork:
    """A model that is soon compiled: on batches of 8 rows, once for all tests of this file."""
    return BayesianNetwork(nn.Linear(2, 1), priors.ScaleMixture(), likelihoods.Normal(scale=0.3)).double()


def test_a_compiled_gradient_has_the_same_numbers_at_every_batch_size() -> None:
    made, rows = line(), data(dtype=torch.float64).train
    x, y, share = rows.x, rows.y, torch.tensor(0.4, dtype=torch.float64)
    guide = EmpiricalGuide(made, 1)
    with torch.no_grad():
        z = torch.randn_like(guide.loc)
    exact = Energy(made, guide)
    with isolated():  # as within a fit, where nothing is validated at each step
        compiled = Energy(made, guide).prepared(z, x[:8], y[:8], calls=1, log=print, fast="compiled")
    assert compiled.recorded
    for B in (8, 5):
        mine, theirs = compiled(z, share, x[:B], y[:B], None), exact.gradient(z, x[:B], y[:B], share)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "N"),
    [(SGHMC(cycles=1, draws=4), 20), (NUTS(warmup=4, draws=4, max_tree_depth=2), 8)],  # NUTS takes all rows
    ids=["SGHMC", "NUTS"],
)
def test_a_long_chain_runs_the_compiled_program(method: Any, N: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "GRADIENT", {"cpu": (1.0, 0.0, 0.0)})
    eager = []
    plain = Energy.gradient

    def counted(self: Energy, *inputs: Any) -> Any:
        eager.append(len(inputs[1]))
        return plain(self, *inputs)

    monkeypatch.setattr(Energy, "gradient", counted)
    rows = data(N, torch.float64)
    fit(line(), None, rows, inference=method, epochs=10, batch_size=8, seed=1, progress=None)
    assert 1 <= len(eager) <= 6, "of 30 steps: it is recorded, and compared with its recording 4 times"


def test_a_chain_that_is_not_to_be_compiled_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "GRADIENT", {"cpu": (1.0, 0.0, 0.0)})
    for fast in ("eager", "off"):
        method = SGHMC(cycles=1, draws=4)
        heard = Listens()
        fit(model(), None, data(), inference=method, epochs=10, batch_size=8, fast=fast, progress=heard)
        assert not any("compil" in line for line in heard.said)


BOUNDED: list[Any] = [
    dist.HalfNormal(1.3), dist.LogNormal(0.0, 1.0), dist.Gamma(2.0, 1.0), dist.Uniform(0.0, 2.0)
]  # fmt: skip


@pytest.mark.parametrize("scale", BOUNDED, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("of", ["likelihood", "weights"])
def test_the_density_of_coordinates_has_the_jacobian_of_what_they_stand_for(scale: Any, of: str) -> None:
    """A latent noise scale, or weights that are positive: integrated over all z the prior is 1."""
    net = nn.Linear(1, 1, bias=False).double()
    net.weight.data.fill_(0.5)
    prior: Any = priors.IID(scale) if of == "weights" else priors.Normal()
    noise: Any = likelihoods.Normal(0.7 if of == "weights" else scale)
    made = BayesianNetwork(net, prior, noise, N=1)
    guide = EmpiricalGuide(made, 1)
    energy = Energy(made, guide)
    x = torch.ones(1, 1, dtype=torch.float64)
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    at = list(guide.shapes).index("weight" if of == "weights" else "likelihood.scale")
    density = []
    with torch.no_grad():
        for value in grid[::10]:
            z = torch.zeros(len(guide.shapes), dtype=torch.float64)
            z[at] = value
            density.append(-energy(z, x, x)[0])
    weight = 0.0 if of == "weights" else float(dist.Normal(0.0, 1.0).log_prob(torch.zeros(())))
    total = torch.trapezoid((torch.stack(density) - weight).exp(), grid[::10])
    assert float(total) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("value", "start"), [(0.3, 0.3), (-0.2, 0.5), (1.4, 0.5)])
def test_what_has_no_density_starts_at_the_median(value: float, start: float) -> None:
    """At the end of an interval, where torch puts what lies outside, the gradient is 0."""
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(value)
    made = BayesianNetwork(net, priors.IID(dist.Beta(20.0, 20.0)), likelihoods.Normal(0.1), N=1)
    with isolated(0):
        guide = EmpiricalGuide(made, 1)
    assert float(guide.values(guide.loc.detach())["weight"]) == pytest.approx(start, abs=0.2)


def test_what_lives_on_the_line_needs_no_jacobian() -> None:
    made = model()
    guide = EmpiricalGuide(made, 1)
    assert guide.bounded == ()
    assert float(guide.log_jacobian(guide.loc.detach())) == 0.0


@pytest.mark.parametrize(("divergent", "told"), [(0, False), (2, False), (3, True), (20, True)])
def test_a_chain_that_diverges_says_so(
    divergent: int, told: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"divergences": {"chain 0": list(range(divergent))}}
    monkeypatch.setattr(MCMC, "diagnostics", lambda self: found)
    method = NUTS(warmup=4, draws=20, max_tree_depth=1)
    fit(model(), None, data(), inference=method, seed=1, progress=None)
    assert (f"diverged in {divergent} of its 20 draws" in caplog.text) is told


def test_which_draws_diverged_is_exported_in_the_order_of_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a file, and of some of the draws, each beside its own weights."""
    where = [2, 3, 17]
    monkeypatch.setattr(MCMC, "diagnostics", lambda self: {"divergences": {"chain 0": where}})
    method = NUTS(warmup=4, draws=20, max_tree_depth=1)
    made, rows = model(), data()
    fit(made, None, rows, inference=method, seed=1, progress=None).save(tmp_path)
    posterior = Posterior.load(tmp_path, made, inference=method)
    guide: Any = posterior.chains[0][1]
    guide.stored.copy_(torch.arange(20.0)[:, None].expand_as(guide.stored))  # each draw says which it is
    for draws, seed in ((20, 0), (7, 0), (7, 3)):
        groups, _ = to_groups(posterior, rows, draws=draws, weights=["0.weight[0,0]"], seed=seed)
        numbers = groups["posterior"]["weight"][0, :, 0].tolist()
        assert numbers == sorted(set(numbers))
        assert groups["sample_stats"]["diverging"].tolist() == [[number in where for number in numbers]]
    assert to_groups(prune(posterior, 0.5), rows, draws=20)[0]["sample_stats"]["diverging"].sum() == len(
        where
    )
    drawn = [float(posterior.draw(1, seed=seed)["0.weight"][0, 0, 0]) for seed in range(20)]
    assert sorted(drawn) == list(range(20))  # Thompson sampling by `seed=` sees every one of them


def test_neighbouring_seeds_take_other_draws() -> None:
    """As far as there are enough: three times 20 of 100 draws have none in common."""
    guide = EmpiricalGuide(model(), 100)
    guide.kept += 100
    taken = [guide.place(number, seed) for seed in range(3) for number in range(20)]
    assert len(set(taken)) == 60
