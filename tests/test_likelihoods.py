"""Each likelihood against torch's or SciPy's densities, its shapes, and what it refuses."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from scipy import stats
from torch import Tensor, nn

from engine_fakes import network, normal
from pyrobbb import Posterior, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.inference import MAP, NUTS
from pyrobbb.mean_field import MeanFieldNormal

LABELS = torch.tensor([0, 2, 1, 2, 0])


def judged(likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor | None = None) -> Any:
    """The distribution as the model takes it, and `y` if it fits; any network would do."""
    model = BayesianNetwork(torch.nn.Linear(1, 1), priors.Normal(), likelihood, 5)
    distribution = model.observation(output, draws=output.dim() - 2)
    if y is not None:
        model.encoded(distribution, y)
        model.likelihood.check_domain(distribution, model.likelihood.encode(y))
    return distribution


def softplus(x: Any) -> Any:
    return math.log1p(math.exp(x))


def test_categorical() -> None:
    likelihood, f = likelihoods.Categorical(), normal(5, 3)
    distribution = likelihood(f)
    assert distribution.batch_shape == (5,)
    expected = -torch.nn.functional.cross_entropy(f, LABELS, reduction="none")
    torch.testing.assert_close(distribution.log_prob(LABELS), expected)
    assert likelihood.width(10) == 10
    assert likelihood.task == "classification"


def test_bernoulli() -> None:
    likelihood, f = likelihoods.Bernoulli(), normal(5, 2)
    y = (normal(5, 2, seed=1) > 0).float()
    distribution = likelihood(f)
    assert (distribution.batch_shape, distribution.event_shape) == ((5,), (2,))
    expected = -torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="none").sum(-1)
    torch.testing.assert_close(distribution.log_prob(y), expected)
    assert (likelihood.width(2), likelihood.task) == (1, "classification")
    assert likelihoods.Bernoulli(multilabel=True).width(2) == 2
    with pytest.raises(ValueError, match="for two classes, got 3"):
        likelihood.width(3)


@pytest.mark.parametrize("learn", [True, False])
def test_normal(learn: bool) -> None:
    likelihood, f, y = likelihoods.Normal(scale=0.3, learn_scale=learn), normal(5, 2), normal(5, 2, seed=1)
    with isolated():
        distribution = likelihood(f)
    assert (distribution.batch_shape, distribution.event_shape) == ((5,), (2,))
    expected = torch.as_tensor(stats.norm(f.numpy(), 0.3).logpdf(y.numpy())).sum(-1).float()
    torch.testing.assert_close(distribution.log_prob(y).detach(), expected)
    assert likelihood.width(2) == 2
    assert len(list(likelihood.parameters())) == learn
    assert likelihood.scale.item() == pytest.approx(0.3)


@pytest.mark.parametrize("make", [likelihoods.Normal, partial(likelihoods.StudentT, 4.0)])
@pytest.mark.parametrize("scale", [[0.3, 2.0], torch.tensor([0.3, 2.0]), np.array([0.3, 2.0])])
@pytest.mark.parametrize("learn", [True, False])
def test_each_output_may_have_a_scale_of_its_own(make: Any, scale: Any, learn: bool) -> None:
    f, y = normal(5, 2), normal(5, 2, seed=1)
    with isolated():
        found = judged(make(scale=scale, learn_scale=learn), f).log_prob(y)
        each = [judged(make(scale=s), f[:, [k]]).log_prob(y[:, [k]]) for k, s in enumerate((0.3, 2.0))]
    torch.testing.assert_close(found.detach(), sum(each))


def test_noise_of_each_output_is_learned_by_itself() -> None:
    """The free energy is lowest where each output's noise is the root mean square of its residuals."""
    x, e = normal(200, 1), normal(200, 2, seed=1)
    data = from_arrays(x, torch.tensor([0.1, 1.0]) * e, task="regression")
    with isolated(0):
        model = BayesianNetwork(
            torch.nn.Linear(1, 2), priors.Normal(), likelihoods.Normal([1.0, 1.0], learn_scale=True)
        )
        adam = partial(torch.optim.Adam, lr=0.05)
        posterior = fit(
            model, None, data, inference=MAP(), epochs=500, optim=adam, batch_size=200, device="cpu"
        )
        found = posterior.predict(x, draws=1)
    rms = (data.train.y - found.mean).square().mean(0).sqrt()
    torch.testing.assert_close(found.noise[0].sqrt(), rms, rtol=0.01, atol=0)


