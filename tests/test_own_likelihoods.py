"""Likelihoods of a user's own: matrices as latents, vectors, counts with extra zeros, angles."""

import math
from functools import partial
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroParam, PyroSample
from torch import Tensor, nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, Posterior, fit, likelihoods, priors
from pyrobbb.accelerated.record import CannotRecordError, record
from pyrobbb.data import from_arrays
from pyrobbb.evaluation.crps import crps
from pyrobbb.evaluation.sbc import simulation_based_calibration
from pyrobbb.inference import Laplace
from pyrobbb.likelihoods import Likelihood
from pyrobbb.posterior import moments
from pyrobbb.predictive import ClassPrediction, ValuePrediction

N = 12
X = torch.randn(N, 1, generator=torch.Generator().manual_seed(0))
DATA = from_arrays(X, X, task="regression", validation=0.25)
PAIRS = torch.cat([X, -X], 1) + 0.3 * torch.randn(N, 2, generator=torch.Generator().manual_seed(1))


class Confused(Likelihood):
    """Labels that were taken for others, by a matrix of their probabilities."""

    task, prediction = "classification", ClassPrediction

    def __init__(self) -> None:
        super().__init__()
        self.confusion = PyroSample(dist.Dirichlet(torch.ones(3, 3) + 5 * torch.eye(3)).to_event(1))

    def forward(self, output: Tensor) -> Any:
        return dist.Categorical(probs=(output.softmax(-1)[..., None] * self.confusion).sum(-2))


class Misaligned(Likelihood):
    """A shift for each class, right for rows alone: with draws it takes the draws for rows."""

    task, prediction = "classification", ClassPrediction

    def __init__(self) -> None:
        super().__init__()
        self.shift = PyroSample(dist.Normal(torch.zeros(3), 1.0).to_event(1))

    def width(self, outputs: int) -> int:
        return 1

    def forward(self, output: Tensor) -> Any:
        return dist.Categorical(logits=(output[..., None] + self.shift).squeeze(-2))


class Correlated(Likelihood):
    """Normal noise with a covariance that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_tril = PyroParam(torch.eye(2), constraints.lower_cholesky)

    def forward(self, output: Tensor) -> Any:
        return dist.MultivariateNormal(output, scale_tril=self.scale_tril)


class LatentCorrelation(Likelihood):
    """The same with a correlation under a prior of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_tril = PyroSample(dist.LKJCholesky(2, torch.tensor(1.0)))

    def forward(self, output: Tensor) -> Any:
        return dist.MultivariateNormal(output, scale_tril=0.3 * self.scale_tril)


class Shares(Likelihood):
    """Shares that sum to 1."""

    def forward(self, output: Tensor) -> Any:
        return dist.Dirichlet(3 * output.exp())


class ExtraZeros(Likelihood):
    """Counts with more zeros than Poisson's."""

    def width(self, outputs: int) -> int:
        return 2 * outputs

    def forward(self, output: Tensor) -> Any:
        rate, gate = output.chunk(2, -1)
        return dist.ZeroInflatedPoisson(rate.exp(), gate_logits=gate).to_event(1)


class Gaps(Likelihood):
    """Normal noise of sd 1/2 where an outcome was observed."""

    def width(self, outputs: int) -> int:
        return 2 * outputs

    def forward(self, output: Tensor) -> Any:
        mean, there = output.chunk(2, -1)
        return dist.Normal(mean, 0.5).mask(there > 0).to_event(1)


class Angles(Likelihood):
    """Angles, in radians."""

    def forward(self, output: Tensor) -> Any:
        return dist.VonMises(output, 2.0).to_event(1)


def fitted(likelihood: Likelihood, y: Tensor, width: int, **options: Any) -> Posterior:
    task = likelihood.task
    data = from_arrays(X, y, task=task, validation=0.25 if task == "regression" else 0.0)
    latent = isinstance(likelihood, Confused | Misaligned | LatentCorrelation)
    model = BayesianNetwork(nn.Linear(1, width), priors.Normal(), likelihood)
    guide: Any = AutoNormal if latent else MeanFieldNormal
    return fit(model, guide, data, epochs=2, progress=None, **options)


