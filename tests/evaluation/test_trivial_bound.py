"""The free energy of ignoring the inputs, against closed forms, quadrature and known numbers."""

import math
from dataclasses import dataclass
from statistics import fmean

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.distributions import AffineTransform, ExpTransform
from torch.utils.data import TensorDataset

from architectures import Residual
from engine_fakes import classes, network, normal, nothing_changes
from own_priors import Hierarchical
from pyrobbb import likelihoods, partly_bayesian, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.data.torch_data import TorchRows
from pyrobbb.distributions import ScaleMixtureNormal
from pyrobbb.evaluation.nearest_normal import kl_to_prior, nearest_normal, nearest_normals, nearest_scales
from pyrobbb.evaluation.trivial_bound import compared, trivial_free_energy
from pyrobbb.priors import Prior, elementwise

LN_2_PI = math.log(2 * math.pi)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


PRIORS = {
    "mixture": ScaleMixtureNormal(double(0.5), double(1.0), double(math.exp(-6))),
    "laplace": dist.Laplace(double(0.0), double(0.3)),
    "student_t": dist.StudentT(double(3.0), double(0.0), double(0.5)),
    "normal": dist.Normal(double(0.2), double(0.4)),
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("scale", [0.001, 0.05, 1.3])
def test_the_kl_agrees_with_a_fine_trapezoid(name, scale):
    loc, scale = double(0.0), double(scale)
    q = dist.Normal(loc, scale)
    w = torch.linspace(-9, 9, 2_000_001, dtype=torch.float64) * scale
    exact = torch.trapezoid(q.log_prob(w).exp() * (q.log_prob(w) - PRIORS[name].log_prob(w)), w)
    assert float(kl_to_prior(PRIORS[name], loc, scale)) == pytest.approx(float(exact), abs=1e-4)


def test_the_nearest_normal_to_a_normal_is_itself_for_each_of_many():
    prior = dist.Normal(double(0.0, 1.0, 0.0), double(0.01, 2.0, 30.0))
    for scales in nearest_scales(prior, prior.loc):
        assert torch.allclose(scales, prior.scale, rtol=1e-4)
        assert torch.allclose(kl_to_prior(prior, prior.loc, scales), double(0, 0, 0), atol=1e-6)


def test_parameters_share_a_search_only_where_their_priors_are_the_same():
    def shifted(loc: float, scale: float) -> dist.TransformedDistribution:
        move = AffineTransform(torch.tensor(loc), torch.tensor(scale))
        return dist.TransformedDistribution(dist.Normal(torch.zeros(4), 1.0), [move])

    given = {"one": shifted(0.0, 1.0), "other": shifted(3.0, 2.0), "same": shifted(0.0, 1.0)}
    found = nearest_normals({name: (prior, torch.zeros(4)) for name, prior in given.items()})
    assert found is not None
    assert found["other"].loc.numpy() == pytest.approx(3.0, abs=1e-3)
    assert found["other"].starts[0].numpy() == pytest.approx(2.0, abs=1e-3)
    assert found["same"].loc is found["one"].loc


def test_the_nearest_normals_to_a_mixture_lie_at_its_components_and_cost_what_these_are_worth():
    prior = ScaleMixtureNormal(double(0.2), double(1.0), double(1e-4))
    wide, narrow = nearest_scales(prior, double(0.0))
    assert wide.item() == pytest.approx(1.0, rel=0.01)
    assert narrow.item() == pytest.approx(1e-4, rel=0.01)
    assert kl_to_prior(prior, double(0.0), wide).item() == pytest.approx(-math.log(0.2), abs=0.01)
    assert kl_to_prior(prior, double(0.0), narrow).item() == pytest.approx(-math.log(0.8), abs=0.01)


def least_of_a_linear_model(x: torch.Tensor, y: torch.Tensor, s: float, noise: float) -> float:
    r"""The least F/N of q(W) = N(0, s_w^2), q(b) = N(m, s_b^2) under N(0, s^2) priors, in closed form.

    .. math::
        N F = \sum_w (\log\frac{s}{s_w} + \frac{s_w^2}{2s^2} - \frac12) + \mathrm{KL}_b
              + \frac N2 \log 2\pi\eta^2
              + \frac1{2\eta^2} \sum_i [(y_i - m)^2 + s_b^2 + \sum_d x_{id}^2 s_{w_d}^2]

    with one s_w for all inputs; each variance is 1 / (1/s^2 + curvature).
    """
    N, d = x.shape
    variance_w = 1 / (1 / s**2 + float(x.square().sum()) / d / noise**2)
    variance_b = 1 / (1 / s**2 + N / noise**2)
    m = variance_b * float(y.sum()) / noise**2
    kl = d * 0.5 * (math.log(s**2 / variance_w) + variance_w / s**2 - 1)
    kl += 0.5 * (math.log(s**2 / variance_b) + (variance_b + m**2) / s**2 - 1)
    square = float((y - m).square().sum()) + N * variance_b + variance_w * float(x.square().sum())
    return kl / N + 0.5 * LN_2_PI + math.log(noise) + square / (2 * noise**2 * N)


@pytest.mark.parametrize(("s", "noise"), [(1.0, 0.5), (10.0, 0.2), (0.3, 1.0)])
def test_a_linear_model_agrees_with_its_closed_form(s, noise):
    apart = []
    for seed in range(0, 32, 2):
        x, y = normal(100, 3, seed=seed), 3 + 0.7 * normal(100, 1, seed=seed + 1)
        model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(sigma=s), likelihoods.Normal(noise), 100)
        exact = least_of_a_linear_model(x, y, s, noise)
        apart.append(trivial_free_energy(model, Split(x, y), seed=100 + seed) - exact)
    # Each has its own noise: a standard deviation of 0.01 at most for the mean of sixteen, over 24 shifts.
    # Above the least, for scales a factor 2 apart, it would be 0.16 nats a weight.
    assert -0.055 < fmean(apart) < 0.08