def test_heteroscedastic_normal() -> None:
    likelihood, f, y = likelihoods.HeteroscedasticNormal(least_scale=0.1), normal(5, 4), normal(5, 2, seed=1)
    distribution = likelihood(f)
    assert (distribution.batch_shape, distribution.event_shape) == ((5,), (2,))
    for row in range(5):
        expected = sum(
            stats.norm(float(f[row, k]), softplus(float(f[row, 2 + k])) + 0.1).logpdf(float(y[row, k]))
            for k in range(2)
        )
        assert float(distribution.log_prob(y)[row]) == pytest.approx(expected, rel=1e-5)
    assert likelihood.width(2) == 4


def test_normal_mixture() -> None:
    likelihood, f, y = likelihoods.NormalMixture(3, scale=[0.3, 2.0]), normal(5, 12), normal(5, 2, seed=1)
    distribution = judged(likelihood, f)
    assert (distribution.batch_shape, distribution.event_shape) == ((5,), (2,))
    for row in range(5):
        expected = 0.0
        for output, scale in enumerate((0.3, 2.0)):
            logits, means = f[row].double().reshape(2, 2, 3)[output]
            densities = stats.norm(means.numpy(), scale).pdf(float(y[row, output]))
            expected += math.log(float((logits.softmax(0).numpy() * densities).sum()))
        assert float(distribution.log_prob(y)[row]) == pytest.approx(expected, rel=1e-5)
    assert likelihood.width(2) == 12
    with pytest.raises(ValueError, match=r"width is a multiple of 6, 3 logits and as many means .* got 8"):
        likelihood(normal(5, 8))
    with pytest.raises(ValueError, match="components must be a whole number of at least 2, got 1"):
        likelihoods.NormalMixture(1)


