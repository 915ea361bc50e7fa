"""Intervals of y and of the function: against closed forms, and for distributions without them."""

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import Tensor
from torch.distributions.transforms import AffineTransform, SigmoidTransform

from pyrobbb import distributions, likelihoods
from pyrobbb._support.quantiles import mixture_quantile
from pyrobbb.distributions import Affine
from pyrobbb.predictive import ValuePrediction

DRAWS = torch.linspace(-1.0, 1.0, 5)  # the function at one input, in five draws


def prediction(likelihood: likelihoods.Likelihood, functions: Tensor = DRAWS) -> ValuePrediction:
    """What is predicted at one input where the draws of the function are these."""
    with torch.no_grad():
        distribution: Any = likelihood(functions[:, None, None])
    return ValuePrediction.of([distribution], None, lambda distribution, y: y)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_the_interval_of_y_is_that_of_the_mixture(level: float) -> None:
    """Not mean +- 2 sd: SciPy finds the root of the mixture's distribution function."""
    found = prediction(likelihoods.Normal(scale=0.2)).interval(level)
    assert found.shape == (2, 1, 1)
    for end, tail in zip(found.flatten().tolist(), ((1 - level) / 2, (1 + level) / 2), strict=True):
        exact = optimize.brentq(lambda v, t=tail: stats.norm(DRAWS.numpy(), 0.2).cdf(v).mean() - t, -9, 9)
        assert end == pytest.approx(exact, abs=1e-4)


def test_one_draw_has_its_own_quantiles() -> None:
    one = prediction(likelihoods.Normal(scale=2.0), torch.tensor([3.0]))
    assert one.interval(0.95).flatten().tolist() == pytest.approx([3 - 3.919928, 3 + 3.919928], rel=1e-4)
    assert float(one.median) == pytest.approx(3.0, abs=1e-5)


def test_the_band_of_the_function_has_no_noise() -> None:
    found = prediction(likelihoods.Normal(scale=100.0))
    assert found.function_interval(0.5).flatten().tolist() == pytest.approx([-0.5, 0.5])
    assert found.function_quantiles([0.0, 1.0]).flatten().tolist() == [-1.0, 1.0]


class Exponential(likelihoods.Likelihood):
    """A distribution whose cdf is kept from the prediction."""

    def forward(self, output: Tensor) -> Any:
        class Unknown(dist.Exponential):
            def cdf(self, value: Tensor) -> Tensor:
                raise NotImplementedError

        return Unknown(output.exp()).to_event(1)


def test_without_a_distribution_function_quantiles_are_those_of_samples() -> None:
    """Within five standard errors of ten thousand samples, in probability."""
    one, exact = prediction(Exponential(), torch.tensor([1.3])), stats.expon(scale=math.exp(-1.3))
    for level in (0.1, 0.5, 0.9):
        error = 5 * math.sqrt(level * (1 - level) / 10_000)
        assert exact.cdf(float(one.predictive_quantiles([level]))) == pytest.approx(level, abs=error)
    assert torch.equal(one.interval(0.9), one.interval(0.9))


KNOWN = [
    (likelihoods.Poisson(), lambda f: stats.poisson(np.exp(f))),
    (likelihoods.NegativeBinomial(2.0), lambda f: stats.nbinom(2, 2 / (2 + np.exp(f)))),
    (likelihoods.StudentT(df=3.0, scale=2.0), lambda f: stats.t(3, f, 2.0)),
]


@pytest.mark.parametrize(("likelihood", "exact"), KNOWN)
@pytest.mark.parametrize("level", [0.025, 0.5, 0.975])
def test_quantiles_of_counts_and_tails_are_those_of_the_mixture(
    likelihood: Any, exact: Any, level: float
) -> None:
    functions = 1 + DRAWS
    one = prediction(likelihood, functions)
    assert float(one.means.mean()) == pytest.approx(exact(functions.numpy()).mean().mean(), rel=1e-5)
    end = float(one.predictive_quantiles([level]))

    def cdf(at: float) -> float:
        return float(exact(functions.numpy()).cdf(at).mean())

    if isinstance(likelihood, likelihoods.StudentT):
        assert cdf(end) == pytest.approx(level, abs=1e-5)
    else:
        assert cdf(end - 1) < level <= cdf(end)


