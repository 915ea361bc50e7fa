"""What is said of a fit besides its faults: importance ratios, gradient noise, simulated data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.nn import PyroModule
from torch import nn

from engine_fakes import normal
from pyrobbb import Posterior, likelihoods, priors
from pyrobbb._support.random_state import isolated, mixed_seed
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup import notes
from pyrobbb.data import OnDisk, from_arrays
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.evaluation import importance
from pyrobbb.evaluation.elbo_noise import gradient_signal
from pyrobbb.evaluation.importance import last_layer_k_hat
from pyrobbb.evaluation.sbc import Calibration, simulation_based_calibration
from pyrobbb.inference import MAP, Laplace
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.initializers import rho_of
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.trainer import fit

N, D, NOISE = 64, 4, 0.5


def test_a_function_that_is_known_exactly_is_not_called_biased() -> None:
    """At 0 a network without biases is 0 in every draw, as in truth; a tie counts half."""
    x = torch.linspace(-1, 1, 9)[:, None]
    data = from_arrays(x, x, task="regression")

    def model() -> BayesianNetwork:
        net = nn.Sequential(nn.Linear(1, 5, bias=False), nn.Tanh(), nn.Linear(5, 1, bias=False))
        return BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5), 9)

    def from_the_prior(made: Dataset, seed: int) -> Posterior:
        return Posterior([(model(), model())])

    found = simulation_based_calibration(model(), data, from_the_prior, repeats=6, points=9, draws=50)
    assert (found.p[:, 4] == 0.5).all()
    assert np.isfinite(found.asymmetry)
    known = Calibration(np.full((6, 1, 1), 0.5), 50)
    assert known.asymmetry == 1.0
    assert "a single point, which has no width" in str(known)  # not "nan %"
    uniform = np.linspace(0, 1, 51)[:, None]
    beside = np.stack([uniform, np.full_like(uniform, 0.5)], axis=1)  # which lies within any interval
    assert Calibration(beside, 50).covered == pytest.approx(0.5, abs=1e-12)
    one_side = np.append(0.5, np.linspace(0.6, 0.9, 20))  # a place at the half alone says nothing
    assert Calibration(one_side[:, None, None], 50).asymmetry < 1e-3


def test_a_fit_that_draws_its_start_first_does_not_start_at_the_truth() -> None:
    """A start drawn from the prior is another draw than the truth, and so as often above as below it."""

    def at_the_start(made: Dataset, seed: int) -> Posterior:
        model = linear()
        with isolated(seed), torch.no_grad():
            start = model.sample_weights()["weight"]
        return Posterior([(model, MAP(init_loc=lambda site: start).guide(model, None))])

    found = simulation_based_calibration(linear(), orthogonal(), at_the_start, repeats=20, points=3, draws=2)
    assert ((found.p == 0) | (found.p == 1)).all()


def test_rows_on_the_disk_are_looked_at_as_those_in_memory(tmp_path: Path) -> None:
    data = orthogonal()
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", getattr(data.train, name).numpy())
    there = OnDisk(x=str(tmp_path / "x.npy"), y=str(tmp_path / "y.npy"), task="regression").load()
    posterior = fit(linear(), MeanFieldNormal, data, epochs=2, progress=None)
    assert notes(posterior, there, draws=20) == (said := notes(posterior, data, draws=20))
    assert f"for one draw and {N} rows" in said[1]  # all there are
    found = simulation_based_calibration(linear(), there, lambda made, seed: posterior, repeats=2, points=3)
    same = simulation_based_calibration(linear(), data, lambda made, seed: posterior, repeats=2, points=3)
    np.testing.assert_allclose(found.p, same.p)


def orthogonal() -> Dataset:
    """Inputs with x^T x = N, for which the mean field of a linear model is the exact posterior."""
    with isolated(0):
        x = torch.linalg.qr(torch.randn(N, D))[0] * N**0.5
        y = x @ torch.ones(D, 1) + NOISE * torch.randn(N, 1)
    return from_arrays(x, y, task="regression")


def signs() -> Dataset:
    """Inputs with x^T x = N that no seed decides, as it may turn random ones across a bias: all signs."""
    x = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * D).repeat_interleave(N // 2**D, 0)
    return from_arrays(x, x.sum(1, keepdim=True), task="regression")


def linear() -> BayesianNetwork:
    return BayesianNetwork(
        nn.Linear(D, 1, bias=False), priors.Normal(sigma=1.0), likelihoods.Normal(scale=NOISE), N
    )


def exact(data: Dataset, *, wider: float = 1.0, shift: float = 0.0) -> Posterior:
    """The exact posterior, or one of another width, or shifted by so many of its standard deviations."""
    model = linear()
    precision = N / NOISE**2 + 1
    loc = (data.train.x.T @ data.train.y).T / NOISE**2 / precision + shift * precision**-0.5
    rho = float(rho_of(torch.tensor(wider * precision**-0.5)))
    guide = MeanFieldNormal(model, init_loc=lambda site: loc, init_rho=rho)
    guide()
    return Posterior([(model, guide)])


class Conditional(PyroModule):
    """Normal given another weight, in its mean or its width, and not by itself."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of, self.own = of, nn.Parameter(torch.zeros(1))

    def forward(self, *args: object, **kwargs: object) -> dict[str, torch.Tensor]:
        w = pyro.sample("weight", dist.Normal(torch.zeros(1, D), 1.0).to_event(2))
        parts = (w[:, 0], 0.1) if self.of == "mean" else (self.own, w[:, 0].exp())
        return {"weight": w, "bias": pyro.sample("bias", dist.Normal(*parts).to_event(1))}