def test_components_of_a_mixture_start_apart() -> None:
    """Where the network says 0, at the spread times a normal's 1/6, 1/2 and 5/6 points."""
    apart = judged(likelihoods.NormalMixture(3, scale=0.3, spread=2.0), torch.zeros(5, 6))
    means = 2 * stats.norm.ppf(np.array([1, 3, 5]) / 6)
    for y in (-1.5, 0.2, 4.0):
        expected = math.log(stats.norm(means, 0.3).pdf(y).mean())
        found = apart.log_prob(torch.full((5, 1), y))
        assert found.tolist() == pytest.approx([expected] * 5, rel=1e-5)
    for wrong in (math.inf, -1.0):
        with pytest.raises(ValueError, match="spread must "):
            likelihoods.NormalMixture(3, spread=wrong)
    half = likelihoods.NormalMixture(3, scale=0.3, spread=2.0)(torch.zeros(5, 6, dtype=torch.bfloat16))
    assert half.log_prob(torch.zeros(5, 1, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_mixture_finds_two_values() -> None:
    """y is -1 or 1 by chance, with noise of 0.1: log p(y) is that of a normal of 0.1, less log 2."""
    e = 0.1 * normal(200, 1)
    y = torch.tensor([-1.0, 1.0]).repeat(100)[:, None] + e
    data = from_arrays(torch.ones(200, 1), y, task="regression")
    with isolated(0):
        mixture = likelihoods.NormalMixture(scale=0.3, learn_scale=True)
        net = torch.nn.Linear(1, 4, bias=False)
        adam = partial(torch.optim.Adam, lr=0.05)
        model = BayesianNetwork(net, priors.Normal(sigma=10.0), mixture)
        posterior = fit(
            model, None, data, inference=MAP(), epochs=500, optim=adam, batch_size=200, progress=None
        )
        found = posterior.predict(data.train.x[:1], data.train.y[:1], draws=1)
        nll = posterior.predict(data.train.x, data.train.y, draws=1).metrics(data.train.y)["nll"]
    variance = float(e.reshape(100, 2).var(0, correction=0).mean())  # around the mean of each value
    assert nll == pytest.approx(0.5 * math.log(2 * math.pi * math.e * variance) + math.log(2), abs=0.01)
    low, high = found.interval(0.9)[:, 0, 0]
    assert low < -0.9
    assert high > 0.9


def test_the_learnt_scale_stays_positive() -> None:
    likelihood = likelihoods.Normal(scale=0.1, learn_scale=True)
    (parameter,) = likelihood.parameters()
    with torch.no_grad():
        parameter.fill_(-20.0)
    assert 0 < likelihood.scale.item() < 1e-6


@pytest.mark.parametrize("make", [likelihoods.Normal, likelihoods.StudentT])
def test_a_scale_that_nobody_gives_is_learned(make: Callable[..., likelihoods.Likelihood]) -> None:
    """A number fixed by default would be wrong for most data, without a word."""
    learned = make()
    (raw,) = learned.parameters()
    assert raw.requires_grad
    assert float(learned.scale.detach()) == pytest.approx(1.0)
    assert not list(make(scale=0.1).parameters())


def test_likelihoods_that_are_called_by_themselves_keep_their_own_scales() -> None:
    """Pyro's parameter store is global and goes by names."""
    with pyro.get_param_store().scope(), torch.no_grad():
        one, other = likelihoods.Normal(2.0, learn_scale=True), likelihoods.Normal(3.0, learn_scale=True)
        again = deepcopy(other)
        again.scale_unconstrained.fill_(0.0)
        scales = [float(each(torch.zeros(1, 1)).base_dist.scale) for each in (one, other, again)]
    assert scales == pytest.approx([2.0, 3.0, softplus(0.0)])


@pytest.mark.parametrize("part", ["", "model", "model.likelihood"])
def test_a_copy_of_a_part_keeps_its_own_scale(part: str) -> None:
    class Whole(PyroModule):
        def __init__(self) -> None:
            super().__init__("whole")
            likelihood = likelihoods.Normal(2.0, learn_scale=True)
            self.model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihood, 1)

    def likelihood(whole: nn.Module) -> nn.Module:
        return next(each for each in whole.modules() if isinstance(each, likelihoods.Likelihood))

    with pyro.get_param_store().scope(), torch.no_grad():
        one = Whole().get_submodule(part)
        other = deepcopy(one)
        likelihood(other).scale_unconstrained.fill_(0.0)
        scales = [float(likelihood(each)(torch.zeros(1, 1)).base_dist.scale) for each in (one, other)]
    assert scales == pytest.approx([2.0, softplus(0.0)])


def test_a_likelihood_of_ones_own_may_give_a_name_as_pyro_s_modules_do() -> None:
    class Own(likelihoods.Likelihood):
        def __init__(self) -> None:
            super().__init__("own")

    assert Own()._pyro_name.startswith("own_")


def test_the_scale_follows_the_outputs_precision() -> None:
    distribution = likelihoods.Normal(scale=0.3)(normal(5, 2, dtype=torch.float64))
    assert distribution.log_prob(torch.zeros(5, 2, dtype=torch.float64)).dtype == torch.float64
    likelihood = likelihoods.Normal(scale=0.3).double()
    assert (
        likelihood(normal(5, 2, dtype=torch.float64)).log_prob(torch.zeros(5, 2).double()).dtype
        == torch.float64
    )


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (
            likelihoods.Categorical(),
            torch.zeros(5),
            r"integer labels of shape \(B, \*grid\), got torch.float32 \(5,\)",
        ),
        (
            likelihoods.Categorical(),
            torch.zeros(5, 4, dtype=torch.long),
            r"fits y of shape \(5,\), got \(5, 4\)",
        ),
        (likelihoods.Categorical(), torch.zeros(4, dtype=torch.long), "gave 5 rows, y has 4"),
        (likelihoods.Bernoulli(), torch.zeros(5), r"fits y of shape \(5, 4\), got \(5, 1\)"),
        (likelihoods.Normal(0.1), torch.zeros(5), r"fits y of shape \(5, 4\), got \(5,\)$"),
        (likelihoods.Normal(0.1), torch.zeros(5, 2), r"fits y of shape \(5, 4\), got \(5, 2\)"),
        (likelihoods.Normal(0.1), torch.zeros(3, 4), "gave 5 rows, y has 3"),
        (likelihoods.HeteroscedasticNormal(), torch.zeros(5, 4), r"fits y of shape \(5, 2\), got \(5, 4\)"),
    ],
)
def test_targets_that_do_not_fit(likelihood: likelihoods.Likelihood, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judged(likelihood, normal(5, 4), y)


def test_targets_without_the_dimension_of_their_one_output() -> None:
    with pytest.raises(ValueError, match=r"fits y of shape \(5, 1\), got \(5,\); give y\[\.\.\., None\]$"):
        judged(likelihoods.Normal(0.1), normal(5, 1), torch.zeros(5))


def test_outputs_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="even width"):
        judged(likelihoods.HeteroscedasticNormal(), normal(5, 3))
    with pytest.raises(ValueError, match="at least 2 classes"):
        judged(likelihoods.Categorical(), normal(5, 1))
    model = BayesianNetwork(torch.nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.1), 5)
    with pytest.raises(ValueError, match=r"Normal needs a network output of shape \(B, width\), got \(5,\)"):
        model.observation(normal(5))