@pytest.mark.parametrize("unit", [1.0, 50.0])
@pytest.mark.parametrize("level", [1e-8, 0.3, 0.5, 0.975])
def test_quantiles_of_a_mixture_as_noise_are_exact(level: float, unit: float) -> None:
    """Of each draw its two normals, with weights; in the network's units and in the table's."""
    output = torch.tensor([[0.0, 1.0, -3.0, 2.0], [0.5, -0.5, -2.0, 2.5]])  # two logits, two means
    likelihood = likelihoods.Rescaled(
        likelihoods.NormalMixture(scale=0.3), torch.ones(1), torch.tensor([unit])
    )
    with torch.no_grad():
        distribution: Any = likelihood(output[:, None])
    end = float(ValuePrediction.of([distribution], None, lambda d, y: y).predictive_quantiles([level]))
    weights = output[:, :2].double().softmax(-1).numpy() / 2
    found = (weights * stats.norm(output[:, 2:].double().numpy(), 0.3).cdf((end - 1) / unit)).sum()
    assert found == pytest.approx(level, rel=1e-3)


@pytest.mark.parametrize("f", [0.0, 5.0, 14.0])
@pytest.mark.parametrize(("likelihood", "exact"), KNOWN[:2])
def test_the_log_density_of_large_counts(likelihood: Any, exact: Any, f: float) -> None:
    """In float32 its terms cancel: at a million, torch's own is wrong by a nat."""
    with torch.no_grad():
        distribution = likelihood(torch.full((1, 1), f))
        at = distribution.mean.round() + 3
        found = float(distribution.log_prob(at))
    expected = float(exact(f).logpmf(float(at)))
    assert found == pytest.approx(expected, abs=2e-2 if f > 10 else 1e-4)  # the rate itself is rounded


@pytest.mark.parametrize("f", [23.0, 26.0, 60.0])
def test_quantiles_of_huge_counts_are_a_normal_s(f: float) -> None:
    """Where one draw of a rate is huge, as far from the data, SciPy's NaN made the whole interval NaN."""
    level, rate = 0.1, math.exp(f)
    found = float(prediction(likelihoods.Poisson(), torch.tensor([f])).predictive_quantiles([level]))
    assert found == pytest.approx(stats.norm(rate, math.sqrt(rate)).ppf(level), rel=1e-5)
    assert bool(prediction(likelihoods.Poisson(), torch.tensor([0.0, f])).interval(0.5).isfinite().all())


@pytest.mark.parametrize("level", [1e-8, 1e-12, 1 - 1e-9])
def test_levels_that_single_precision_rounds(level: float) -> None:
    """A normal's quantile there was infinite."""
    one = prediction(likelihoods.Normal(scale=2.0), torch.tensor([3.0]))
    assert float(one.predictive_quantiles([level])) == pytest.approx(stats.norm(3, 2).ppf(level), rel=1e-4)
    counts = prediction(likelihoods.Poisson(), torch.tensor([2.0]))
    assert float(counts.predictive_quantiles([level])) == stats.poisson(math.exp(2.0)).ppf(level)
    mixed = prediction(likelihoods.Normal(scale=0.2)).predictive_quantiles([level])
    assert stats.norm(DRAWS.numpy(), 0.2).cdf(float(mixed)).mean() == pytest.approx(level, rel=1e-3)


def test_quantiles_are_the_same_after_the_mean() -> None:
    """Asked for it, torch keeps a mixture's probabilities in single precision, where alone they sum to 1."""
    outputs = torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(0))
    first, again = (
        ValuePrediction.of([likelihoods.NormalMixture(10, scale=0.2)(outputs)], None, lambda d, y: y)
        for _ in range(2)
    )
    assert again.mean.isfinite().all()
    levels = [0.025, 1 - 1e-8]
    assert torch.allclose(first.predictive_quantiles(levels), again.predictive_quantiles(levels), rtol=1e-6)


def test_levels_may_be_a_tensor() -> None:
    one = prediction(likelihoods.Normal(scale=0.2))
    for quantiles in (one.predictive_quantiles, one.function_quantiles):
        torch.testing.assert_close(quantiles(torch.tensor([0.25, 0.5])), quantiles([0.25, 0.5]))


def test_a_level_that_double_precision_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="levels must be 0 or at least 1e-12, got 1e-17"):
        prediction(likelihoods.Normal(scale=0.2)).predictive_quantiles([1e-17])