class WithNoise(PyroModule):
    """Independent normals, and a latent noise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1))

    def forward(self, *args: object, **kwargs: object) -> dict[str, torch.Tensor]:
        return {
            "weight": pyro.sample("weight", dist.Normal(self.weight, 1.0).to_event(2)),
            "bias": pyro.sample("bias", dist.Normal(torch.zeros(1), 1.0).to_event(1)),
            "likelihood.scale": pyro.sample("likelihood.scale", dist.HalfNormal(1.0)),
        }


@pytest.mark.parametrize("of", ["mean", "width"])
def test_a_guide_of_dependent_normals_has_no_k_hat(of: str) -> None:
    data = orthogonal()
    model = BayesianNetwork(nn.Linear(D, 1), priors.Normal(), likelihoods.Normal(NOISE), N)
    assert last_layer_k_hat(Posterior([(model, Conditional(of))]), data.train, draws=100) is None


def test_a_point_has_no_k_hat() -> None:
    data, model = orthogonal(), linear()
    guide = AutoDelta(model)
    guide(data.train.x, data.train.y)
    assert last_layer_k_hat(Posterior([(model, guide)]), data.train) is None


def test_only_what_the_ratios_are_of_has_a_k_hat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that count once, no latent besides the weights, and no more rows than a draw can pass over."""
    data = orthogonal()
    posterior, few = exact(data), {"draws": 100}
    assert last_layer_k_hat(posterior, replace(data.train, weights=torch.ones(N)), **few) is None
    for largest, computed in ((N, True), (N - 1, False)):
        monkeypatch.setattr(importance, "LARGEST", largest)
        assert (last_layer_k_hat(posterior, data.train, **few) is not None) is computed
    with_noise = Posterior([(noisy(), WithNoise())])
    assert last_layer_k_hat(with_noise, Split(normal(9, 1), normal(9, 1)), **few) is None


def test_the_ratios_of_the_exact_posterior_are_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = orthogonal(), []
    monkeypatch.setattr(importance, "_k_hat", lambda ratios: seen.append(ratios))
    last_layer_k_hat(exact(data), data.train, draws=100)
    x, y = data.train.x.double(), data.train.y[:, 0].double()
    of_y = torch.distributions.MultivariateNormal(torch.zeros_like(y), x @ x.T + NOISE**2 * torch.eye(N))
    torch.testing.assert_close(seen[0], of_y.log_prob(y).expand(100), rtol=1e-4, atol=0)


