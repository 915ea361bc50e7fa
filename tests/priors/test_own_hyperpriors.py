"""Priors of one's own: any distribution, fan-in by module, learned and hierarchical ones, what is refused."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from fnmatch import fnmatch
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from scipy import stats
from torch import Tensor, nn

from engine_fakes import network, normal, values
from own_priors import Hierarchical, Learned, Loose
from pyrobbb import Posterior, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.agreement import gradients
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.evaluation import arviz_export
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep
from step_cases import Case

GAUSS = likelihoods.Normal(scale=0.5)


class ScaleOfEach(priors.Prior):
    """A scale for each parameter, sampled by the prior itself, on the real line."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        scale = pyro.sample(f"{name}_log_scale", dist.Normal(0.0, 1.0)).exp()
        return priors.elementwise(dist.Normal(0.0, priors.beside(scale, parameter)), parameter)


class OneScale(pyro.nn.PyroModule, priors.Prior):
    """A scale of all weights, whose draws are taken for rows in the parameters that `mixed` matches."""

    def __init__(self, mixed: str) -> None:
        super().__init__()
        self.mixed = mixed
        self.scale = pyro.nn.PyroSample(dist.LogNormal(-1.0, 1.0))

    def distribution(self, name: str, parameter: Tensor) -> Any:
        mixed = fnmatch(name, self.mixed)
        scale = self.scale if mixed else priors.beside(self.scale, parameter)
        return dist.Normal(torch.zeros_like(parameter), scale).to_event(parameter.dim())


