"""The mean-field guide: where it starts, what it samples, and the optimum it must find when that is known."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor, nn
from torch.distributions import SigmoidTransform

from engine_fakes import classes, classifier, network, normal, values
from pyrobbb import initializers as initial
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.inference import MAP, Laplace
from pyrobbb.inference.point import refuse_bounded
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.trainer import Training


def set_up(guide: MeanFieldNormal, *args: Any) -> MeanFieldNormal:
    with isolated(0):
        guide(*args)
    return guide


def site(*shape: int) -> dict[str, Any]:
    """A weight site as Pyro hands it to an initialiser."""
    distribution = priors.Normal().distribution("w", torch.zeros(shape, dtype=torch.float64))
    return {
        "name": "w",
        "fn": distribution,
        "value": None,
        "infer": {"init": torch.full(shape, 3.0).double()},
    }


def test_it_starts_from_the_networks_own_values() -> None:
    data = classes()
    net = network()
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Categorical(), N=12)
    guide = set_up(MeanFieldNormal(model), data.train.x, data.train.y)
    loc, scale = guide.loc_and_scale()
    for name, parameter in net.named_parameters():
        assert torch.equal(loc[name], parameter)
        torch.testing.assert_close(scale[name], torch.full_like(parameter, 0.006715348).detach())
    assert [(name, tuple(p.shape)) for name, p in guide.named_parameters()] == [
        ("loc", (31,)),
        ("rho", (31,)),
    ]


@pytest.mark.parametrize(
    ("rho", "sigma"),
    [
        (-8, 0.000335),
        (-7, 0.000911),
        (-6, 0.002476),
        (-5, 0.006715),
        (-4, 0.018150),
        (-3, 0.048587),
        (-2, 0.126928),
    ],
)
def test_sigma_is_softplus_of_rho(rho: float, sigma: float) -> None:
    data = classes()
    model, guide = classifier(data, init_rho=rho)
    _, scale = set_up(guide, data.train.x).loc_and_scale()
    assert all(float(s.max()) == pytest.approx(sigma, abs=5e-7) for s in scale.values())
    assert set(scale) == set(model.sites)


def test_draws_are_normal_at_the_weights_own_sites() -> None:
    data = classes()
    model, guide = classifier(data, init_rho=0.0)
    set_up(guide, data.train.x)
    loc, scale = guide.loc_and_scale()
    with isolated(1):
        trace = poutine.trace(guide).get_trace()
        draws = torch.stack(
            [torch.cat([w.flatten() for w in guide().values()]) for _ in range(2000)]
        ).detach()
    assert trace.stochastic_nodes == list(model.sites)
    for name in model.sites:
        node = trace.nodes[name]
        assert type(node["fn"].base_dist).__name__ == "Normal"
        assert node["fn"].event_shape == node["value"].shape == loc[name].shape
        assert node["value"].requires_grad
    mean, sigma = (torch.cat([part[name].flatten() for name in model.sites]) for part in (loc, scale))
    z = (draws - mean) / sigma
    assert float(z.mean(0).abs().max()) < 5 / 2000**0.5
    assert float((z.var(0) - 1).abs().max()) < 5 * (2 / 2000) ** 0.5


def test_calling_the_guide_first_without_y_makes_y_no_latent() -> None:
    data = values()
    model = BayesianNetwork(nn.Linear(3, 2), priors.Normal(), likelihoods.Normal(0.1), N=12)
    for guide in (MeanFieldNormal(model), AutoNormal(model), AutoDelta(model)):
        with isolated(0):
            guide(data.train.x)
            sites = poutine.trace(guide).get_trace(data.train.x, data.train.y).stochastic_nodes
        assert "y" not in sites
        assert set(model.sites) <= set(sites)
        assert Training(model, guide, data, epochs=1, batch_size=6, device="cpu").run().rows[0].epoch == 1


def test_the_trial_run_is_not_seen_from_outside() -> None:
    data = classes()
    model, guide = classifier(data)
    with isolated(0):
        trace = poutine.trace(guide).get_trace(data.train.x, data.train.y)
    assert trace.stochastic_nodes == list(model.sites)


def test_the_models_parameters_are_not_the_guides() -> None:
    data = values()
    prior = priors.PerParameter(default=priors.Normal(), where={"bias": priors.Deterministic()})
    model = BayesianNetwork(nn.Linear(3, 2), prior, likelihoods.Normal(learn_scale=True), N=12)
    guide = set_up(MeanFieldNormal(model), data.train.x, data.train.y)
    assert [name for name, _ in guide.named_parameters()] == ["loc", "rho"]
    assert set(guide.state_dict()) == {"loc", "rho"}
    assert set(guide.shapes) == {"weight"}


def test_precision_follows_the_model() -> None:
    model, guide = classifier(classes())
    model.double()
    set_up(guide, normal(12, 3, dtype=torch.float64))
    assert guide.loc.dtype == guide.rho.dtype == torch.float64


def test_split_keeps_leading_dimensions() -> None:
    data = classes()
    _, guide = classifier(data)
    set_up(guide, data.train.x)
    flat = normal(5, 2, 31)
    parts = guide.split(flat)
    assert parts["0.weight"].shape == (5, 2, 4, 3)
    assert torch.equal(torch.cat([p.flatten(2) for p in parts.values()], -1), flat)


def test_moments_before_the_first_call() -> None:
    _, guide = classifier(classes())
    with pytest.raises(ValueError, match="no parameters yet: fit it, or call it once"):
        guide.loc_and_scale()


# Initialisers


@pytest.mark.parametrize(
    ("init", "check"),
    [
        (initial.from_network, lambda w: (w == 3).all()),
        (initial.Constant(-5.0), lambda w: (w == -5).all()),
        (initial.Uniform(-0.5, -0.25), lambda w: -0.5 <= w.min() < -0.49 and -0.26 < w.max() <= -0.25),
        (
            initial.Normal(scale=0.2, loc=1.0),
            lambda w: abs(w.mean() - 1) < 0.02 and abs(w.std() - 0.2) < 0.01,
        ),
        (initial.kaiming, lambda w: abs(w.mean()) < 0.02 and abs(w.std() - (2 / 50) ** 0.5) < 0.01),
    ],
)
def test_initial_values(init: initial.Initial, check: Callable[[Tensor], Any]) -> None:
    with isolated(0):
        value = init(site(40, 50))
    assert value.shape == (40, 50)
    assert value.dtype == torch.float64
    assert check(value)


def test_kaiming_of_biases_and_kernels() -> None:
    with isolated(0):
        assert torch.equal(initial.kaiming({**site(5), "name": "0.bias"}), torch.zeros(5).double())
        assert torch.equal(initial.kaiming({**site(5), "name": "1.weight"}), torch.full((5,), 3.0).double())
        kernel = initial.kaiming(site(50, 3, 5, 5))
    assert float(kernel.std()) == pytest.approx((2 / 75) ** 0.5, rel=0.05)


def test_kaiming_asks_the_layer_for_its_fan_in() -> None:
    """1 for an embedding, (channels / groups) kernel / stride for a transposed convolution."""
    net = nn.Sequential(nn.Embedding(400, 3), nn.ConvTranspose1d(3, 200, 4, stride=2))
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1))
    guide = MeanFieldNormal(model, init_loc=initial.kaiming)
    with isolated(0):
        guide()
    loc, _ = guide.loc_and_scale()
    for name, fan_in in (("0.weight", 1), ("1.weight", 6)):
        assert float(loc[name].std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)


def test_the_networks_values_are_copied() -> None:
    here = site(3)
    initial.from_network(here).zero_()
    assert torch.equal(here["infer"]["init"], torch.full((3,), 3.0).double())


def test_a_normal_start_takes_its_arguments_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        initial.Normal(0.0, 0.1)  # type: ignore[misc]


def test_initialisers_serve_pyros_guides_too() -> None:
    data = classes()
    net = network()
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Categorical(), N=12)
    for make in (
        partial(AutoNormal, init_loc_fn=initial.from_network),
        partial(AutoDelta, init_loc_fn=initial.from_network),
    ):
        guide = make(model)
        with isolated(0):
            guide(data.train.x, data.train.y)
            median = guide.median()
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(median[name], parameter)
    guide = AutoNormal(model, init_loc_fn=initial.kaiming)
    with isolated(0):
        guide(data.train.x, data.train.y)
        assert torch.equal(guide.median()["0.bias"], torch.zeros(4))


def test_a_site_without_an_initial_value_starts_at_its_priors_median() -> None:
    with isolated(0):
        distribution = dist.Normal(torch.full((3,), 2.0), 1e-6).to_event(1)
        start = initial.from_network(
            {
                "name": "w",
                "infer": {},
                "value": distribution.sample(),
                "fn": distribution,
                "is_observed": False,
            }
        )
    assert start.tolist() == pytest.approx([2.0, 2.0, 2.0], abs=1e-4)


@pytest.mark.parametrize(
    ("support", "starts", "stays"),
    [
        (dist.Uniform(0.0, 1.0), [0.0, 1.0, -3.0, 0.25], [False, False, False, True]),
        (dist.TransformedDistribution(dist.Normal(0.0, 1.0), SigmoidTransform()), [0.0, 0.9], [False, True]),
        (dist.Normal(0.0, 1.0), [0.0, 50.0], [True, True]),
        (dist.HalfNormal(1.0), [1e-9, 3.0], [True, True]),
    ],
)
def test_no_weight_starts_where_a_sigmoid_is_flat(
    support: Any, starts: list[float], stays: list[bool]
) -> None:
    """At an end of an interval it would never move: a bias of 0 under a uniform prior on (0, 1)."""
    net = nn.Linear(1, len(starts), bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(starts)[:, None])
    model = BayesianNetwork(net, priors.IID(support), likelihoods.Normal(), N=3)
    guides = (AutoNormal(model, init_loc_fn=initial.from_network), MAP().guide(model, None))
    for guide in guides:
        with isolated(0):
            guide(torch.ones(3, 1), torch.ones(3, len(starts)))
            value = (guide.median() if isinstance(guide, AutoNormal) else guide())["weight"].flatten()
        for found, start, same in zip(value.tolist(), starts, stays, strict=True):
            assert found == pytest.approx(start, rel=1e-4, abs=1e-6) if same else 0.009 < found < 0.991


@pytest.mark.parametrize("make", [MeanFieldNormal, AutoNormal])
def test_a_guide_sets_itself_up_without_data(make: Callable[..., nn.Module]) -> None:
    model, _ = classifier(classes())
    guide = make(model)
    with isolated(0):
        guide()
        sites = poutine.trace(model).get_trace().stochastic_nodes
    assert sites == list(model.sites)
    assert sum(p.numel() for p in guide.parameters()) == 2 * model.num_weights


def test_a_prior_elsewhere_is_named_by_the_support_of_one_weight() -> None:
    """Its bounds may be tensors of the weights' shape, which filled a line for each."""
    prior = priors.IID(dist.Pareto(1.0, 2.0))
    model = BayesianNetwork(nn.Linear(2, 30), prior, likelihoods.Normal())
    with pytest.raises(ValueError, match=r"'weight' lives on GreaterThan[^\n]{1,100}, but a normal"):
        MeanFieldNormal(model)()
    with pytest.raises(ValueError, match=r"'weight' lives on GreaterThan[^\n]{1,100}; use svi"):
        refuse_bounded(Laplace(), model, MAP().guide(model, None))


