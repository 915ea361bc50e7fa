"""Priors and guides over shapes and values that hypothesis thinks of, against densities of SciPy."""

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from scipy import stats
from torch import Tensor, nn

from engine_fakes import law, normal
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior

shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)
scales = st.floats(1e-3, 1e3)
bad_scales = st.sampled_from(
    [0.0, -0.0, float("nan"), float("inf"), -float("inf"), None, "1", True]
) | st.floats(max_value=0)
Density = Callable[[np.ndarray], np.ndarray]


@st.composite
def any_prior(draw: st.DrawFn) -> tuple[priors.Prior, Callable[[tuple[int, ...]], Density]]:
    """A prior, and the density of one weight of a parameter of some shape by SciPy."""
    kind = draw(st.sampled_from(["mixture", "normal", "laplace", "student", "fan-in"]))
    scale = draw(scales)
    if kind == "mixture":
        pi, small = draw(st.floats(0.01, 0.99)), scale * draw(st.floats(1e-3, 0.9))
        both = (stats.norm(scale=scale), stats.norm(scale=small))
        mixture = priors.ScaleMixture(pi=pi, sigma1=scale, sigma2=small)
        log_pi = np.log([pi, 1 - pi])
        return (
            mixture,
            lambda shape: (
                lambda w: np.logaddexp(*(p + d.logpdf(w) for p, d in zip(log_pi, both, strict=True)))
            ),
        )
    if kind == "normal":
        return priors.Normal(sigma=scale), lambda shape: stats.norm(scale=scale).logpdf
    if kind == "laplace":
        return priors.Laplace(scale=scale), lambda shape: stats.laplace(scale=scale).logpdf
    if kind == "student":
        df = draw(st.floats(0.5, 50))
        return priors.StudentT(df=df, scale=scale), lambda shape: stats.t(df, scale=scale).logpdf
    bias = draw(scales)

    def fan_in(shape: tuple[int, ...]) -> Density:
        return stats.norm(scale=scale / prod(shape[1:]) ** 0.5 if len(shape) > 1 else bias).logpdf

    return priors.FanInNormal(gain=scale, bias_sigma=bias), fan_in


@law
@given(any_prior(), shapes, st.floats(-50, 50), st.integers(0, 1000))
def test_a_priors_density_is_the_sum_over_its_weights(
    both: tuple[priors.Prior, Any], shape: tuple[int, ...], size: float, seed: int
) -> None:
    prior, density = both
    w = size * normal(*shape, seed=seed, dtype=torch.float64)
    distribution = prior.distribution("w", w)
    assert distribution is not None
    assert (distribution.batch_shape, distribution.event_shape) == (torch.Size(), torch.Size(shape))
    found = float(distribution.log_prob(w))
    assert found == pytest.approx(density(shape)(w.numpy()).sum(), rel=1e-9, abs=1e-9)
    with isolated(0):
        sample = distribution.sample()
    assert (sample.shape, sample.dtype) == (w.shape, w.dtype)


@law
@given(any_prior(), shapes, st.floats(0, 30), st.sampled_from([torch.float32, torch.float64]))
def test_a_priors_density_and_slope_are_finite(
    both: tuple[priors.Prior, Any], shape: tuple[int, ...], size: float, dtype: torch.dtype
) -> None:
    w = (size * normal(*shape)).to(dtype).requires_grad_()
    distribution = both[0].distribution("w", w)
    assert distribution is not None
    value = distribution.log_prob(w)
    value.backward()
    assert value.dtype == dtype
    assert bool(value.isfinite())
    assert w.grad is not None
    assert bool(w.grad.isfinite().all())


FIELDS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda v: priors.ScaleMixture(sigma1=v), "sigma1"),
    (lambda v: priors.ScaleMixture(sigma2=v), "sigma2"),
    (lambda v: priors.Normal(sigma=v), "sigma"),
    (lambda v: priors.Laplace(scale=v), "scale"),
    (lambda v: priors.StudentT(df=v), "df"),
    (lambda v: priors.StudentT(scale=v), "scale"),
    (lambda v: priors.FanInNormal(gain=v), "gain"),
    (lambda v: priors.FanInNormal(bias_sigma=v), "bias_sigma"),
    (lambda v: likelihoods.Normal(scale=0.0 if v is None else v), "scale"),  # None: it is learned
    (lambda v: likelihoods.HeteroscedasticNormal(least_scale=v), "least_scale"),
    (lambda v: likelihoods.NormalMixture(scale=0.0 if v is None else v), "scale"),
]


@law
@given(st.sampled_from(FIELDS), bad_scales)
def test_a_field_outside_its_domain_is_named(field: tuple[Callable[[Any], Any], str], value: Any) -> None:
    make, name = field
    with pytest.raises(ValueError, match=rf"^{name} must be (a finite number|greater than 0), got "):
        make(value)


widths = st.lists(st.integers(1, 5), min_size=2, max_size=4)


@st.composite
def perceptrons(draw: st.DrawFn) -> tuple[nn.Sequential, Tensor]:
    """A perceptron of any widths, with or without biases, and a few inputs for it."""
    sizes, bias = draw(widths), draw(st.booleans())
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        for n, m in pairwise(sizes):
            layers += [nn.Linear(n, m, bias=bias), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    seed = draw(st.integers(0, 100))
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + i))
    return net, normal(draw(st.integers(1, 6)), sizes[0], seed=seed)


@law
@given(perceptrons(), st.floats(-20, 5), st.integers(0, 1000))
def test_a_guides_draw_its_density_and_its_moments(
    drawn: tuple[nn.Sequential, Tensor], rho: float, seed: int
) -> None:
    net, x = drawn
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1), N=len(x))
    guide = MeanFieldNormal(model, init_rho=rho)
    with isolated(seed):
        trace = poutine.trace(guide).get_trace(x)
        trace.compute_log_prob()
    loc, scale = guide.loc_and_scale()
    sigma = np.logaddexp(0, np.float32(rho), dtype=np.float64)
    for name, parameter in net.named_parameters():
        site = trace.nodes[name]
        assert site["value"].shape == parameter.shape
        assert torch.equal(loc[name], parameter)
        np.testing.assert_allclose(scale[name].numpy(), sigma, rtol=1e-5)
        expected = stats.norm(parameter.detach().double().numpy(), scale[name].double().numpy())
        log_density = expected.logpdf(site["value"].detach().double().numpy()).sum()
        assert site["log_prob"].item() == pytest.approx(log_density, rel=1e-4, abs=1e-3)
    again = torch.cat([guide.split(guide.loc.detach())[name].flatten() for name in guide.shapes])
    assert torch.equal(again, guide.loc)


@law
@given(perceptrons(), st.integers(1, 4))
def test_predictions_of_any_network(drawn: tuple[nn.Sequential, Tensor], draws: int) -> None:
    net, x = drawn
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=0.5), N=len(x))
    guide = MeanFieldNormal(model, init_rho=-100.0)  # every draw is the mean
    with isolated(0):
        guide(x)
    prediction: Any = Posterior([(model, guide)]).predict(x, draws=draws)
    expected = net(x).detach()
    assert prediction.means.shape == (draws, *expected.shape)
    torch.testing.assert_close(prediction.mean, expected)
    torch.testing.assert_close(prediction.variance, torch.full_like(expected, 0.25))