class Cauchy(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return dist.Cauchy(output, 1.0).to_event(1)


def test_what_has_no_mean_says_so() -> None:
    found = prediction(Cauchy())
    with pytest.raises(ValueError, match="Cauchy has no mean: use median, or interval"):
        _ = found.mean
    assert found.noise.isinf().all()
    assert float(found.median) == pytest.approx(0.0, abs=1e-5)
    torch.testing.assert_close(found.means[:, 0, 0], DRAWS)
    low, high = found.interval(0.5).flatten().tolist()
    assert stats.cauchy(DRAWS.numpy()).cdf(high).mean() == pytest.approx(0.75, abs=1e-5)
    assert low == pytest.approx(-high, abs=1e-4)
    assert float(found.losses(torch.tensor([[2.0]]))) == pytest.approx(4.0, abs=1e-4)


class Logistic(likelihoods.Likelihood):
    """As torch makes one, which states no moments."""

    def forward(self, output: Tensor) -> Any:
        uniform = dist.Uniform(torch.zeros_like(output), torch.ones_like(output))
        to = [SigmoidTransform().inv, AffineTransform(output, 1.0)]
        return dist.TransformedDistribution(uniform, to).to_event(1)


def test_what_states_no_mean_says_so_and_has_exact_quantiles() -> None:
    found = prediction(Logistic())
    with pytest.raises(ValueError, match="TransformedDistribution has no mean: use median, or interval"):
        _ = found.mean
    with pytest.raises(ValueError, match="TransformedDistribution has no variance: use interval"):
        _ = found.std
    torch.testing.assert_close(found.means[:, 0, 0], DRAWS)
    low, high = found.interval(0.5).flatten().tolist()
    assert stats.logistic(DRAWS.numpy()).cdf(high).mean() == pytest.approx(0.75, abs=1e-5)
    assert low == pytest.approx(-high, abs=1e-4)
    assert float(found.losses(torch.tensor([[2.0]]))) == pytest.approx(4.0, abs=1e-4)


def test_each_of_several_targets_has_an_error_in_its_own_units() -> None:
    output, y = torch.zeros(1, 2, 2), torch.tensor([[1.0, 3000.0], [-1.0, 4000.0]])
    distribution: Any = likelihoods.Normal(scale=1.0)(output)
    found = ValuePrediction.of([distribution], y, lambda distribution, y: y)
    assert found.rmse(y).tolist() == pytest.approx([1.0, math.sqrt(12.5e6)])
    assert found.metrics(y)["rmse"] == pytest.approx(float(found.rmse(y).square().mean().sqrt()))
    y = torch.tensor([[1.0, 3000.0], [math.nan, math.nan]])
    assert found.rmse(y, [2, 0]).tolist() == [1.0, 3000.0]


@pytest.mark.parametrize("level", [-0.1, 1.1, math.nan])
def test_levels_are_checked(level: float) -> None:
    with pytest.raises(ValueError, match="level must"):
        prediction(likelihoods.Normal(0.1)).interval(level)


def test_standardised_targets_are_predicted_in_their_own_units() -> None:
    """y = 100 + 5 z: every statistic maps, and the density has its Jacobian."""
    inner, scale = likelihoods.Normal(scale=0.2), torch.tensor([5.0])
    outer = likelihoods.Rescaled(inner, torch.tensor([100.0]), scale)
    z, y = prediction(inner), prediction(outer)
    for name in ("mean", "median", "means"):
        torch.testing.assert_close(getattr(y, name), 100 + 5 * getattr(z, name))
    torch.testing.assert_close(y.variance, 25 * z.variance)
    torch.testing.assert_close(y.interval(0.9), 100 + 5 * z.interval(0.9), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(y.function_interval(0.9), 100 + 5 * z.function_interval(0.9))
    f, value = torch.tensor([[0.3]]), torch.tensor([[102.0]])
    exact = stats.norm(100 + 5 * 0.3, 5 * 0.2).logpdf(102.0)
    assert float(outer(f).log_prob(value)) == pytest.approx(exact, rel=1e-5)
    with pytest.raises(ValueError, match="targets under Poisson cannot be standardised"):
        likelihoods.Rescaled(likelihoods.Poisson(), torch.zeros(1), torch.ones(1))(f)


def test_the_outermost_quantiles_of_bounded_values_are_the_ends_of_all_components() -> None:
    parts = (dist.Uniform(torch.tensor([[0.0], [-1.0]]), torch.tensor([[1.0], [3.0]])),)
    low, high = ValuePrediction(None, None, components=parts).interval(1.0)
    assert (float(low), float(high)) == (-1.0, 3.0)


@pytest.mark.parametrize(
    "likelihood",
    [likelihoods.Normal(0.1), likelihoods.StudentT(df=3.0, scale=0.1), likelihoods.NormalMixture(2, 0.1)],
)
def test_what_has_no_ends_lies_between_the_infinities(likelihood: likelihoods.Likelihood) -> None:
    with torch.no_grad():
        distribution: Any = likelihood(torch.zeros(3, 1, likelihood.width(1)))
    found = ValuePrediction.of([distribution], None, lambda distribution, y: y).interval(1.0)
    assert found.flatten().tolist() == [-math.inf, math.inf]


def test_a_mixture_of_counts_has_the_quantiles_of_samples() -> None:
    counts = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(1, 1, 1, 2)), dist.Poisson(torch.tensor([1.0, 30.0]).expand(1, 1, 1, 2))
    )
    low, high = ValuePrediction(None, None, components=(counts,)).interval(0.9).flatten().tolist()
    assert (low, high) == (0.0, pytest.approx(37.0, abs=1.1))  # the 90 % point of 30


