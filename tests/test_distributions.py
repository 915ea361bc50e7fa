"""ScaleMixtureNormal against goldens, quadrature, torch's own normals and mixture, and its own contracts."""

import copy
import math
import runpy
from itertools import pairwise

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import biject_to, transforms
from torch.distributions.constraints import MixtureSameFamilyConstraint

from engine_fakes import law
from pyrobbb import distributions
from pyrobbb._support.distribution_parts import applied, in_double, univariate, unmasked
from pyrobbb._support.random_state import isolated
from pyrobbb.distributions import ScaleMixtureNormal, StudentT

E = math.exp
GRID = [(pi, E(-a), E(-b)) for pi in (0.25, 0.5, 0.75) for a in (0, 1, 2) for b in (6, 7, 8)]  # the paper's
EDGES = [(pi, E(-a), E(-b)) for pi in (0.0, 1.0) for a in (0, 2) for b in (6, 8)]

parameters = st.tuples(st.floats(0, 1), st.floats(1e-2, 10), st.floats(1e-3, 0.99)).map(
    lambda t: (t[0], t[1], t[1] * t[2])
)
weights = st.floats(-1e4, 1e4)


def mixture(
    pi: float, sigma1: float, sigma2: float, dtype: torch.dtype = torch.float64
) -> ScaleMixtureNormal:
    return ScaleMixtureNormal(
        *(torch.tensor(v, dtype=dtype) for v in (pi, sigma1, sigma2)), validate_args=True
    )


def by_components(w: Tensor, pi: float, sigma1: float, sigma2: float) -> Tensor:
    """The same log-density by log-sum-exp over torch's normals."""
    parts = [
        math.log(share) + torch.distributions.Normal(w.new_tensor(0.0), w.new_tensor(sigma)).log_prob(w)
        for share, sigma in ((pi, sigma1), (1 - pi, sigma2))
        if share > 0
    ]
    return torch.stack(parts).logsumexp(0)


@pytest.mark.parametrize(
    ("w", "pi", "sigma1", "sigma2", "expected"),
    [
        (0.0, 0.25, 1.0, E(-6), 4.7942053039),
        (0.0, 0.5, 1.0, E(-6), 4.3903899714),
        (0.0, 0.75, 1.0, E(-8), 5.6957729875),
        (0.01, 0.5, 1.0, E(-6), -1.5006596449),
        (0.1, 0.25, E(-1), E(-7), -1.3421781748),
        (1.0, 0.25, 1.0, E(-8), -2.8052328943),
        (5.0, 0.5, E(-2), E(-6), -682.0889611281),
        (-3.0, 0.75, E(-1), E(-7), -33.4573730508),
    ],
)
def test_log_density_goldens(w: float, pi: float, sigma1: float, sigma2: float, expected: float) -> None:
    value = mixture(pi, sigma1, sigma2).log_prob(torch.tensor(w, dtype=torch.float64))
    assert float(value) == pytest.approx(expected, abs=1e-8)
    single = mixture(pi, sigma1, sigma2, torch.float32).log_prob(torch.tensor(w))
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(expected, rel=1e-3)


@law
@given(weights, parameters)
def test_log_density_is_that_of_its_components(w: float, mix: tuple[float, float, float]) -> None:
    value = torch.tensor(w, dtype=torch.float64)
    expected = by_components(value, *mix)
    torch.testing.assert_close(mixture(*mix).log_prob(value), expected, rtol=1e-9, atol=1e-9)