def test_one_scale_for_all_outputs_or_one_for_each() -> None:
    with pytest.raises(ValueError, match=r"scale\[1\] must be greater than 0, got -1"):
        likelihoods.Normal(scale=[1, -1])
    with pytest.raises(
        ValueError, match="Normal has 2 scales for 3 outputs: give one for all, or one for each"
    ):
        judged(likelihoods.Normal(scale=[1, 1]), normal(5, 3))


def test_standardised_targets_are_any_numbers_with_an_output_each() -> None:
    """Else impossible targets had ever greater densities, and one output stood for several targets."""
    with pytest.raises(ValueError, match="targets under Exponential cannot be standardised"):
        judged(likelihoods.Rescaled(Exponential(), [0.0], [2.0]), normal(5, 1))
    two = likelihoods.Rescaled(likelihoods.HeteroscedasticNormal(), [0.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"units for 2 outputs, HeteroscedasticNormal has 1: .* must be 4"):
        judged(two, normal(5, 2))
    assert judged(two, normal(5, 4)).batch_shape == (5,)


@pytest.mark.parametrize(
    "make",
    [
        likelihoods.Normal,
        partial(likelihoods.StudentT, 3.0),
        partial(likelihoods.NormalMixture, 2),
        likelihoods.NegativeBinomial,
    ],
)
def test_a_latent_scale_is_positive(make: Callable[..., likelihoods.Likelihood]) -> None:
    for prior in (
        dist.Normal(1.0, 0.5),
        dist.Normal(torch.ones(2), 0.5).to_event(1),
        dist.Uniform(-1.0, 1.0),
    ):
        with pytest.raises(ValueError, match=r"prior of (scale|concentration) must be on positive numbers"):
            make(prior)
    mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.LogNormal(torch.zeros(2), 1.0))
    for prior in (dist.Uniform(0.1, 2.0), dist.HalfCauchy(torch.ones(2)).to_event(1), mixture):
        make(prior)


def test_a_latent_scale_may_be_one_of_torchs() -> None:
    x, y = normal(12, 1), normal(12, 1, seed=1)
    model = BayesianNetwork(
        torch.nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(torch.distributions.HalfNormal(1.0))
    )
    fit(model, AutoNormal, from_arrays(x, y, task="regression"), epochs=1, progress=None)
    assert model.latents == ("weight", "bias", "likelihood.scale")


def test_a_fixed_scale_is_no_site_and_no_parameter_of_pyro() -> None:
    with isolated():
        with pyro.poutine.trace() as tracer:
            likelihoods.Normal(0.1)(normal(5, 2))
        assert list(pyro.get_param_store()) == []
    assert not tracer.trace.stochastic_nodes


COUNTS = torch.tensor([[0.0, 3.0], [7.0, 1.0], [2.0, 2.0], [0.0, 11.0], [5.0, 0.0]])


