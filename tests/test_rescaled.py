"""Targets in their own units: every number is that of the distribution without standardising."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyrobbb import BayesianNetwork, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Spec, Units
from pyrobbb.evaluation.conformal import calibrate
from pyrobbb.likelihoods import Rescaled
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction
from pyrobbb.training.trainer import Training

UNITS = Units((1000.0, -3.0), (50.0, 0.02))
F = torch.randn(5, 7, 2, generator=torch.Generator().manual_seed(0))
Y = 1000.0 + torch.randn(7, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([50.0, 1000.0])
LOC, SCALE = torch.tensor(UNITS.loc), torch.tensor(UNITS.scale)


def made(base: likelihoods.Likelihood) -> Rescaled:
    return Rescaled(base, UNITS.loc, UNITS.scale)


def test_a_normal_in_its_own_units():
    distribution = made(likelihoods.Normal(scale=0.7))(F)
    plain = dist.Normal(LOC + SCALE * F, 0.7 * SCALE).to_event(1)
    assert (distribution.batch_shape, distribution.event_shape) == (plain.batch_shape, plain.event_shape)
    torch.testing.assert_close(distribution.log_prob(Y), plain.log_prob(Y), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(distribution.mean, plain.mean)
    torch.testing.assert_close(distribution.variance, plain.variance)


def test_a_heteroscedastic_normal_in_its_own_units():
    likelihood = made(likelihoods.HeteroscedasticNormal(least_scale=0.1))
    assert likelihood.width(2) == 4
    output = torch.cat([F, F], dim=-1)
    plain = dist.Normal(LOC + SCALE * F, SCALE * (nn.functional.softplus(F) + 0.1)).to_event(1)
    distribution = likelihood(output)
    torch.testing.assert_close(distribution.log_prob(Y), plain.log_prob(Y), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(distribution.variance, plain.variance)


def test_a_mixture_in_its_own_units():
    likelihood = made(likelihoods.NormalMixture(components=2, scale=0.7))
    logits, means = F[..., None] * torch.tensor([1.0, -1.0]), F[..., None] + torch.tensor([0.0, 3.0])
    distribution = likelihood(torch.cat([logits, means], dim=-1).flatten(-2))
    weights = logits.softmax(-1)
    each = dist.Normal(LOC[:, None] + SCALE[:, None] * means, 0.7 * SCALE[:, None])
    plain = (each.log_prob(Y[..., None]) + weights.log()).logsumexp(-1).sum(-1)
    torch.testing.assert_close(distribution.log_prob(Y), plain, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(distribution.mean, (each.mean * weights).sum(-1))


class Together(likelihoods.Likelihood):
    """Normal noise that the outputs share."""

    scale_tril = torch.tensor([[0.7, 0.0], [-0.5, 0.2]])

    def forward(self, output: torch.Tensor) -> dist.TorchDistribution:
        return dist.MultivariateNormal(output, scale_tril=self.scale_tril)


def test_vectors_in_their_own_units():
    likelihood = likelihoods.in_units(Together(), Spec(7, (1,), 2, "regression", UNITS))
    distribution = likelihood(F)
    plain = dist.MultivariateNormal(LOC + SCALE * F, scale_tril=SCALE[:, None] * Together.scale_tril)
    assert (distribution.batch_shape, distribution.event_shape) == ((5, 7), (2,))
    y = LOC + SCALE * F[0]
    torch.testing.assert_close(distribution.log_prob(y), plain.log_prob(y), rtol=1e-3, atol=1e-3)
    found = [ValuePrediction(None, None, (each,)) for each in (distribution, plain)]
    for name in ("mean", "std", "median"):  # the median is that of samples, of the same random numbers
        torch.testing.assert_close(*(getattr(each, name) for each in found), msg=name)
    with pytest.raises(ValueError, match="units for 3 outputs, Together has 2"):
        Rescaled(Together(), (0.0,) * 3, (1.0,) * 3)(F)


class Times(likelihoods.Likelihood):
    """Of times: log-normal, on the positive numbers."""

    def forward(self, output: torch.Tensor) -> dist.TorchDistribution:
        return dist.LogNormal(output, 0.5).to_event(1)


class Angles(likelihoods.Likelihood):
    """Of angles, whose distribution states the real line as its support."""

    def forward(self, output: torch.Tensor) -> dist.TorchDistribution:
        return dist.VonMises(output, 2.0).to_event(1)


@pytest.mark.parametrize(
    "likelihood", [likelihoods.Poisson(), likelihoods.NegativeBinomial(), Times(), Angles()]
)
def test_counts_times_and_angles_are_of_the_targets_as_they_stand(likelihood: likelihoods.Likelihood):
    spec = Spec(3, (1,), 2, "regression", UNITS)
    assert likelihoods.in_units(likelihood, spec) is likelihood


def test_values_and_no_classes_are_put_into_units():
    spec = Spec(3, (1,), 2, "regression", UNITS)
    given = likelihoods.Normal(dist.HalfNormal(torch.ones(2)).to_event(1))
    before = torch.get_rng_state()
    assert isinstance(likelihoods.in_units(given, spec), Rescaled)
    assert torch.equal(before, torch.get_rng_state())
    for one in (likelihoods.Bernoulli(), likelihoods.Categorical()):
        with pytest.raises(ValueError, match=r"needs a regression likelihood, but .* is for classification"):
            likelihoods.in_units(one, Spec(3, (1,), 1, "regression", Units((0.0,), (1.0,))))


class Masked(likelihoods.Likelihood):
    """Normal values, of which some do not count: an output, or a row."""

    def __init__(self, mask: torch.Tensor, event: int) -> None:
        super().__init__()
        self.mask, self.event = mask, event

    def forward(self, output: torch.Tensor) -> dist.TorchDistribution:
        return dist.Normal(output, 1.0).to_event(self.event).mask(self.mask).to_event(1 - self.event)


@pytest.mark.parametrize(
    ("mask", "event"), [(torch.tensor([True, False]), 0), (torch.arange(7) < 3, 1)], ids=["outputs", "rows"]
)
def test_masked_values_do_not_count_in_their_own_units_either(mask: torch.Tensor, event: int):
    distribution = made(Masked(mask, event))(F)
    assert (distribution.batch_shape, distribution.event_shape) == ((5, 7), (2,))
    each = dist.Normal(LOC + SCALE * F, SCALE).log_prob(Y)
    expected = (each * (mask[:, None] if event else mask)).sum(-1)
    torch.testing.assert_close(distribution.log_prob(Y), expected, rtol=1e-4, atol=1e-3)


class Logarithmic(likelihoods.Likelihood):
    def encode(self, y: torch.Tensor) -> torch.Tensor:
        return y.log()


class Inherits(Logarithmic):
    """Has `encode` from its base."""


def test_what_reads_y_itself_cannot_be_in_other_units():
    with pytest.raises(ValueError, match=r"Inherits\.encode would not know the units of y"):
        made(Inherits())


def test_draws_have_the_right_moments_and_expansion_keeps_them():
    distribution = made(likelihoods.Normal(scale=0.7))(F[0, :1]).expand(torch.Size([100_000]))
    draws = distribution.sample()
    assert draws.shape == (100_000, 2)
    off = (draws.mean(0) - distribution.mean[0]).abs() / (distribution.variance[0] / len(draws)).sqrt()
    assert float(off.max()) < 5
    ratio = draws.var(0) / distribution.variance[0]
    assert float((ratio - 1).abs().max()) < 5 * math.sqrt(2 / len(draws))


def test_only_values_have_units_and_a_scale_is_positive():
    with pytest.raises(ValueError, match="Categorical is for classification"):
        made(likelihoods.Categorical())
    with pytest.raises(ValueError, match="scale > 0"):
        Rescaled(likelihoods.Normal(0.1), (0.0,), (0.0,))


def free_energy(y: torch.Tensor, likelihood: likelihoods.Likelihood, fast: str) -> list[float]:
    x = torch.linspace(-1, 1, 20)[:, None]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    model = BayesianNetwork(network, priors.Normal(sigma=1.0), likelihood, N=20)
    data = from_arrays(x, y, task="regression")
    training = Training(model, MeanFieldNormal(model), data, epochs=5, batch_size=10, fast=fast, seed=1)
    return [row.free_energy for row in training.run().rows]


@pytest.mark.parametrize("fast", ["off", "eager"])
def test_training_is_that_of_the_standardised_targets_and_log_scale_a_datum_more(fast):
    z = torch.sin(torch.linspace(-3, 3, 20))[:, None].double()
    units = Units((10.0,), (4.0,))
    plain = free_energy(z, likelihoods.Normal(scale=1.0, learn_scale=True), fast)
    base = likelihoods.Normal(scale=1.0, learn_scale=True)
    own = free_energy(10.0 + 4.0 * z, Rescaled(base, units.loc, units.scale), fast)
    assert own == pytest.approx([f + math.log(4.0) for f in plain], abs=1e-4)


def test_the_function_of_noise_without_a_mean_follows_the_inputs():
    prediction = ValuePrediction(None, None, (made(likelihoods.StudentT(df=1.0, scale=0.5))(F).base_dist,))
    torch.testing.assert_close(prediction.means, LOC + SCALE * F)


@pytest.mark.parametrize("unit", [1e-25, 1e22])
def test_the_standard_deviation_in_units_whose_squares_float32_lacks(unit):
    one, other = (
        ValuePrediction(None, None, (Rescaled(likelihoods.Normal(0.5), [0.0], [u])(F[..., :1]).base_dist,))
        for u in (1.0, unit)
    )
    torch.testing.assert_close(other.std / unit, one.std)
    assert calibrate(other, torch.zeros(7)).scores.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
def test_units_outlive_half_precision(dtype):
    """As a network that is to be small is converted after the fit."""
    model = BayesianNetwork(
        nn.Linear(1, 1), priors.Normal(), Rescaled(likelihoods.Normal(0.5), [1234.5], [0.3])
    )
    guide = MeanFieldNormal(model)
    with isolated():
        guide()
    posterior = Posterior([(model, guide)])
    x = torch.linspace(-1, 1, 9)[:, None]
    before = posterior.predict(x, mean_weights=True).mean
    for part in (model, guide):
        part.to(dtype)
    assert model.likelihood.loc.dtype == model.likelihood.unit.dtype == torch.double
    torch.testing.assert_close(
        posterior.predict(x.to(dtype), mean_weights=True).mean, before, rtol=0, atol=0.01
    )
    low = model.likelihood(torch.zeros(1, 1, dtype=dtype))
    assert low.mean.item() == 1234.5
    assert low.log_prob(torch.tensor([[1234.5]])).item() == pytest.approx(
        -math.log(0.15) - 0.5 * math.log(2 * math.pi), abs=0.02
    )
    assert model.to("meta").likelihood.loc.device.type == "meta"
    assert model.to_empty(device="cpu").likelihood.loc.device.type == "cpu"