@pytest.mark.parametrize("rare", [0, 3, 1000])
def test_rows_that_are_alike_agree_with_the_closed_form_too(rare):
    """Of features that only a few rows have the hundred that stand for all may all be zero."""
    x, y = torch.zeros(1000, 2), 3 + normal(1000, 1, seed=1)
    x[:rare] = 1
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal(1.0), 1000)
    exact = least_of_a_linear_model(x, y, 1.0, 1.0)  # 1.4; with the bias at its prior 6
    assert trivial_free_energy(model, Split(x, y)) == pytest.approx(exact, rel=0.05)


def test_a_small_network_is_silenced_whatever_is_drawn():
    """Four pairs of draws of eight units may all have small outputs: up to four times the least was found."""
    x = torch.rand(40, 1)
    model = BayesianNetwork(network(1, 8, 1), priors.Normal(), likelihoods.Normal(), 40)
    found = [trivial_free_energy(model, Split(x, x.sin()), seed=seed) for seed in range(12)]
    assert max(found) < 1.2 * min(found)  # a standard deviation of 0.011, relative to the mean


class _Tokens(nn.Module):
    """Its second column of floating-point numbers names a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(3, 2), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([x[:, :1], self.table(x[:, 1].long())], 1))


@pytest.mark.parametrize("rare", [0, 1])
def test_inputs_that_stand_for_something_are_not_made_up(rare):
    x, y = torch.zeros(1000, 2), 3 + normal(1000, 1, seed=1)
    x[:rare] = 2
    model = BayesianNetwork(_Tokens(), priors.Normal(), likelihoods.Normal(1.0), 1000)
    assert (trivial_free_energy(model, Split(x, y)) is None) == (rare == 0)


def test_of_whole_numbers_that_are_alike_nothing_can_be_seen():
    network = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(2, 1))
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(1.0), 30)
    y = normal(30, 1, seed=1)
    assert trivial_free_energy(model, Split(torch.ones(30, 1, dtype=torch.long), y)) is None
    assert trivial_free_energy(model, Split(torch.arange(30)[:, None] % 4, y)) is not None


@pytest.mark.parametrize("N", [40, 1000])
def test_each_estimate_is_near_the_least(N):
    """A fit above it is told that it is worse than ignoring the inputs.

    With eight draws at any N estimates were up to 35 % too low; with few, independent ones to choose q by, up
    to 90 % too high, as some of these functions resemble y by chance.
    """
    x = normal(N, 3, seed=1)
    y = x[:, :1] + 0.3 * normal(N, 1, seed=2)
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(0.3), N)
    least = least_of_a_linear_model(x, y, 1.0, 0.3)
    found = [trivial_free_energy(model, Split(x, y), seed=seed) / least for seed in range(10)]
    assert min(found) > 0.93  # over 15 shifts of eight: 0.97 to 1.07 at 40 rows, 0.98 to 1.01 at 1000
    assert max(found) < 1.15


@pytest.mark.parametrize("df", [1.0, 4.0])
def test_the_nearest_normal_to_a_log_variance_agrees_with_its_closed_form(df):
    r"""Under InverseGamma(a, b) it has variance 1/a about log(b/a) + 1/(2a)."""
    a, b = df / 2, df / 2 * 0.09
    log = dist.TransformedDistribution(dist.InverseGamma(double(a), double(b)), [ExpTransform().inv])
    loc, scale = nearest_normal(log)
    assert loc.item() == pytest.approx(math.log(b / a) + 0.5 / a, abs=1e-3)
    assert scale.item() == pytest.approx(a**-0.5, rel=1e-3)


class OneScale(priors.Hierarchical):
    """One log-normal scale for each tensor."""

    def log_scale(self, name, parameter, module):
        law = dist.LogNormal(parameter.new_tensor(-1.0), parameter.new_tensor(0.7))
        return priors.sample_log(
            f"{name}_u", law, (1,) * parameter.dim(), parameter.new_tensor(0.3), parameter
        )


def test_a_latent_scale_agrees_with_its_closed_form():
    r"""w = e^u z with u ~ N(m, 0.7^2) and z ~ N(0, s^2), so E w^2 = s^2 exp(2m + 2 0.7^2)."""
    N, noise = 100, 0.3
    m = torch.linspace(-6, -1, 500, dtype=torch.float64)[:, None]
    log_s = torch.linspace(-6, 0, 500, dtype=torch.float64)
    kl = (m + 1) ** 2 / (2 * 0.7**2) - log_s + torch.exp(2 * log_s) / 2 - 0.5
    apart = []
    for seed in range(0, 20, 2):
        x, y = normal(N, 1, seed=seed), 0.3 * normal(N, 1, seed=seed + 1)
        square = y.square().sum() + x.square().sum() * torch.exp(2 * log_s + 2 * m + 2 * 0.7**2)
        free_energy = (kl + square / (2 * noise**2)) / N + 0.5 * LN_2_PI + math.log(noise)
        model = BayesianNetwork(nn.Linear(1, 1, bias=False), OneScale(), likelihoods.Normal(noise), N)
        apart.append(trivial_free_energy(model, Split(x, y), seed=seed) - float(free_energy.min()))
    assert -0.01 < fmean(apart) < 0.06  # above it, for scales a factor 2 apart that few draws choose


@dataclass(frozen=True)
class OfAShape(priors.Hierarchical):
    """One wide log-normal scale for each tensor, whose site has this shape."""

    shape: tuple[int, ...] = ()

    def log_scale(self, name, parameter, module):
        law = dist.Normal(parameter.new_zeros(self.shape), 2.0).to_event(len(self.shape))
        return pyro.sample(f"{name}_u", law).reshape((1,) * parameter.dim())


def test_a_bias_moves_with_its_scale_whatever_the_shape_of_its_site():
    """To y about 30, which a bias in a scale of 1 cannot reach."""
    x, y = normal(200, 2), 30 + normal(200, 1, seed=1)
    found = [
        trivial_free_energy(
            BayesianNetwork(nn.Linear(2, 1), OfAShape(shape), likelihoods.Normal(1.0), 200), Split(x, y)
        )
        for shape in ((), (1,))
    ]
    assert found[0] == pytest.approx(found[1], rel=0.05)


class OfGroups(priors.Prior):
    """A scale for each of three groups of inputs, for one draw of them or for several."""

    def __init__(self, several: bool) -> None:
        self.several = several

    def distribution(self, name: str, parameter: torch.Tensor) -> dist.TorchDistribution:
        tau = pyro.sample("tau", dist.Normal(torch.zeros(3), 1.0).to_event(1)).exp()
        groups = torch.tensor([0, 1, 2, 2])
        scale = tau[..., None, groups] if self.several else tau[groups]  # IndexError for two draws
        return priors.elementwise(dist.Normal(0.0, scale), parameter)


@pytest.mark.parametrize("several", [False, True])
def test_a_prior_for_one_draw_at_a_time_costs_as_little_as_for_several(several):
    x, y = normal(600, 4), normal(600, 1, seed=1)
    net = nn.Linear(4, 1, bias=False)
    found = trivial_free_energy(
        BayesianNetwork(net, OfGroups(several), likelihoods.Normal(1.0), 600), Split(x, y)
    )
    constant = float(LN_2_PI + y.square().mean()) / 2
    assert constant < found < constant + 0.1  # over 40 seeds 0.05 above that, sd 0.007


@pytest.mark.parametrize("prior", [priors.ARD(), priors.Horseshoe(), priors.GroupHorseshoe()])
def test_hierarchical_priors_cost_little_more_than_the_labels_entropy(prior):
    """Unless the gate's scale is lowered the horseshoes' long tails raise F, at 2x400 up to 12 times."""
    net = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))
    model = BayesianNetwork(net, prior, likelihoods.Categorical(), 2000)
    x = normal(2000, 3)
    found = trivial_free_energy(model, Split(x, torch.arange(2000) % 3))
    assert math.log(3) - 1e-3 < found < 1.05 * math.log(3)


@pytest.mark.parametrize("prior", [priors.Horseshoe(), priors.GroupHorseshoe()])
def test_every_factor_of_a_bias_is_narrowed_with_the_others(prior):
    """One by one none gains while the others are wide: the bound was 1.7 to 56, and hung on the seed."""
    net = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 1))
    model = BayesianNetwork(net, prior, likelihoods.Normal(1.0), 200)
    x, y = normal(200, 1), 5 + normal(200, 1, seed=1)
    constant = float(LN_2_PI + y.var(correction=0)) / 2  # the least NLL
    # over six seeds 0.14 above that, sd 0.005
    assert constant < trivial_free_energy(model, Split(x, y)) < constant + 0.3


@pytest.mark.parametrize(("width", "spikes"), [(400, 8.860), (1200, 35.148)])
def test_the_papers_prior_on_mnists_numbers(width, spikes):
    """All weights in the spike and NLL ln 10 is one choice; at 2x1200 the slab, a little nearer, saves more
    than a narrowed last layer costs."""
    net = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    model = BayesianNetwork(net, priors.ScaleMixture(), likelihoods.Categorical(), 50_000)
    x = torch.rand(500, 784, generator=torch.Generator().manual_seed(0)) * 0.4
    found = trivial_free_energy(model, Split(x, torch.arange(500) % 10))
    mixture, zero = PRIORS["mixture"], double(0.0)
    slab, spike = (
        float(kl_to_prior(mixture, zero, scale)) * model.num_weights / 50_000 + math.log(10)
        for scale in nearest_scales(mixture, zero)
    )
    assert spike == pytest.approx(spikes, abs=0.01)
    assert slab < found < spike + 0.06  # 0.007 below it on average, sd 0.01 over 30 seeds


def test_a_gaussian_prior_costs_little_more_than_the_labels_entropy():
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    model = BayesianNetwork(net, priors.Normal(sigma=0.1), likelihoods.Categorical(), 50_000)
    x = torch.rand(500, 784, generator=torch.Generator().manual_seed(0)) * 0.4
    found = trivial_free_energy(model, Split(x, torch.arange(500) % 10))
    assert math.log(10) < found < 2.6


def test_the_biases_follow_the_class_frequencies_of_all_the_data_sorted_as_they_may_be():
    y = (torch.arange(20_000) < 1_000).long()  # far more than the rows of x that are looked at
    entropy = -0.05 * math.log(0.05) - 0.95 * math.log(0.95)
    model = BayesianNetwork(nn.Linear(2, 2), priors.Normal(), likelihoods.Categorical(), 20_000)
    assert trivial_free_energy(model, Split(normal(20_000, 2), y)) == pytest.approx(entropy, abs=0.02)


@pytest.mark.parametrize("likelihood", [likelihoods.Normal(9.0, learn_scale=True), likelihoods.Normal(9.0)])
def test_point_estimates_are_those_of_the_best_constant(likelihood):
    """A deterministic last layer and a learned noise cost nothing: F is the best constant's NLL."""
    x, y = normal(80, 3), 3 + 0.7 * normal(80, 1, seed=1)
    prior = priors.PerParameter(default=priors.Normal(), where={"2.*": priors.Deterministic()})
    model = BayesianNetwork(network(width=1), prior, likelihood, 80)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    variance = float(y.var(correction=0))
    noise = variance if any(True for _ in likelihood.parameters()) else 81.0
    exact = 0.5 * (LN_2_PI + math.log(noise) + variance / noise)
    assert trivial_free_energy(model, Split(x, y)) == pytest.approx(exact, abs=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("mean", "sd", "sigma"), [(5, 0.1, 10.0), (200, 10, 100.0)])