@pytest.mark.parametrize(
    ("likelihood", "exact", "y"),
    [
        (likelihoods.Poisson(), lambda f: stats.poisson(math.exp(f)).logpmf, COUNTS),
        (
            likelihoods.NegativeBinomial(concentration=1.7),
            lambda f: stats.nbinom(1.7, 1.7 / (1.7 + math.exp(f))).logpmf,
            COUNTS,
        ),
        (likelihoods.StudentT(df=3.0, scale=0.4), lambda f: stats.t(3, f, 0.4).logpdf, normal(5, 2, seed=1)),
    ],
    ids=["poisson", "negative_binomial", "student_t"],
)
def test_densities_are_scipys(likelihood: likelihoods.Likelihood, exact: Any, y: Tensor) -> None:
    f = normal(5, 2)
    distribution = judged(likelihood, f, y)
    expected = [sum(exact(float(f[i, k]))(float(y[i, k])) for k in range(2)) for i in range(5)]
    assert distribution.log_prob(y).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("likelihood", [likelihoods.Poisson(), likelihoods.NegativeBinomial()])
def test_a_mean_of_0_gives_the_count_0(likelihood: likelihoods.Likelihood) -> None:
    """As at an exposure of 0, whose logarithm is minus infinity."""
    y = torch.tensor([[0.0], [3.0]])
    assert judged(likelihood, torch.full((2, 1), -math.inf), y).log_prob(y).tolist() == [0.0, -math.inf]


def test_a_fixed_scale_is_exact_in_any_precision() -> None:
    net = torch.nn.Linear(2, 1).double()
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=0.7), 5)
    for each in (model, model.double()):
        distribution: Any = each.likelihood(normal(5, 1, dtype=torch.float64))
        assert float(distribution.base_dist.scale[0, 0]) == 0.7


class WithoutEvent(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, 1.0)


class Exponential(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return dist.Exponential(output.exp()).to_event(1)


def test_a_likelihood_that_forgets_its_event_is_refused() -> None:
    """One output would broadcast (B, 1) with (B,) and count each target B times."""
    message = r"WithoutEvent gave a distribution of batch shape \(5, 1\).*\.to_event\(1\)"
    with pytest.raises(ValueError, match=message):
        judged(WithoutEvent(), normal(5, 1))


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (likelihoods.Poisson(), "y: -1 in row 3 is outside the support of Poisson"),
        (likelihoods.NegativeBinomial(), "y: -1 in row 3 is outside the support of NegativeBinomial"),
        (Exponential(), "y: -1 in row 3 is outside the support of Exponential"),
    ],
)
def test_targets_outside_the_support_are_refused(likelihood: likelihoods.Likelihood, message: str) -> None:
    y = torch.ones(12, 1)
    y[3] = -1.0
    data = from_arrays(normal(12, 3), y, task="regression")
    model = BayesianNetwork(network(width=1), priors.Normal(), likelihood)
    model.N = 12
    with pytest.raises(ValueError, match=message):
        fit(model, MeanFieldNormal(model), data, epochs=1, batch_size=6, device="cpu")


class OwnSupport(dist.Normal):
    @property
    def support(self) -> Any:
        return dist.constraints.real