def test_the_exact_posterior_has_constant_ratios_and_a_narrow_one_a_heavy_tail() -> None:
    data = orthogonal()
    widths = ((1.0, 1500), (1.3, 500), (0.2, 3000))
    found = [last_layer_k_hat(exact(data, wider=wider), data.train, draws=draws) for wider, draws in widths]
    good, wide, narrow = (value for value in found if value is not None)
    assert good < 0.45  # over 8 seeds: mean -0.10, sd 0.07
    assert wide < 0.45  # bounded ratios; mean -0.37, sd 0.07
    assert narrow > 0.45  # mean 1.12, sd 0.11


def test_the_gradient_has_no_signal_at_the_minimum_and_much_away_from_it() -> None:
    data = orthogonal()
    there, away = exact(data).chains[0], exact(data, shift=100.0).chains[0]
    assert gradient_signal(*there, data.train, batch=N) < 0.5  # over 20 seeds: mean 0.04, sd 0.07
    assert gradient_signal(*away, data.train, batch=N) > 3  # mean 16.6, sd 1.0
    with pytest.raises(ValueError, match="repeats must be a whole number of at least 2, got 1"):
        gradient_signal(*there, data.train, repeats=1)


@pytest.mark.parametrize(
    ("wider", "shift", "biased", "low", "high"),
    [  # covered, mean over 20 seeds: 0.49, 0.90, 0.17 and 0.22; sd 0.02
        (1.0, 0.0, False, 0.35, 0.65),
        (3.0, 0.0, False, 0.75, 1.0),
        (0.3, 0.0, False, 0.0, 0.3),
        (1.0, 1.5, True, 0.0, 0.4),
    ],
)
def test_simulated_data_tell_a_bias_and_a_width(
    wider: float, shift: float, biased: bool, low: float, high: float
) -> None:
    def fitted(made: Dataset, seed: int) -> Posterior:
        return exact(made, wider=wider, shift=shift)

    found = simulation_based_calibration(linear(), signs(), fitted, repeats=60, points=4, draws=30)
    assert found.p.shape == (60, 4, 1)
    assert (found.asymmetry < 1e-6) is biased  # without bias a p-value, with it 10^-11.7, sd 0.3
    assert low <= found.covered <= high


def test_the_words_of_a_calibration() -> None:
    uniform = Calibration(np.linspace(0, 1, 101)[:, None, None], 100)
    assert uniform.asymmetry > 0.9
    assert str(uniform).startswith("on 101 data sets drawn from the model, 50 % of true function values")


@pytest.mark.parametrize("draws", [2, 3, 10, 200])
def test_an_exact_posterior_covers_half_with_any_number_of_draws(draws: int) -> None:
    """A truth is above 0, 1, ... or all of them with equal probability; of 200, 99 of 201 are in between."""
    ranks = np.arange(draws + 1)[:, None, None] / draws
    assert Calibration(ranks, draws).covered == pytest.approx(0.5, abs=1e-12)
    narrow = Calibration(np.array([0.0, 1.0])[:, None, None], draws)
    assert narrow.covered == pytest.approx(max(0.0, 1 - 0.25 * (draws + 1)), abs=1e-12)


def test_a_point_has_no_width_that_could_be_right() -> None:
    def fitted(made: Dataset, seed: int) -> Posterior:
        model = linear()
        return Posterior([(model, MAP().guide(model, None))])

    found = simulation_based_calibration(linear(), orthogonal(), fitted, repeats=4, points=2)
    assert np.isnan(found.covered)
    assert str(found) == (
        "on 4 data sets drawn from the model, the posterior is a single point, which has no width; "
        f"p-value for a centre without bias {found.asymmetry:.2g}"
    )


def test_simulated_data_count_only_draws_that_differ() -> None:
    """A sampler that kept two is not asked for more, nor a point for more than itself."""

    def sampled(made: Dataset, seed: int) -> Posterior:
        model = linear()
        guide = EmpiricalGuide(model, 5)
        for value in (-1e4, 1e4):
            guide.keep(torch.full((D,), value))
        return Posterior([(model, guide)] * 3)

    def points(made: Dataset, seed: int) -> Posterior:
        model = linear()
        return Posterior([(model, MAP().guide(model, None))] * 5)

    assert simulation_based_calibration(linear(), orthogonal(), sampled, repeats=2, points=3).draws == 3 * 2
    assert simulation_based_calibration(linear(), orthogonal(), points, repeats=2, points=3).draws == 5