# Conjugate Bayesian linear regression


def conjugate(D: int = 3, N: int = 20, sigma_y: float = 0.5, sigma_w: float = 0.8) -> dict[str, Any]:
    """Y = X w + noise under w ~ N(0, sigma_w^2): the exact posterior, its best mean field, log evidence."""
    mixing = torch.eye(D, dtype=torch.float64) + 0.4  # correlated inputs: the posterior is not diagonal
    rows = torch.arange(1, N + 1, dtype=torch.float64)
    x = torch.sin(torch.outer(rows, torch.arange(1, D + 1))) @ mixing
    y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + sigma_y * torch.cos(5 * rows)
    precision = x.T @ x / sigma_y**2 + torch.eye(D) / sigma_w**2
    covariance = precision.inverse()
    mean = covariance @ (x.T @ y) / sigma_y**2
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(N).double(), sigma_w**2 * x @ x.T + sigma_y**2 * torch.eye(N)
    ).log_prob(y)
    gap = 0.5 * (precision.diagonal().log().sum() - precision.logdet())  # KL[best mean field || posterior]
    net, likelihood = nn.Linear(D, 1, bias=False), likelihoods.Normal(scale=sigma_y)
    model = BayesianNetwork(net, priors.Normal(sigma=sigma_w), likelihood, N).double()
    data = Dataset("conjugate", Split(x, y[:, None]), Spec(N, (D,), 1, "regression"))
    return {
        "data": data, "model": model, "mean": mean, "sd": precision.diagonal() ** -0.5,
        "marginal_sd": covariance.diagonal() ** 0.5, "free_energy": gap - evidence,
    }  # fmt: skip