class OwnNormal(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return OwnSupport(output, 1.0).to_event(1)


def test_a_support_that_is_a_plain_property_refuses_nothing_finite() -> None:
    y = normal(5, 1)
    judged(OwnNormal(), normal(5, 1), y)
    y[3] = math.nan
    with pytest.raises(ValueError, match="1 value is not finite, the first in row"):
        judged(OwnNormal(), normal(5, 1), y)


def test_outputs_on_a_grid_are_independent_observations() -> None:
    """A network of (B, T, K) outputs: the log-likelihood of a row is the sum over its grid."""
    f, y = normal(7, 5, 4, 2), normal(5, 4, 2, seed=1)
    model = BayesianNetwork(torch.nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(scale=0.5), 5)
    distribution = model.observation(f, draws=1)
    assert (distribution.batch_shape, distribution.event_shape) == ((7, 5), (4, 2))
    expected = torch.distributions.Normal(f, 0.5).log_prob(model.encoded(distribution, y, 1)).sum((-1, -2))
    torch.testing.assert_close(distribution.log_prob(y), expected)
    words = BayesianNetwork(torch.nn.Linear(1, 1), priors.Normal(), likelihoods.Categorical(), 5)
    distribution = words.observation(f, draws=1)
    labels = torch.randint(2, (5, 4), generator=torch.Generator().manual_seed(0))
    expected = f.log_softmax(-1).gather(-1, labels.expand(7, 5, 4)[..., None])[..., 0].sum(-1)
    torch.testing.assert_close(distribution.log_prob(words.encoded(distribution, labels, 1)), expected)
    channels = words.observation(normal(5, 2, 4, 4))  # an image's classes, which a convolution puts first
    with pytest.raises(
        ValueError, match=r"fits y of shape \(5, 2, 4\), got \(5, 4, 4\); .* has its width last"
    ):
        words.encoded(channels, torch.zeros(5, 4, 4, dtype=torch.long))


@pytest.mark.parametrize("y", [torch.tensor([0, 1, 1, 0, 1]), torch.tensor([[0.0], [1], [1], [0], [1]])])
def test_bernoulli_is_classification(y: Tensor) -> None:
    model = BayesianNetwork(network(width=1), priors.Normal(), likelihoods.Bernoulli(), 5)
    x = normal(5, 3)
    posterior = Posterior([(model, MeanFieldNormal(model, init_rho=-30.0))])
    posterior.chains[0][1]()
    found = posterior.predict(x, y, draws=2)
    p = torch.sigmoid(model.apply_network(model.initial(), x)).detach()
    torch.testing.assert_close(found.probs, torch.cat([1 - p, p], 1))
    scores = found.metrics(y)
    wrong = ((p > 0.5) != (y.reshape(5, 1) > 0)).double().mean()
    assert scores["error"] == pytest.approx(100 * float(wrong))
    assert scores["nll"] == pytest.approx(-float(found.log_predictive.mean()), rel=1e-4)
    assert float(found.losses(y).mean()) == pytest.approx(scores["error"])


def test_a_latent_noise_scale_has_the_posterior_of_quadrature() -> None:
    """y ~ N(0, s^2), s ~ HalfNormal(2), the network all but silent: mean of s within 5 % of quadrature."""
    y = 1.5 * normal(60, 1)
    net = torch.nn.Linear(1, 1, bias=False)
    data = from_arrays(torch.ones(60, 1) * 1e-6, y, task="regression")
    with isolated(0):
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=dist.HalfNormal(2.0)), 60)
        assert model.latents == ("weight", "likelihood.scale")
        guide = AutoNormal(model, init_scale=0.1)
        posterior = fit(
            model, guide, data, epochs=300, batch_size=60, samples=8, vectorize=True,
            optim=partial(torch.optim.Adam, lr=0.02), device="cpu",
            schedule=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.985),
        )  # fmt: skip
    s = torch.linspace(0.5, 4.0, 4000)
    log = dist.HalfNormal(2.0).log_prob(s) + dist.Normal(0.0, s[:, None]).log_prob(y[:, 0]).sum(1)
    density = (log - log.max()).exp()
    exact = float((s * density).sum() / density.sum())
    scales = posterior.draw(1000)["likelihood.scale"]
    assert float(scales.mean()) == pytest.approx(exact, rel=0.05)
    found = posterior.predict(data.train.x, data.train.y, draws=50)
    torch.testing.assert_close(found.noise[0, 0], posterior.draw(50)["likelihood.scale"].square().mean())


def test_a_latent_concentration_has_the_posterior_of_quadrature() -> None:
    """Counts about a mean of 1, the network silent: the mean of r within five standard errors of NUTS's."""
    y = torch.poisson(torch.distributions.Gamma(2.0, 2.0).sample((200, 1)))
    data = from_arrays(torch.zeros(200, 1), y, task="regression")
    prior = dist.LogNormal(0.0, 1.0)
    model = BayesianNetwork(
        torch.nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.NegativeBinomial(concentration=prior)
    )
    draws = 200
    posterior = fit(
        model, None, data, inference=NUTS(warmup=100, draws=draws), device="cpu", progress=None, seed=1
    )
    r = torch.linspace(0.05, 30.0, 20_000)
    log = prior.log_prob(r) + dist.NegativeBinomial(r[:, None], logits=-r.log()[:, None]).log_prob(
        y[:, 0]
    ).sum(1)
    density = (log - log.max()).exp() / (log - log.max()).exp().sum()
    exact = float((r * density).sum())
    sd = float(((r - exact).square() * density).sum().sqrt())
    found = posterior.draw(draws)["likelihood.concentration"]
    assert float(found.mean()) == pytest.approx(exact, abs=5 * sd / (draws / 10) ** 0.5)