@pytest.mark.parametrize("counts", [likelihoods.Poisson(), likelihoods.NegativeBinomial(2.0)])
@pytest.mark.parametrize("level", [0.5, 0.9, 1.0])
def test_rows_do_not_change_each_others_quantiles(counts: likelihoods.Likelihood, level: float) -> None:
    """Nor does any lie below 0, the least count: where one row is found, others are still sought."""
    functions = torch.tensor([[-5.0, 0.0, 4.0], [-4.5, 0.2, 4.2]])

    def at(rows: Tensor) -> Tensor:
        with torch.no_grad():
            distribution: Any = counts(rows[..., None])
        found = ValuePrediction.of([distribution], None, lambda distribution, y: y)
        return torch.cat([found.interval(level), found.median[None]])

    together = at(functions)
    assert (together >= 0).all()
    for row in range(functions.shape[1]):
        assert torch.equal(together[:, [row]], at(functions[:, [row]]))


@pytest.mark.parametrize(("likelihood", "exact"), KNOWN[:2])
@pytest.mark.parametrize("far", [40.0, 45.0, 60.0])
def test_one_draw_that_lies_far_away_moves_quantiles_by_its_share(
    likelihood: Any, exact: Any, far: float
) -> None:
    """A hundredth of the probability, however large the counts that it predicts."""
    functions = torch.full((100,), 1.6)
    functions[0] = far
    found = prediction(likelihood, functions).predictive_quantiles([0.05, 0.5, 0.95]).flatten().tolist()
    assert found == [exact(1.6).ppf(level * 100 / 99) for level in (0.05, 0.5, 0.95)]


def test_far_draws_of_values_move_quantiles_by_their_share_too() -> None:
    loc, scale = torch.zeros(2, 100, 1, 1)
    loc[0], scale[:] = 60.0, 1.0
    found = ValuePrediction(None, None, components=(dist.LogNormal(loc, scale),)).median
    assert float(found) == pytest.approx(math.exp(stats.norm.ppf(50 / 99)), rel=1e-6)
    scale[0], loc[:] = 1e17, 0.0
    found = ValuePrediction(None, None, components=(dist.Normal(loc, scale),)).predictive_quantiles([0.9])
    assert float(found) == pytest.approx(stats.norm.ppf(89.5 / 99), rel=1e-6)