@pytest.mark.parametrize("kind", ["Normal", "StudentT", "NormalMixture", "HeteroscedasticNormal"])
def test_targets_far_from_their_prior_have_the_noise_of_the_best_constant(kind, mean, sd, sigma):
    """On its way to them the search meets noise of no scale, where the likelihood is infinite."""
    z = normal(300, 1)
    y = mean + sd * (z - z.mean()) / z.std(correction=0)
    likelihood = getattr(likelihoods, kind)()
    net = nn.Linear(2, likelihood.width(1))
    model = BayesianNetwork(net, priors.Normal(sigma=sigma), likelihood, 300)
    exact = 0.5 * (LN_2_PI + 1) + math.log(sd)  # without the KL of few weights
    assert exact < trivial_free_energy(model, Split(normal(300, 2, seed=1), y)) < exact + 0.35


def test_it_leaves_nothing_changed_and_gives_the_same_again():
    data = classes(60)
    model = BayesianNetwork(network(), priors.Laplace(), likelihoods.Categorical(), 60)
    with nothing_changes():
        found = trivial_free_energy(model, data.train)
    assert found == trivial_free_energy(model, data.train)
    stream = TensorDataset(data.train.x, data.train.y)
    streamed = trivial_free_energy(model, stream)
    assert streamed == pytest.approx(found, abs=0.1)
    assert streamed == trivial_free_energy(model, TorchRows(stream))