def test_notes_of_a_normal_and_of_a_point() -> None:
    data = orthogonal()
    prior, noise, k_hat = notes(exact(data), data, draws=30)
    assert "outputs have a standard deviation of" in prior
    assert "signal-to-noise ratio" in noise
    assert "Pareto k-hat" in k_hat
    model = linear()
    assert len(notes(Posterior([(model, MAP().guide(model, None))]), data, draws=30)) == 1


def test_the_prior_s_certainty_of_a_class() -> None:
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    data = from_arrays(x, (x[:, 0] > 0).long(), task="classification")
    for sigma, words in ((1e-3, "is 0 % sure"), (1e3, "is 100 % sure")):
        model = BayesianNetwork(nn.Linear(2, 2), priors.Normal(sigma=sigma), likelihoods.Categorical(), 30)
        guide = MeanFieldNormal(model)
        guide()
        assert words in notes(Posterior([(model, guide)]), data, draws=30)[0]


def test_simulated_data_are_compared_with_the_whole_mixture() -> None:
    """Of two chains, far below and far above every truth, each counts by its weight."""

    def mixture(made: Dataset, seed: int) -> Posterior:
        chains = [exact(made, shift=shift).chains[0] for shift in (-1e4, 1e4)]
        return Posterior(chains, chain_weights=(0.75, 0.25))

    found = simulation_based_calibration(linear(), orthogonal(), mixture, repeats=3, points=40)
    assert set(np.unique(found.p)) == {0.25, 0.75}


def test_simulated_data_of_a_linearised_network_are_compared_with_what_it_predicts() -> None:
    data = orthogonal()
    net = nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, 1))
    kept: list[Posterior] = []

    def laplace(made: Dataset, seed: int) -> Posterior:
        model = BayesianNetwork(net, priors.Normal(sigma=3.0), likelihoods.Normal(scale=3.0), N)
        few = {"epochs": 1, "progress": None, "inference": Laplace(structure="diagonal")}
        kept.append(fit(model, None, made, **few))
        return kept[-1]

    model = BayesianNetwork(net, priors.Normal(sigma=3.0), likelihoods.Normal(scale=3.0), N)
    found = simulation_based_calibration(model, data, laplace, repeats=2, points=4, draws=50)
    with isolated(mixed_seed(0, 1, -1)), torch.no_grad():
        truth = model.apply_network(model.sample_weights(), data.train.x[::16][:4])
    means = kept[1].predict(data.train.x[::16][:4], draws=50, seed=1).means
    np.testing.assert_allclose(found.p[1], (means < truth).double().mean(0))


def test_rows_with_weights_are_no_draw_from_the_model() -> None:
    data = orthogonal()
    weighted = replace(data, train=replace(data.train, weights=torch.ones(N)))
    with pytest.raises(ValueError, match="weights"):
        simulation_based_calibration(linear(), weighted, lambda made, seed: exact(made), repeats=2)


def test_targets_of_different_units_have_a_spread_each() -> None:
    """Of outputs around 0 and around 1000, the spread between the two is none of the targets'."""
    x = normal(200, D)
    data = from_arrays(x, x[:, :2] + torch.tensor([0.0, 1000.0]), task="regression")
    model = BayesianNetwork(nn.Linear(D, 2), priors.Normal(), likelihoods.Normal(0.1), 200)
    (words,) = notes(Posterior([(model, MAP().guide(model, None))]), data, draws=30)
    assert float(words.rpartition(" ")[2]) == pytest.approx(1.0, abs=0.2)


def test_calibration_draws_a_latent_noise_once_for_each_data_set() -> None:
    """A `PyroSample` of the likelihood's is a part of the truth that the data are drawn from."""
    x = normal(20, 1)
    data = from_arrays(x, x, task="regression")
    seen = []

    def fitted(simulated, seed):
        seen.append(float(simulated.train.y.std()))
        return fit(noisy, AutoNormal, simulated, epochs=3, progress=None, seed=seed)

    found = simulation_based_calibration(noisy(), data, fitted, repeats=3, points=4, draws=20)
    assert found.p.shape == (3, 4, 1)
    assert len(set(seen)) == 3


def noisy() -> BayesianNetwork:
    return BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(dist.HalfNormal(1.0)))