@pytest.mark.parametrize("B", [20, 5])
def test_the_conjugate_posterior_is_recovered(B: int) -> None:
    """Mean: the posterior's. Variance: 1 / Lambda_jj, the mean field's optimum, not the marginal variance."""
    exact = conjugate()
    guide = MeanFieldNormal(exact["model"], init_rho=-2.0)
    epochs = 500 * B // 20
    history = Training(
        exact["model"], guide, exact["data"], epochs=epochs, batch_size=B, samples=100, vectorize=True,
        optim=partial(torch.optim.Adam, lr=0.05), device="cpu",
        schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs),
    ).run()  # fmt: skip
    loc, scale = (part["weight"][0] for part in guide.loc_and_scale())
    assert ((loc - exact["mean"]).abs() / exact["sd"]).max() < 0.1  # mean 0.02, sd 0.007 over 20 seeds
    torch.testing.assert_close(scale, exact["sd"], rtol=0.06, atol=0)  # mean 0.014, sd 0.006
    assert (exact["sd"] / exact["marginal_sd"]).min() < 0.8  # so the two differ
    last = [row.free_energy * 20 for row in history.rows[-50:]]
    assert sum(last) / len(last) == pytest.approx(float(exact["free_energy"]), abs=0.2)  # mean 0.02, sd 0.015


def test_a_point_guide_finds_the_mode() -> None:
    exact = conjugate()
    guide = AutoDelta(exact["model"])
    Training(
        exact["model"], guide, exact["data"], epochs=200, batch_size=20, device="cpu",
        optim=partial(torch.optim.Adam, lr=0.1),
        schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=200),
    ).run()  # fmt: skip
    with isolated():
        mode = guide.median()["weight"][0].detach()
    torch.testing.assert_close(mode, exact["mean"], rtol=1e-3, atol=1e-3)


def test_two_guides_do_not_share_parameters_through_pyros_store() -> None:
    """Called by hand, outside `fit`, Pyro's store would hand the second guide the first one's values."""
    data = classes()
    model = BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical(), N=12)
    with pyro.get_param_store().scope():
        first = MeanFieldNormal(model)
        first(data.train.x, data.train.y)
        with torch.no_grad():
            first.loc += 1
        first(data.train.x)
        second = MeanFieldNormal(model)
        second(data.train.x, data.train.y)
        second(data.train.x)
        assert torch.equal(second.loc + 1, first.loc)