class Nested(priors.Hierarchical):
    """A scale whose prior depends on another."""

    def log_scale(self, name, parameter, module):
        above = pyro.sample(f"{name}_above", dist.Normal(parameter.new_zeros(()), 1.0))
        return pyro.sample(f"{name}_below", dist.Normal(above, 1.0))


class Shifted(OneScale):
    """About another centre than 0."""

    def for_module(self, name, parameter, module):
        return elementwise(dist.Normal(1.0, self.log_scale(name, parameter, module).exp()), parameter)


@dataclass(frozen=True)
class OfMany(Prior):
    """A prior for a whole tensor at once."""

    def distribution(self, name, parameter):
        count = parameter.numel()
        whole = dist.MultivariateNormal(torch.zeros(count), torch.eye(count))
        return whole if parameter.dim() == 1 else elementwise(dist.Normal(0.0, 1.0), parameter)


# a spike and a slab, of which the nearest normal is not alone
TWO_WIDTHS = dist.TransformedDistribution(
    ScaleMixtureNormal(*map(torch.tensor, (0.5, 1.0, 0.001))), [AffineTransform(0.0, 1.0)]
)


@pytest.mark.parametrize(
    ("prior", "likelihood"),
    [
        (Hierarchical(), likelihoods.Normal(0.1)),
        (Nested(), likelihoods.Normal(0.1)),
        (Shifted(), likelihoods.Normal(0.1)),
        (OfMany(), likelihoods.Normal(0.1)),
        (priors.Deterministic(), likelihoods.Normal(0.1)),
        (priors.IID(dist.HalfNormal(1.0)), likelihoods.Normal(0.1)),
        (priors.Normal(), likelihoods.Normal(scale=dist.HalfNormal(1.0))),
        (priors.IID(TWO_WIDTHS), likelihoods.Normal(0.1)),
    ],
    ids=[
        "a PyroSample",
        "nested",
        "about 1",
        "not a product",
        "no weights",
        "half line",
        "latent noise",
        "transformed",
    ],
)
def test_it_is_not_computed_for_other_models(prior, likelihood):
    model = BayesianNetwork(network(width=1), prior, likelihood, 20)
    assert trivial_free_energy(model, Split(normal(20, 3), normal(20, 1))) is None