@law
@given(weights, parameters)
def test_gradient_is_that_of_its_components(w: float, mix: tuple[float, float, float]) -> None:
    ours, theirs = (torch.tensor(w, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mixture(*mix).log_prob(ours).backward()
    by_components(theirs, *mix).backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("mix", GRID + EDGES)
def test_value_and_gradient_are_finite_and_right_in_float32(mix: tuple[float, float, float]) -> None:
    size = torch.cat([torch.zeros(1), torch.logspace(-8, 4, 200)])
    w = torch.cat([-size, size]).requires_grad_()
    value = mixture(*mix, dtype=torch.float32).log_prob(w)
    (gradient,) = torch.autograd.grad(value.sum(), w)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    exact = by_components(w.detach().double(), *mix)
    torch.testing.assert_close(value.double(), exact, rtol=1e-3, atol=1e-3)


def test_float32_at_a_far_weight() -> None:
    w = torch.tensor(5.0, requires_grad=True)
    mixture(0.5, E(-2), E(-6), torch.float32).log_prob(w).backward()
    assert w.grad is not None
    assert float(w.grad) == pytest.approx(-5 / E(-2) ** 2, rel=1e-3)


@pytest.mark.parametrize("mix", [*GRID[::4], (0.0, 1.0, 0.5), (1.0, 1.0, 0.5), (0.3, 2.0, 1.9)])
def test_density_integrates_to_one_and_to_its_cdf(mix: tuple[float, float, float]) -> None:
    d = mixture(*mix)
    _, sigma1, sigma2 = mix
    points = [s * k for s in (sigma1, sigma2) for k in (-9, -3, -1, 0, 1, 3, 9)]

    def density(w: float) -> float:
        return float(d.log_prob(torch.tensor(w, dtype=torch.float64)).exp())

    def mass(high: float) -> float:
        inside = sorted(p for p in points if p < high)
        edges = [-12 * sigma1, *inside, high]
        return sum(integrate.quad(density, a, b, epsabs=1e-10)[0] for a, b in pairwise(edges))

    assert mass(12 * sigma1) == pytest.approx(1.0, abs=1e-8)
    for w in (-sigma1, -sigma2 / 2, 0.0, sigma2, 2 * sigma1):
        assert float(d.cdf(torch.tensor(w, dtype=torch.float64))) == pytest.approx(mass(w), abs=1e-8)


@law
@given(parameters, st.lists(weights, min_size=2, max_size=5))
def test_cdf_is_a_symmetric_distribution_function(mix: tuple[float, float, float], ws: list[float]) -> None:
    d = mixture(*mix)
    w = torch.tensor(sorted(ws), dtype=torch.float64)
    cdf = d.cdf(w)
    assert (cdf.diff() >= 0).all()
    torch.testing.assert_close(cdf + d.cdf(-w), torch.ones_like(w))


@law
@given(weights, parameters)
def test_spike_probability_is_bayes_rule(w: float, mix: tuple[float, float, float]) -> None:
    pi, _, sigma2 = mix
    value = torch.tensor(w, dtype=torch.float64)
    spike = torch.distributions.Normal(value.new_tensor(0.0), value.new_tensor(sigma2)).log_prob(value)
    expected = (1 - pi) * (spike - by_components(value, *mix)).exp()
    torch.testing.assert_close(mixture(*mix).spike_probability(value), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("pi", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_spike_probability_without_a_second_component(pi: float, expected: float) -> None:
    w = torch.tensor([0.0, 1.0, 100.0])
    assert mixture(pi, 1.0, 0.1, torch.float32).spike_probability(w).tolist() == [expected] * 3


@pytest.mark.parametrize("mix", [(0.25, 1.0, E(-6)), (0.5, 1.0, 0.5), (0.0, 1.0, 0.1), (1.0, 2.0, 0.1)])
def test_sampled_moments(mix: tuple[float, float, float]) -> None:
    pi, sigma1, sigma2 = mix
    n = 200_000
    d = mixture(*mix)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = d.sample((n,))
    variance = pi * sigma1**2 + (1 - pi) * sigma2**2
    fourth = 3 * (pi * sigma1**4 + (1 - pi) * sigma2**4)
    assert float(d.mean) == 0
    assert float(d.variance) == pytest.approx(variance)
    assert abs(float(draws.mean())) < 5 * (variance / n) ** 0.5
    assert abs(float(draws.square().mean()) - variance) < 5 * ((fourth - variance**2) / n) ** 0.5
    # Kolmogorov: sup |F_n - F| exceeds 2.5 / sqrt(n) once in 130,000 samples
    uniform = d.cdf(draws).sort().values
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    assert float((uniform - steps).abs().max()) < 2.5 / n**0.5


def test_shapes_and_expansion() -> None:
    d = ScaleMixtureNormal(torch.tensor([[0.2], [0.7]]), torch.tensor(1.0), torch.tensor([0.1, 0.2, 0.3]))
    assert d.batch_shape == (2, 3)
    assert d.event_shape == ()
    assert d.sample().shape == (2, 3)
    assert d.sample((5, 4)).shape == (5, 4, 2, 3)
    wider = d.expand((4, 2, 3))
    assert wider.batch_shape == (4, 2, 3)
    assert wider.sample((6,)).shape == (6, 4, 2, 3)
    w = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    for ask in ("log_prob", "cdf", "spike_probability"):
        result = getattr(wider, ask)(w)
        assert result.shape == (4, 2, 3)
        torch.testing.assert_close(result, getattr(d, ask)(w), rtol=0, atol=0)
    torch.testing.assert_close(wider.variance, d.variance.expand(4, 2, 3))
    assert wider.mean.shape == (4, 2, 3)
    event = wider.to_event(2)
    assert event.batch_shape == (4,)
    assert event.event_shape == (2, 3)
    torch.testing.assert_close(event.log_prob(w), wider.log_prob(w).sum((-1, -2)))
    torch.testing.assert_close(copy.deepcopy(wider).log_prob(w), wider.log_prob(w))


def test_expansion_keeps_the_choice_to_validate() -> None:
    for validate in (True, False):
        d = ScaleMixtureNormal(0.5, 1.0, 0.1, validate_args=validate).expand((3,))
        assert d._validate_args is validate


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_device_follow_the_parameters(dtype: torch.dtype) -> None:
    d = mixture(0.5, 1.0, 0.1, dtype).expand((2,))
    for value in (d.sample(), d.mean, d.variance, d.log_prob(d.sample()), d.cdf(d.sample())):
        assert value.dtype == dtype
        assert value.device.type == "cpu"
    meta = ScaleMixtureNormal(
        *(torch.empty(3, device="meta", dtype=dtype) for _ in range(3)), validate_args=False
    )
    for value in (meta.sample((2,)), meta.log_prob(torch.empty(2, 3, device="meta", dtype=dtype))):
        assert value.device.type == "meta"
        assert value.shape == (2, 3)


def test_numbers_make_a_distribution_for_values_of_any_precision() -> None:
    w = torch.tensor([0.0, 0.3], dtype=torch.float64)
    for pi in (0.0, 0.5, 1.0):
        value = ScaleMixtureNormal(pi, 1.0, 0.1).log_prob(w)
        torch.testing.assert_close(value, by_components(w, pi, 1.0, 0.1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("pi", "sigma1", "sigma2", "named"),
    [
        (1.5, 1.0, 0.1, "pi"),
        (-0.1, 1.0, 0.1, "pi"),
        (0.5, -1.0, 0.1, "sigma1"),
        (0.5, 1.0, 0.0, "sigma2"),
        (0.5, 0.1, 0.1, "sigma1 must be greater than sigma2"),
        (0.5, 0.1, 1.0, "sigma1 must be greater than sigma2"),
        (0.5, torch.tensor([1.0, 0.1]), 0.1, "sigma1 must be greater than sigma2"),  # one of several
    ],
)
def test_bad_parameters_are_named(pi: float, sigma1: Tensor | float, sigma2: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ScaleMixtureNormal(pi, sigma1, sigma2, validate_args=True)


def test_a_value_outside_the_support_is_refused() -> None:
    d = mixture(0.5, 1.0, 0.1)
    for ask in (d.log_prob, d.cdf):
        with pytest.raises(ValueError, match="support"):
            ask(torch.tensor(math.nan, dtype=torch.float64))


def test_what_pyro_asks_of_it() -> None:
    d = mixture(0.5, 1.0, 0.1)
    assert isinstance(d, dist.TorchDistribution)
    assert d.support is dist.constraints.real
    assert set(d.arg_constraints) == {"pi", "sigma1", "sigma2"}
    assert not d.has_rsample
    assert d.sample().requires_grad is False
    with pyro.poutine.trace() as tracer:
        w = pyro.sample("w", mixture(0.5, 1.0, 0.1).expand((2, 3)).to_event(2))
    tracer.trace.compute_log_prob()
    torch.testing.assert_close(tracer.trace.nodes["w"]["log_prob"], d.log_prob(w).sum())


@pytest.mark.parametrize(
    ("mu", "rho", "mix", "expected"),
    [
        (0.0, -5.0, (0.5, 1.0, E(-6)), 1.61420372),
        (0.1, -5.0, (0.5, 1.0, E(-6)), 5.20152928),
        (0.0, -3.0, (0.25, 1.0, E(-8)), 3.76718655),
        (0.03, -3.25, (0.75, 1.0, E(-8)), 2.96747825),
        (0.0, 0.0, (0.75, E(-2), E(-6)), 11.25471494),
    ],
)
def test_kl_goldens(mu: float, rho: float, mix: tuple[float, float, float], expected: float) -> None:
    """KL[N(mu, softplus(rho)^2) || mixture]: a million draws within 5 standard errors, and by quadrature."""
    d, sigma = mixture(*mix), math.log1p(E(rho))
    q = torch.distributions.Normal(*torch.tensor([mu, sigma], dtype=torch.float64))
    noise = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = mu + sigma * noise
    terms = q.log_prob(w) - d.log_prob(w)
    assert abs(float(terms.mean()) - expected) < 5 * float(terms.std()) / 1000

    half = torch.linspace(0, 12 * sigma, 400_001, dtype=torch.float64)  # resolves the spike
    grid = torch.cat([mu - half.flip(0)[:-1], mu + half])
    kl = torch.trapezoid(q.log_prob(grid).exp() * (q.log_prob(grid) - d.log_prob(grid)), grid)
    assert float(kl) == pytest.approx(expected, abs=1e-7)


def test_a_mixture_has_the_support_of_its_components_if_they_have_one() -> None:
    which = dist.Categorical(torch.ones(2))
    for each, at in (
        (dist.Normal(torch.zeros(2), 1.0), -3.0),
        (dist.HalfNormal(torch.tensor([1.0, 2.0])), 3.0),
    ):
        support = dist.MixtureSameFamily(which, each).support
        to = biject_to(support)
        assert float(to(to.inv(torch.tensor(at)))) == pytest.approx(at)
    unlike = dist.MixtureSameFamily(which, dist.Uniform(torch.zeros(2), torch.tensor([1.0, 2.0])))
    with pytest.raises(NotImplementedError, match="bounds of their own"):
        biject_to(unlike.support)


def test_a_transform_that_a_program_registered_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(constraint: object) -> object:
        return transforms.identity_transform

    monkeypatch.setitem(biject_to._registry, MixtureSameFamilyConstraint, own)
    runpy.run_path(distributions.__file__)
    assert biject_to._registry[MixtureSameFamilyConstraint] is own


class Grouped(dist.Independent):
    """A class of the user's own."""


def test_univariate_is_the_base_of_subclasses_too() -> None:
    base = dist.Normal(torch.zeros(3, 2), 1.0)
    assert univariate(Grouped(base, 1)) is base
    assert unmasked(Grouped(base.mask(torch.ones(2).bool()), 1)) is base


@pytest.mark.parametrize("df", [0.5, 4.0, 1e4, 1e6, 1e8])
def test_students_t_is_right_in_float32_for_any_degrees_of_freedom(df: float) -> None:
    """Its gamma functions cancel: of a million degrees it had been wrong by a tenth of a nat."""
    y = torch.linspace(-4.0, 4.0, 9)
    of = torch.tensor(df, requires_grad=True)
    found = StudentT(of, 0.3, 0.5).log_prob(y)
    exact = stats.t(df, 0.3, 0.5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), torch.as_tensor(exact.logpdf(y.double())), rtol=1e-5, atol=2e-6
    )
    (slope,) = torch.autograd.grad(found.sum(), of)
    precise = torch.tensor(df, dtype=torch.float64, requires_grad=True)
    law = dist.StudentT(precise, torch.tensor(0.3, dtype=torch.float64), 0.5)
    (expected,) = torch.autograd.grad(law.log_prob(y.double()).sum(), precise)
    assert float(slope) == pytest.approx(float(expected), rel=0.05, abs=1e-9)


SHIFT = transforms.AffineTransform(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0]))
TRANSFORMED = {
    "affine": [SHIFT],
    "its inverse": [SHIFT.inv],
    "composed": [transforms.ComposeTransform([SHIFT, transforms.ExpTransform()])],
    "independent": [transforms.IndependentTransform(SHIFT, 1)],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_transform_s_tensors_go_with_its_distribution(name: str) -> None:
    """Also once its inverse was asked for, which the two then keep of one another."""
    base = dist.Normal(torch.zeros(2), 1.0)
    distribution = dist.TransformedDistribution(base, TRANSFORMED[name])
    value = distribution.sample()
    before = distribution.log_prob(value)
    seen: list[torch.dtype] = []
    made = in_double(distribution)
    applied(lambda tensor: [seen.append(tensor.dtype), tensor][1], made)
    assert set(seen) == {torch.float64}
    assert len(seen) >= 4, "of the base and of the transform"
    exact = made.log_prob(value.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), before, rtol=1e-4, atol=1e-5)
    assert distribution.log_prob(value).dtype == torch.float32, "the user's own stays"


def test_a_negative_binomial_draws_no_negative_counts() -> None:
    """Above 2^53 the gamma itself, as torch's Poisson would overflow; below, torch's own counts."""
    r, logits = torch.tensor(2.0), torch.tensor([44.0, 300.0, 1.0])
    with isolated(0):
        drawn = distributions.NegativeBinomial(r, logits=logits).sample((1000,))
    assert float(drawn[:, 0].mean()) == pytest.approx(2 * math.exp(44), rel=0.2)
    assert float(drawn.min()) >= 0
    assert bool((drawn[:, 1] == math.inf).all())
    few = {"total_count": r, "logits": logits[2:]}
    with isolated(1):
        own = distributions.NegativeBinomial(**few).sample((50,))
    with isolated(1):
        assert torch.equal(own, dist.NegativeBinomial(**few).sample((50,)))


def test_the_cdf_of_counts_is_flat_between_them_and_0_below() -> None:
    value = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 2.0, 2.9, 3.0], dtype=torch.double)
    few = {"total_count": torch.tensor(2.5).double(), "logits": torch.tensor(0.7).double()}
    negative_binomial = stats.nbinom(2.5, torch.sigmoid(-few["logits"]).item())
    for made, oracle in (
        (distributions.LogPoisson(torch.tensor(0.7).double()), stats.poisson(E(0.7))),
        (distributions.NegativeBinomial(**few), negative_binomial),
    ):
        expected = torch.from_numpy(oracle.cdf(value.numpy()))
        torch.testing.assert_close(made.cdf(value), expected, rtol=1e-6, atol=0.0)


def test_a_negative_binomial_that_is_all_but_a_poisson_in_single_precision() -> None:
    r, mean, y = torch.tensor(1e6), 20.0, torch.arange(5.0, 40.0)
    law = distributions.NegativeBinomial(r, logits=torch.tensor(mean).log() - r.log())
    exact = stats.nbinom(1e6, 1e6 / (1e6 + mean))
    assert law.cdf(y).dtype == law.icdf(torch.tensor(0.5)).dtype == law.log_prob(y).dtype == torch.float32
    assert law.cdf(y).numpy() == pytest.approx(exact.cdf(y.numpy()), abs=1e-5)
    assert law.log_prob(y).numpy() == pytest.approx(exact.logpmf(y.numpy()), abs=1e-4)


@pytest.mark.parametrize("level", [0.1, 0.9])
def test_a_poisson_of_huge_counts_has_the_quantiles_of_a_normal(level: float) -> None:
    f = torch.tensor([26.0, 30.0]).double()
    found = (distributions.LogPoisson(f).icdf(torch.full_like(f, level)) - f.exp()) / (f / 2).exp()
    assert found.numpy() == pytest.approx(stats.norm.ppf(level), abs=1e-4)