@given(seed=st.integers(0, 2**20), apart=st.floats(0.0, 12.0), level=st.floats(0.001, 0.999))
def test_quantiles_of_draws_of_any_size_have_their_level(seed: int, apart: float, level: float) -> None:
    """In few evaluations of a smooth distribution function; bisection alone took 45 or more."""
    generator = torch.Generator().manual_seed(seed)
    loc, scale = torch.randn(2, 20, 3, generator=generator, dtype=torch.float64)
    loc, scale = loc * (apart * scale).exp(), (apart / 2 * loc).exp()
    evaluated = 0

    class Counted(dist.Normal):
        def cdf(self, value: Tensor) -> Tensor:
            nonlocal evaluated
            evaluated += 1
            return super().cdf(value)

    found = mixture_quantile([Counted(loc, scale)], torch.tensor(level, dtype=torch.float64))
    below, above = (dist.Normal(loc, scale).cdf(found * (1 + e) + e).mean(0) for e in (-1e-9, 1e-9))
    low, high = torch.minimum(below, above), torch.maximum(below, above)
    assert (low <= level + 1e-12).all()
    assert (high >= level - 1e-12).all()
    assert evaluated <= (30 if apart < 1 else 130)


def shifted(base: Any, sign: float = 1.0) -> Any:
    """Base values from a place on that each draw says by itself."""
    return dist.TransformedDistribution(base, [AffineTransform(DRAWS[:, None, None], sign)])


ONE = torch.ones(5, 1, 1)
OWN = {
    "Gamma": (dist.Gamma(2 * ONE, DRAWS.exp()[:, None, None]), lambda f: stats.gamma(2, scale=math.exp(-f))),
    "Gumbel": (dist.Gumbel(DRAWS[:, None, None], 0.1 * ONE), lambda f: stats.gumbel_r(f, 0.1)),
    "Exponential from": (shifted(dist.Exponential(2 * ONE)), lambda f: stats.expon(f, 0.5)),
    "Exponential up to": (
        shifted(dist.Exponential(2 * ONE), -1.0), lambda f: Turned(stats.expon(0, 0.5), f)
    ),
    "LogNormal from": (shifted(dist.LogNormal(0 * ONE, ONE)), lambda f: stats.lognorm(1.0, f)),
    "Pareto": (
        dist.Pareto(DRAWS.exp()[:, None, None], 3 * ONE), lambda f: stats.pareto(3, scale=math.exp(f))
    ),
    "Uniform": (
        dist.Uniform(DRAWS[:, None, None] - 0.1, DRAWS[:, None, None] + 0.1),
        lambda f: stats.uniform(f - 0.1, 0.2),
    ),
    "InverseGamma": (
        dist.InverseGamma(3 * ONE, DRAWS.exp()[:, None, None]), lambda f: stats.invgamma(3, scale=math.exp(f))
    ),
    "Gamma, in units": (
        Affine(dist.Gamma(2 * ONE, ONE), DRAWS[:, None, None], torch.tensor(50.0)),
        lambda f: stats.gamma(2, f, 50.0),
    ),
}  # fmt: skip


class Turned:
    """A value less what SciPy's distribution draws."""

    def __init__(self, drawn: Any, end: float) -> None:
        self.drawn, self.end = drawn, end

    def cdf(self, value: float) -> float:
        return float(1 - self.drawn.cdf(self.end - value))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("level", [1e-6, 0.025, 0.5, 0.975, 1 - 1e-6])
def test_what_one_draw_rules_out_may_be_the_quantile_of_all(name: str, level: float) -> None:
    """Also without quantiles of its own, as the gamma distribution is."""
    distribution, exact = OWN[name]
    found = float(ValuePrediction(None, None, components=(distribution,)).predictive_quantiles([level]))
    below, above = (
        np.mean([exact(f).cdf(found * (1 + side) + side * 1e-5) for f in DRAWS.tolist()])
        for side in (-1e-6 * np.sign(found), 1e-6 * np.sign(found))
    )
    spare = 2e-7  # of a Gumbel, which torch makes from a uniform without its last bit in single precision
    assert min(below, above) - spare <= level <= max(below, above) + spare


@pytest.mark.parametrize(("y", "f"), [(1.0, -90.0), (0.0, -110.0), (1.0, -110.0), (3.0, 80.0), (3.0, 1.0)])
def test_a_poisson_knows_rates_that_single_precision_does_not(y: float, f: float) -> None:
    """Its log-density is y f - e^f - log y!, and the slope of that y - e^f."""
    output = torch.tensor([[f]], requires_grad=True)
    distribution: Any = likelihoods.Poisson()(output)
    value = distribution.log_prob(torch.tensor([[y]])).sum()
    expected = y * f - math.exp(f) - math.lgamma(y + 1)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-6)
    (slope,) = torch.autograd.grad(value, output)
    assert float(slope) == pytest.approx(y - math.exp(f), rel=1e-6)