def test_it_is_not_computed_behind_frozen_weights():
    model = partly_bayesian(network(), "2.*", likelihoods.Categorical(), N=20)
    assert trivial_free_energy(model, Split(normal(20, 3), torch.arange(20) % 3)) is None


def test_it_is_not_computed_in_half_precision():
    model = BayesianNetwork(network(width=1).half(), priors.Normal(), likelihoods.Normal(0.1), 20)
    assert trivial_free_energy(model, Split(normal(20, 3).half(), normal(20, 1).half())) is None


def test_it_is_not_computed_where_the_input_goes_around_the_weights():
    data = classes(30)
    model = BayesianNetwork(Residual(nn.Linear(3, 3)), priors.Normal(), likelihoods.Categorical(), 30)
    assert trivial_free_energy(model, data.train) is None


def test_words_say_what_to_do_only_above_it():
    assert compared(0.4, 2.41) == "free energy 0.4 nats per datum (ignoring the inputs: 2.41)"
    assert compared(15.9, None) == "free energy 15.9 nats per datum"
    above, advice = compared(15.9, 8.86).split("\n")
    assert above == "free energy 15.9 nats per datum (ignoring the inputs: 8.86)"
    assert "worse than ignoring the inputs" in advice


@pytest.mark.parametrize(
    ("prior", "advice"),
    [
        (
            priors.Normal(),
            "try a prior of the right scale (FanInNormal, or learned: priors.Learned), a faster rho",
        ),
        (
            priors.PerParameter(default=priors.FanInNormal()),
            "try a prior of the right scale (learned: priors.Learned), a faster rho",
        ),
        (priors.Learned(priors.Normal()), "try a prior of the right scale (FanInNormal), a faster rho"),
        (priors.Learned(priors.FanInNormal()), "try a faster rho"),
    ],
)
def test_a_prior_in_use_is_not_advised(prior: Prior, advice: str):
    assert advice in compared(15.9, 8.86, prior)