class ScaleOfInputs(priors.Prior):
    """A scale for each input, in a plate."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        with pyro.plate("inputs", parameter.shape[-1]):
            scale = pyro.sample("scale", dist.HalfNormal(1.0))
        return priors.elementwise(dist.Normal(0.0, scale), parameter)


class LearnedPlainly(nn.Module, priors.Prior):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.0))

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.log_scale.exp()), parameter)


class LooseParameter(priors.Prior):
    def __init__(self) -> None:
        self.scale = nn.Parameter(torch.tensor(1.0))

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.scale), parameter)


MIXED_UP = r"cannot take several draws .* write priors\.beside\(self\.NAME, parameter\)"
LINE = partial(nn.Linear, bias=False)


@pytest.mark.parametrize(
    ("layers", "mixed", "samples"),
    [
        ([LINE(4, 1), LINE(1, 3)], "*", 2),
        ([LINE(4, 3)], "*", 3),
        ([LINE(4, 3)], "*", 2),
        ([nn.Linear(4, 3)], "*.bias", 8),
    ],
    ids=["of one row", "as many rows", "another number", "of a bias"],
)
def test_draws_of_a_scale_are_not_taken_for_a_weights_rows(
    layers: list[nn.Module], mixed: str, samples: int
) -> None:
    """One at a time they are right: the same terms and gradients as where they are kept apart."""
    found = []
    for pattern in ("", mixed):
        case = Case(OneScale(pattern), "normal", AutoNormal, network=nn.Sequential(*layers))
        step = case.step(samples=samples, steps=10_000)
        assert isinstance(step, ProgramStep) == (not pattern)
        if not pattern:  # a draw of each weight and of the scale, and nothing for the check
            assert step.noise_shape == (samples * (case.model.num_weights + 1),)
        assert bool(re.search(MIXED_UP, "".join(case.said))) == bool(pattern)
        with isolated(3):
            found.append(gradients(case.reference(samples), case.data, torch.randn(10_000), N=30))
        with pytest.raises(ValueError, match=MIXED_UP) if pattern else nullcontext():
            case.reference(samples, vectorize=True)
        for particles in (1, samples):
            elbo = Trace_ELBO(num_particles=particles, vectorize_particles=True)
            refused = pattern and particles > 1  # of one particle Pyro makes no batch
            with pytest.raises(ValueError, match=MIXED_UP) if refused else nullcontext():
                ReferenceStep(case.model, case.guide, case.optimizer, elbo=elbo)
    for apart, one_by_one in zip(*found, strict=True):
        torch.testing.assert_close(apart, one_by_one)


class OfGroups(priors.Prior):
    """A scale for each of three groups of inputs."""

    def __init__(self, several: bool) -> None:
        self.several = several

    def distribution(self, name: str, parameter: Tensor) -> Any:
        tau, groups = pyro.sample("tau", dist.HalfNormal(torch.ones(3)).to_event(1)), [0, 1, 2, 2]
        scale = tau[..., None, groups] if self.several else tau[groups]  # IndexError for two draws
        return priors.elementwise(dist.Normal(0.0, scale), parameter)


@pytest.mark.parametrize("several", [False, True])
def test_a_vector_of_scales_is_taken_for_one_draw_or_for_several(several: bool) -> None:
    case = Case(OfGroups(several), "normal", AutoNormal, network=LINE(4, 3))
    assert isinstance(case.step(samples=2, steps=10_000), ProgramStep) == several
    with nullcontext() if several else pytest.raises(ValueError, match=MIXED_UP):
        case.reference(2, vectorize=True)


def among(prior: priors.Prior) -> priors.Prior:
    return priors.PerParameter(default=prior, where={"*.bias": priors.Normal()})


@pytest.mark.parametrize(
    ("family", "exact"),
    [
        (dist.Cauchy(0.0, 0.5), stats.cauchy(0, 0.5)),
        (torch.distributions.Laplace(1.0, 2.0), stats.laplace(1, 2)),
        (dist.Gumbel(0.0, 1.0), stats.gumbel_r()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_iid_of_any_univariate_distribution(family: Any, exact: Any, dtype: torch.dtype) -> None:
    w = normal(4, 3, dtype=dtype)
    distribution: Any = priors.IID(family).distribution("w", w)
    assert (distribution.batch_shape, distribution.event_shape) == ((), (4, 3))
    assert distribution.log_prob(w).dtype == dtype
    assert float(distribution.log_prob(w)) == pytest.approx(exact.logpdf(w.numpy()).sum(), rel=1e-5)


@pytest.mark.parametrize("library", [dist, torch.distributions])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_iid_of_a_mixture(library: Any, dtype: torch.dtype) -> None:
    each = library.Normal(torch.zeros(2), torch.tensor([0.1, 1.0]))
    mixture = library.MixtureSameFamily(library.Categorical(torch.tensor([0.75, 0.25])), each)
    w = normal(4, 3, dtype=dtype)
    log_prob = priors.IID(mixture).distribution("w", w).log_prob(w)
    same: Any = priors.ScaleMixture(pi=0.25, sigma1=1.0, sigma2=0.1).distribution("w", w)
    assert log_prob.dtype == dtype
    assert torch.allclose(log_prob, same.log_prob(w))


def test_iid_of_a_transformed_distribution() -> None:
    exp = torch.distributions.ExpTransform()
    w = normal(4, 3).exp()
    log_normal = dist.TransformedDistribution(dist.Normal(0.0, 2.0), [exp])
    log_prob = priors.IID(log_normal).distribution("w", w).log_prob(w)
    assert torch.allclose(log_prob, dist.LogNormal(0.0, 2.0).log_prob(w).sum())


def test_iid_of_a_masked_mixture() -> None:
    mixture = dist.MaskedMixture(torch.tensor(True), dist.Normal(0.0, 1.0), dist.Normal(0.0, 2.0))
    w = normal(4, 3, dtype=torch.float64)
    distribution: Any = priors.IID(mixture).distribution("w", w)
    same: Any = priors.Normal(sigma=2.0).distribution("w", w)
    assert torch.allclose(distribution.log_prob(w), same.log_prob(w))


COUNTS = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Poisson(torch.ones(2)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("normal", "IID needs a univariate distribution of Pyro"),
        (dist.Normal, "IID needs a univariate distribution of Pyro"),
        (dist.Normal(torch.zeros(2), 1.0), r"one weight, got one of shape \(2,\)"),
        (dist.Poisson(1.0), "a weight is continuous"),
        (COUNTS, "a weight is continuous"),
        (dist.SoftAsymmetricLaplace(0.0, 1.0, 1.0), r"with an expand\(\), .* which SoftAsymmetricLaplace"),
    ],
)
def test_iid_refuses_what_is_not_one(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        priors.IID(wrong)


@pytest.mark.parametrize(
    ("module", "name", "fan_in"),
    [
        (nn.Linear(6, 4), "weight", 6),
        (nn.Bilinear(3, 5, 2), "weight", 15),
        (nn.Embedding(50, 8), "weight", 1),
        (nn.EmbeddingBag(50, 8), "weight", 1),
        (nn.Conv2d(6, 4, 3), "weight", 54),
        (nn.Conv2d(6, 4, 3, groups=2), "weight", 27),
        (nn.ConvTranspose2d(6, 4, 3), "weight", 54),
        (nn.ConvTranspose2d(6, 4, 4, stride=2), "weight", 24),
        (nn.ConvTranspose1d(6, 3, 3, groups=3), "weight", 6),
        (nn.LSTM(5, 7), "weight_ih_l0", 5),
        (nn.LSTM(5, 7), "weight_hh_l0", 7),
    ],
)
def test_fan_in_is_that_of_the_module(module: nn.Module, name: str, fan_in: float) -> None:
    prior = priors.PerParameter(default=priors.FanInNormal(gain=3.0))
    distribution: Any = prior.for_module(name, module.get_parameter(name), module)
    assert float(distribution.base_dist.scale.flatten()[0]) == pytest.approx(3.0 / fan_in**0.5)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_gain_and_bias_of_a_normalisation_have_one_prior(kind: Any) -> None:
    layer = kind([4, 3])
    for name, parameter in layer.named_parameters():
        distribution: Any = priors.FanInNormal(bias_sigma=0.7).for_module(name, parameter, layer)
        assert float(distribution.base_dist.scale.flatten()[0]) == pytest.approx(0.7)


def test_under_the_fan_in_prior_a_transposed_convolution_keeps_the_scale() -> None:
    """Inner outputs of unit inputs have variance gain^2, within 5 standard errors over 4,000 channels."""
    with isolated(0), torch.no_grad():
        layer = nn.ConvTranspose1d(16, 4000, 4, stride=2, bias=False)
        distribution: Any = priors.FanInNormal(gain=1.0).for_module("weight", layer.weight, layer)
        layer.weight.data = distribution.sample()
        output = layer(torch.ones(1, 16, 12))[0, :, 6:14]
    assert float(output.var(0).mean()) == pytest.approx(1.0, abs=5 * (2 / 4000) ** 0.5)


@pytest.mark.parametrize(
    ("prior", "make", "latents"),
    [
        (Hierarchical(), AutoNormal, {"prior.scale"}),
        (among(Hierarchical()), AutoNormal, {"prior_0.scale"}),
        (ScaleOfEach(), AutoNormal, {f"{i}.{w}_log_scale" for i in (0, 2) for w in ("weight", "bias")}),
        (ScaleOfEach(), MeanFieldNormal, {f"{i}.{w}_log_scale" for i in (0, 2) for w in ("weight", "bias")}),
    ],
    ids=["scale", "among_others", "of_each", "mean_field"],
)
@pytest.mark.parametrize("options", [{"fast": "off"}, {"samples": 2, "vectorize": True, "fast": "off"}])
def test_hyperparameters_are_sites_of_their_own(
    prior: priors.Prior, make: Callable[..., nn.Module], latents: set[str], options: dict[str, Any]
) -> None:
    data = from_arrays(normal(12, 3), normal(12, 2, seed=1), task="regression")
    model = BayesianNetwork(network(width=2), prior, GAUSS, 12)
    assert set(model.latents) - set(model.sites) == latents
    posterior = fit(model, make(model), data, epochs=2, batch_size=6, device="cpu", **options)
    draws = posterior.draw(3)
    assert set(draws) == set(model.latents)
    assert posterior.predict(data.train.x, data.train.y, draws=3).log_predictive.isfinite().all()
    groups, _ = arviz_export.to_groups(posterior, data, draws=4, weights=5)
    for group in ("posterior", "prior", "log_prior"):
        assert set(groups[group]) == {"weight", *latents}
        assert all(array.shape[:2] == (1, 4) for array in groups[group].values())


def test_a_hierarchical_prior_finds_the_scale_of_its_weights() -> None:
    """Weights observed all but exactly: the posterior of their scale is that of quadrature, within 5 %."""
    y = 2.0 * normal(40, 1)
    net = nn.Sequential(nn.Embedding(40, 1), nn.Flatten())
    data = from_arrays(torch.arange(40)[:, None], y, task="regression", dtype=torch.long)

    with isolated(0):
        model = BayesianNetwork(net, Hierarchical(), likelihoods.Normal(scale=0.05), 40)
        guide = AutoNormal(model, init_scale=0.05)
        posterior = fit(
            model, guide, data, epochs=250, batch_size=40, samples=8, vectorize=True, progress=None,
            optim=partial(torch.optim.Adam, lr=0.06), device="cpu",
            schedule=partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[200], gamma=0.1),
        )  # fmt: skip
    s = torch.linspace(0.5, 6.0, 4000)
    log = dist.HalfCauchy(1.0).log_prob(s) + dist.Normal(0.0, s[:, None]).log_prob(y[:, 0]).sum(1)
    density = (log - log.max()).exp()
    exact = float((s * density).sum() / density.sum())
    assert float(posterior.draw(1000)["prior.scale"].mean()) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("prior", [Learned(), LearnedPlainly(), among(Learned()), among(LearnedPlainly())])
@pytest.mark.parametrize("make", [MeanFieldNormal, AutoNormal])
def test_a_priors_parameters_are_trained(prior: priors.Prior, make: Callable[..., nn.Module]) -> None:
    model = BayesianNetwork(network(width=2), prior, GAUSS, 12)
    ((name, parameter),) = model.named_parameters()
    before = parameter.detach().clone()
    fit(model, make(model), values(), epochs=2, batch_size=6, device="cpu")
    assert name.startswith("prior")
    assert not torch.equal(parameter, before)
    own = next(p for part in prior.parts() if isinstance(part, nn.Module) for p in part.parameters())
    assert torch.equal(own, before)  # the prior given is copied, as the network is


@pytest.mark.parametrize("prior", [Loose(), LooseParameter(), among(LooseParameter())])
def test_a_parameter_that_nobody_would_train_is_refused(prior: priors.Prior) -> None:
    with pytest.raises(ValueError, match="has a parameter that would not be trained; derive the prior from"):
        BayesianNetwork(network(), prior, GAUSS, 12)


def test_hyperparameters_in_a_plate_are_refused() -> None:
    message = (
        r"the prior samples 'scale' in a plate, of shape \(3,\); .* with \.expand\(\(3,\)\)\.to_event\(1\)"
    )
    with pytest.raises(ValueError, match=message):
        BayesianNetwork(nn.Linear(3, 2, bias=False), ScaleOfInputs(), GAUSS, 12)


def test_the_model_as_its_own_guide_is_the_prior() -> None:
    model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(sigma=2.0), GAUSS, 12)
    prior = Posterior([(model, model)])
    found = prior.predict(torch.ones(1, 1), draws=4000)
    assert float(found.mean) == pytest.approx(0.0, abs=5 * 2 / 4000**0.5)
    assert float(found.variance) == pytest.approx(4.25, abs=5 * 4 * (2 / 4000) ** 0.5)


def test_a_site_without_dimensions_under_the_mean_field() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.gain = nn.Linear(3, 2), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * self.inner(x)

    for fast in ("off", "eager"):
        model = BayesianNetwork(Scaled(), priors.Normal(), GAUSS, 12)
        guide = MeanFieldNormal(model)
        posterior = fit(model, guide, values(), epochs=1, batch_size=6, samples=2, fast=fast, device="cpu")
        assert posterior.draw(3)["gain"].shape == (3,)