def latent(draws: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The network's outputs (S, B, width), and the likelihood's latent."""
    [name] = [name for name in draws if name.startswith("likelihood.")]
    weight, bias = (draws[next(n for n in draws if n.endswith(end))] for end in ("weight", "bias"))
    return torch.einsum("sij,bj->sbi", weight, X) + bias[:, None], draws[name]


@pytest.mark.parametrize("draws", [3, N, N + 1])  # as many as classes, as rows, and neither
def test_a_latent_matrix_keeps_to_its_draw(draws: int) -> None:
    posterior = fitted(Confused(), torch.arange(N) % 3, 3, fast="eager")
    output, confusion = latent(posterior.draw(draws))
    exact = torch.einsum("sbi,sij->bj", output.softmax(-1), confusion) / draws
    torch.testing.assert_close(posterior.predict(X, draws=draws).probs, exact)


@pytest.mark.parametrize("draws", [N, N + 1])
def test_a_likelihood_that_mixes_up_draws_is_refused(draws: int) -> None:
    posterior = fitted(Misaligned(), torch.arange(N) % 3, 1, fast="eager")
    with pytest.raises(
        ValueError, match=r"Misaligned must take all draws at once, here .* likelihood\.shift"
    ):
        posterior.predict(X, draws=draws)


@pytest.mark.parametrize("draws", [N, N + 1])
def test_a_latent_correlation_trains_and_keeps_to_its_draw(draws: int) -> None:
    posterior = fitted(LatentCorrelation(), PAIRS, 2)  # its step cannot be recorded
    output, scale_tril = latent(posterior.draw(draws))
    each = zip(output, 0.3 * scale_tril, strict=True)
    exact = torch.stack([dist.MultivariateNormal(o, scale_tril=L).log_prob(PAIRS) for o, L in each])
    found = posterior.predict(X, PAIRS, draws=draws).log_likelihood
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)


def test_a_size_that_depends_on_values_cannot_be_recorded() -> None:
    with pytest.raises(CannotRecordError):
        record(lambda x: x[x > 0].exp().sum(), [torch.randn(3)])


@pytest.mark.parametrize(
    ("likelihood", "y", "width"),
    [
        (Correlated(), PAIRS, 2),
        (Shares(), PAIRS.softmax(-1), 2),
        (ExtraZeros(), X.exp().round(), 2),
        (Gaps(), X, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_any_kind_are_fitted_scored_and_given_intervals(
    likelihood: Likelihood, y: Tensor, width: int
) -> None:
    prediction = fitted(likelihood, y, width).predict(X, y, sample=True)
    assert isinstance(prediction, ValuePrediction)
    assert prediction.mean.shape == y.shape
    assert prediction.interval(0.9).shape == (2, *y.shape)
    scores = prediction.metrics(y)
    assert scores["rmse"] == pytest.approx(float((prediction.mean - y).square().mean().sqrt()))
    assert scores["nll"] == pytest.approx(-float(prediction.log_predictive.mean()), rel=1e-5)


class NothingElse(dist.TorchDistribution):
    """A normal's density and mean, without draws, a cdf or a support."""

    def __init__(self, loc: Tensor) -> None:
        self.loc = loc
        super().__init__(loc.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * (value - self.loc).square()


class Density(Likelihood):
    def forward(self, output: Tensor) -> Any:
        return NothingElse(output).to_event(1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda posterior: posterior.predict(X, sample=True),
        lambda posterior: posterior.predict(X).median,
        lambda posterior: posterior.model(X),
        lambda posterior: fit(posterior.model, None, DATA, inference=Laplace(), epochs=1, progress=None),
        lambda posterior: simulation_based_calibration(posterior.model, DATA, None, repeats=2),
    ],
    ids=["sample", "quantiles", "model", "laplace", "simulation"],
)
def test_a_density_alone_trains_and_says_that_it_gives_no_draws(ask: Any) -> None:
    posterior = fitted(Density(), X, 1)
    assert bool(posterior.predict(X, X).log_predictive.isfinite().all())
    with pytest.raises(ValueError, match="NothingElse gives no draws: define sample"):
        ask(posterior)


def test_the_moments_of_angles_on_a_circle_are_not_taken_for_theirs() -> None:
    prediction = fitted(Angles(), X.clamp(-3, 3), 1).predict(X)
    with pytest.raises(ValueError, match=r"VonMises has no mean: use median"):
        _ = prediction.mean
    assert prediction.median.abs().max() <= math.pi
    with pytest.raises(ValueError, match=r"VonMises has no variance: use interval"):
        _ = prediction.std
    assert prediction.interval(0.9).shape == (2, N, 1)


class Masked(Likelihood):
    """Normal noise at the places that a network's second output leaves in, where it is above 0.5."""

    def width(self, outputs: int) -> int:
        return 2 * outputs

    def forward(self, output: Tensor) -> Any:
        f, mask = output.chunk(2, -1)
        return dist.Normal(f, 0.3).mask(mask > 0.5).to_event(1)


class WithMask(nn.Module):
    """A line, beside the mask that its last input is."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.line(x[:, :1]), x[:, 1:]], 1)


def test_laplace_sees_what_a_mask_leaves_in(caplog: pytest.LogCaptureFixture) -> None:
    """The exact posterior of the rows that are left, which an output of 0 does not show."""
    x = torch.cat([X, (torch.arange(N) >= 4).float()[:, None]], 1)  # not the first rows
    y = 2 * X + 0.1
    y[:4] = 9.0  # whatever they are
    data = from_arrays(x, y, task="regression")
    laplace = Laplace(structure="full")
    model = BayesianNetwork(WithMask(), priors.Normal(sigma=1.0), Masked())
    adam = partial(torch.optim.Adam, lr=0.05)
    posterior = fit(model, None, data, inference=laplace, epochs=600, optim=adam, seed=1, progress=None)
    left = x[:, 1] > 0.5
    design = torch.cat([X, torch.ones(N, 1)], 1)[left].double()
    covariance = torch.linalg.inv(design.T @ design / 0.3**2 + torch.eye(2, dtype=torch.float64))
    mean = covariance @ (design.T @ y[left, 0].double()) / 0.3**2
    found, spread = moments(posterior.chains[0])
    for i, name in enumerate(("line.weight", "line.bias")):
        assert float(found[name]) == pytest.approx(float(mean[i]), abs=2e-3)
        assert float(spread[name]) == pytest.approx(float(covariance[i, i].sqrt()), rel=2e-3)
    assert "score such a model by its log_predictive" in caplog.text
    assert "residuals" not in caplog.text


def test_a_full_curvature_that_is_singular_says_so() -> None:
    x, y = torch.ones(16, 2), torch.zeros(16, 1)  # powers of two: no rounding makes it regular
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(sigma=1e9), likelihoods.Normal(scale=2.0**-20))
    with pytest.raises(ValueError, match=r"full curvature is singular .* take a narrower one"):
        fit(
            model, None, from_arrays(x, y, task="regression"), inference=Laplace(structure="full"),
            epochs=1, seed=1, progress=None,
        )  # fmt: skip


@pytest.mark.parametrize("heavy", [True, False])
def test_a_mask_changes_nothing_of_what_a_value_is_predicted_to_be(heavy: bool) -> None:
    """Quantiles had been those of samples, and the function of a y without a mean could not be had."""

    class Values(Likelihood):
        def __init__(self, masked: bool) -> None:
            super().__init__()
            self.masked = masked

        def forward(self, output: Tensor) -> Any:
            law = dist.StudentT(1.0, output, 0.3) if heavy else dist.Normal(output, 0.3)
            return (law.mask(output < 0) if self.masked else law).to_event(1)

    network, y = nn.Linear(1, 1), torch.zeros(N, 1)
    models = (BayesianNetwork(network, priors.Normal(), Values(masked)) for masked in (True, False))
    masked, plain = (Posterior([(model, model)]).predict(X, y, draws=5) for model in models)
    for level in (0.5, 0.99):
        torch.testing.assert_close(masked.interval(level), plain.interval(level), rtol=0, atol=0)
        torch.testing.assert_close(masked.function_interval(level), plain.function_interval(level))
    assert not torch.equal(masked.log_predictive, plain.log_predictive)
    if not heavy:
        assert torch.equal(crps(masked, y), crps(plain, y))