def test_counts_that_no_double_can_tell_apart_are_drawn_as_their_mean() -> None:
    distribution: Any = likelihoods.Poisson()(torch.tensor([[80.0], [1.0]]))
    drawn = distribution.sample((1000,))
    assert torch.equal(drawn[:, 0], torch.full((1000, 1), 80.0).exp())
    assert float(drawn[:, 1].mean()) == pytest.approx(math.e, abs=5 * math.sqrt(math.e / 1000))


class Counts(dist.Poisson):
    """Counts with a cdf alone, which is for whole numbers."""

    def cdf(self, value: Tensor) -> Tensor:
        assert bool((value == value.round()).all())
        return torch.special.gammaincc(value + 1, self.rate)


MIXED = dist.MixtureSameFamily(
    dist.Categorical(logits=torch.zeros(5, 1, 1, 2)),
    distributions.LogPoisson(DRAWS[:, None, None, None] + torch.tensor([0.0, 2.0])),
)


@pytest.mark.parametrize(
    ("part", "exact"),
    [
        (Counts(DRAWS.exp()[:, None, None]), lambda y: stats.poisson(np.exp(DRAWS.numpy())).cdf(y).mean()),
        (MIXED, lambda y: stats.poisson(np.exp(DRAWS.numpy()[:, None] + [0.0, 2.0])).cdf(y).mean()),
    ],
    ids=["without quantiles", "mixtures"],
)
@pytest.mark.parametrize("level", [0.01, 0.1, 0.3, 0.5, 0.77, 0.9, 0.999])
def test_quantiles_of_counts_are_the_least_whole_numbers(part: Any, exact: Any, level: float) -> None:
    found = float(ValuePrediction(None, None, components=(part,)).predictive_quantiles([level]))
    assert found == round(found)
    assert exact(found) >= level > exact(found - 1)


@pytest.mark.parametrize("kind", [dist.HalfNormal, dist.HalfCauchy])
def test_what_knows_its_own_cdf_keeps_its_exact_quantiles(kind: Any) -> None:
    """Though it is made by a transform that has no direction."""
    of_scipy = {dist.HalfNormal: stats.halfnorm, dist.HalfCauchy: stats.halfcauchy}[kind]
    part = kind(DRAWS.exp()[:, None, None])
    for wrapped, unit in ((part, 1.0), (Affine(part, torch.tensor(0.0), torch.tensor(7.0)), 7.0)):
        prediction = ValuePrediction(None, None, components=(wrapped,))
        for level in (1e-6, 0.3, 0.999):
            found = float(prediction.predictive_quantiles([level])) / unit
            assert of_scipy(scale=np.exp(DRAWS.numpy())).cdf(found).mean() == pytest.approx(level, rel=1e-5)


def test_the_outermost_numbers_of_double_precision() -> None:
    loc = torch.tensor([899.0, 0.0, 0.0, 0.0, 0.0]).double()[:, None, None]
    lognormal = ValuePrediction(None, None, components=(dist.LogNormal(loc, torch.ones_like(loc)),))
    assert lognormal.predictive_quantiles([0.5, 0.95]).isfinite().flatten().tolist() == [True, False]
    counts = prediction(likelihoods.Poisson(), torch.tensor([800.0, 1.0, 2.0]).double())
    found = counts.predictive_quantiles([0.1, 0.5, 0.9]).flatten().tolist()
    exact = stats.poisson(np.exp([1.0, 2.0]))
    for level, y in zip((0.1, 0.5), found, strict=False):
        assert exact.cdf(y).sum() / 3 >= level > exact.cdf(y - 1).sum() / 3
    assert found[2] == math.inf
    tiny = ValuePrediction(None, None, components=(dist.Gamma(torch.ones(2, 1, 1).double(), 1e170),))
    assert float(tiny.median) == pytest.approx(math.log(2) * 1e-170)


def test_half_precision_has_counts() -> None:
    distribution: Any = likelihoods.Poisson()(torch.tensor([[1.0], [11.0]]).half())
    drawn = distribution.sample((1000,)).double()
    assert float(drawn[:, 0].mean()) == pytest.approx(math.e, abs=5 * math.sqrt(math.e / 1000) + 0.01)