@pytest.mark.parametrize("sigma", [1e-9, 1e-3, 1.0, 1e7])
def test_the_scale_of_a_prior_is_found_wherever_it_lies(sigma: float) -> None:
    """The nearest to a normal is itself, at no cost; to a t with infinite variance, one near it."""
    normal, heavy = (
        dist.Normal(double(0.0), double(sigma)),
        dist.StudentT(double(2.0), double(0.0), double(sigma)),
    )
    for prior, most in ((normal, 1e-9), (heavy, 0.2)):
        for scale in nearest_scales(prior, double(0.0)):
            assert float(kl_to_prior(prior, double(0.0), scale)) < most
            assert 0.3 < float(scale) / sigma < 3


@pytest.mark.parametrize(
    ("pi", "wide", "narrow"), [(0.25, 100.0, 1e-6), (0.5, 1000.0, 1e-5), (0.5, 1.0, 1e-9)]
)
def test_a_spike_is_found_however_narrow_it_is(pi: float, wide: float, narrow: float) -> None:
    """Beside a slab as wide as may be: each component costs what it is worth."""
    prior = ScaleMixtureNormal(double(pi), double(wide), double(narrow))
    one, other = nearest_scales(prior, double(0.0))
    assert float(kl_to_prior(prior, double(0.0), one)) == pytest.approx(-math.log(pi), abs=0.01)
    assert float(kl_to_prior(prior, double(0.0), other)) == pytest.approx(-math.log(1 - pi), abs=0.01)
