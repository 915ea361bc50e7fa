"""BayesianNetwork: its sites, its scaling, what it computes, and what it leaves alone."""

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive
from torch import Tensor, nn

from architectures import Attention, Chain, last
from engine_fakes import classes, network, normal, values
from pyrobbb import Posterior, Training, fit, likelihoods, partly_bayesian, priors
from pyrobbb._support import checkpoint
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, network_with
from pyrobbb.data import from_arrays
from pyrobbb.draws import stored_leaf
from pyrobbb.inference import SVI, Laplace
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.mean_field import MeanFieldNormal

PRIOR, GAUSS = priors.Normal(), likelihoods.Normal(scale=0.5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def traced(model: BayesianNetwork, *args: Any) -> Any:
    with isolated(0):
        trace = poutine.trace(model).get_trace(*args)
        trace.compute_log_prob()
    return trace


def shifted(net: nn.Module, by: float) -> nn.Module:
    """A copy with every (distinct) parameter moved."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(by)
    return net


def test_one_site_for_each_named_parameter() -> None:
    net = network()
    model = BayesianNetwork(net, PRIOR, likelihoods.Categorical(), N=12)
    data = classes()
    trace = traced(model, data.train.x, data.train.y)
    assert trace.observation_nodes == ["y"]
    latent = [site for site in trace.stochastic_nodes if site != "data"]
    assert latent == list(model.sites) == [name for name, _ in net.named_parameters()]
    for name, parameter in net.named_parameters():
        node = trace.nodes[name]
        assert node["value"].shape == parameter.shape
        assert node["fn"].batch_shape == ()
        torch.testing.assert_close(node["infer"]["init"], parameter.detach())
    assert model.num_weights == sum(p.numel() for p in net.parameters())
    assert list(model.parameters()) == []


def test_the_joint_density_is_prior_plus_likelihood() -> None:
    data = values()
    model = BayesianNetwork(network(width=2), priors.Laplace(scale=0.5), GAUSS, N=12)
    trace = traced(model, data.train.x, data.train.y)
    net = network(width=2)
    weights = {name: trace.nodes[name]["value"] for name in model.sites}
    net.load_state_dict(weights)
    prior = sum(torch.distributions.Laplace(0.0, 0.5).log_prob(w).sum() for w in weights.values())
    with torch.no_grad():
        likelihood = torch.distributions.Normal(net(data.train.x), 0.5).log_prob(data.train.y).sum()
    torch.testing.assert_close(trace.log_prob_sum(), prior + likelihood)


@pytest.mark.parametrize("B", [12, 5, 1])
def test_the_plate_counts_a_minibatch_n_over_b_times(B: int) -> None:
    data = classes(12)
    model = BayesianNetwork(network(), PRIOR, likelihoods.Categorical(), N=12)
    node = traced(model, data.train.x[:B], data.train.y[:B]).nodes["y"]
    assert node["scale"] == pytest.approx(12 / B)
    assert node["log_prob"].shape == (B,)
    assert float(node["log_prob_sum"]) == pytest.approx(
        12 / B * float(node["unscaled_log_prob"].sum()), rel=1e-6
    )
    for name in model.sites:
        assert traced(model, data.train.x[:B], data.train.y[:B]).nodes[name]["scale"] == 1.0


def test_y_from_a_handler_counts_n_over_b_times_too() -> None:
    data = classes(12).train
    model = BayesianNetwork(network(), PRIOR, likelihoods.Categorical(), N=12)
    for B, scale in ((3, 4.0), (12, 1.0)):
        given = poutine.condition(model, data={"y": data.y[:B]})
        assert poutine.trace(given).get_trace(data.x[:B]).nodes["y"]["scale"] == scale


def test_without_y_the_model_predicts_and_y_is_no_latent() -> None:
    data = values(40)
    model = BayesianNetwork(nn.Linear(3, 2), PRIOR, GAUSS, N=40)
    trace = traced(model, data.train.x)
    assert trace.nodes["y"]["is_observed"]
    assert trace.nodes["y"]["scale"] == 1.0
    weights = {name: trace.nodes[name]["value"] for name in model.sites}
    residual = trace.nodes["_RETURN"]["value"] - model.apply_network(weights, data.train.x)
    assert residual.shape == (40, 2)
    assert abs(float(residual.std()) - 0.5) < 5 * 0.5 / 160**0.5  # the scale 0.5, 80 draws
    longer = model(normal(100, 3))  # more rows than N are fine when nothing is learnt from them
    assert longer.shape == (100, 2)


def test_pyros_predictive() -> None:
    data = values()
    model = BayesianNetwork(nn.Linear(3, 2), PRIOR, GAUSS, N=12)
    with isolated(0):
        drawn = Predictive(model, num_samples=7, return_sites=("y", "weight"))(data.train.x)
    assert drawn["y"].shape == (7, 12, 2)
    assert drawn["weight"].shape[0] == 7
    assert drawn["y"].std(0).min() > 0


def test_nuts_runs() -> None:
    data = values()
    model = BayesianNetwork(nn.Linear(3, 2), priors.ScaleMixture(), GAUSS, N=12)
    with isolated(0):
        mcmc = MCMC(NUTS(model, max_tree_depth=4), num_samples=6, warmup_steps=4, disable_progbar=True)
        mcmc.run(data.train.x, data.train.y)
        samples = mcmc.get_samples()
    assert {name: tuple(value.shape) for name, value in samples.items()} == {
        "weight": (6, 2, 3),
        "bias": (6, 2),
    }
    assert samples["weight"].isfinite().all()
    assert samples["weight"].std() > 0


def test_the_users_network_is_untouched() -> None:
    net = network()
    before = {name: (id(p), p.detach().clone()) for name, p in net.named_parameters()}
    data = classes()
    model = BayesianNetwork(net, PRIOR, likelihoods.Categorical(), N=12)
    traced(model, data.train.x, data.train.y)
    model.double()
    assert {name: id(p) for name, p in net.named_parameters()} == {name: i for name, (i, _) in before.items()}
    for name, parameter in net.named_parameters():
        assert isinstance(parameter, nn.Parameter)
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name][1])
    assert net(data.train.x).dtype == torch.float32


def test_the_initial_values_do_not_follow_the_users_network() -> None:
    net = network()
    model = BayesianNetwork(net, PRIOR, likelihoods.Categorical(), N=12)
    before = model.initial()["0.weight"].clone()
    with torch.no_grad():
        net[0].weight.zero_()
    assert torch.equal(model.initial()["0.weight"], before)


def test_tied_weights_are_one_site() -> None:
    net, x = Tied(), normal(4, 3)
    model = BayesianNetwork(net, PRIOR, GAUSS, N=4)
    assert model.sites == ("first.weight", "first.bias", "second.bias")
    assert model.num_weights == 9 + 3 + 3
    moved = shifted(net, 0.3)
    weights = {name: p.detach() for name, p in moved.named_parameters()}
    torch.testing.assert_close(model.apply_network(weights, x), moved(x).detach())
    stacked = {name: torch.stack([p, p + 1]) for name, p in weights.items()}
    torch.testing.assert_close(model.apply_network(stacked, x)[0], moved(x).detach())


def test_tied_weights_stay_tied_wherever_the_model_goes() -> None:
    model = BayesianNetwork(Tied(), PRIOR, GAUSS, N=4).double()
    buffers = dict(model.network.named_buffers(remove_duplicate=False))
    assert buffers["first.weight"] is buffers["second.weight"]
    x, weights = normal(4, 3, dtype=torch.float64), {k: 2 * v for k, v in model.initial().items()}
    w = weights["first.weight"]
    hidden = (x @ w.T + weights["first.bias"]).tanh()
    torch.testing.assert_close(model.apply_network(weights, x), hidden @ w.T + weights["second.bias"])
    plain = network_with(model, weights)
    assert plain.get_parameter("first.weight") is plain.get_parameter("second.weight")
    torch.testing.assert_close(plain(x), model.apply_network(weights, x))


def test_two_models_share_no_parameter() -> None:
    ours = [
        BayesianNetwork(network(width=1), PRIOR, likelihoods.Normal(scale=0.5, learn_scale=True), 12)
        for _ in range(2)
    ]
    data = values(outputs=1)
    with isolated(0):
        for model in ours:
            model(data.train.x, data.train.y)
        parameters = [list(model.parameters()) for model in ours]
    assert parameters[0][0] is not parameters[1][0]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.ones(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.y


def test_a_parameter_with_the_name_of_our_site_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a parameter may not be named 'y': the model has a site of that name"
    ):
        BayesianNetwork(Named(), PRIOR, GAUSS, N=4)


def test_a_parameter_with_the_name_of_a_latent_is_refused() -> None:
    net = nn.Linear(2, 1)
    net.likelihood = nn.Module()
    net.likelihood.scale = nn.Parameter(torch.ones(1))
    BayesianNetwork(net, PRIOR, GAUSS)
    with pytest.raises(ValueError, match=r"a parameter may not be named 'likelihood.scale': a latent of the"):
        BayesianNetwork(net, PRIOR, likelihoods.Normal(dist.HalfNormal(1.0)))


def test_a_module_at_two_places_is_one_module() -> None:
    layer = nn.Linear(3, 3)
    model = BayesianNetwork(nn.Sequential(layer, nn.Tanh(), layer), PRIOR, GAUSS, 12)
    before = {name: value.clone() for name, value in model.initial().items()}
    weights = {name: torch.randn(4, *value.shape) for name, value in before.items()}
    x = normal(5, 3)
    found = model.apply_network(weights, x)
    for i in range(4):
        w, b = weights["0.weight"][i], weights["0.bias"][i]
        expected = nn.functional.linear(nn.functional.linear(x, w, b).tanh(), w, b)
        torch.testing.assert_close(found[i], expected)
    assert all(torch.equal(value, before[name]) for name, value in model.initial().items())
    guide = MeanFieldNormal(model)
    guide()
    assert Posterior([(model, guide)]).predict(x, draws=3).mean.shape == (5, 3)


def test_tied_weights_left_deterministic_are_one_parameter() -> None:
    prior = priors.PerParameter(default=PRIOR, where={"first.weight": priors.Deterministic()})
    model = BayesianNetwork(Tied(), prior, GAUSS, N=4)
    assert model.sites == ("first.bias", "second.bias")
    assert [name for name, _ in model.named_parameters()] == ["network.first.weight"]


def test_frozen_parameters_are_no_sites_and_do_not_change(tmp_path: Path) -> None:
    net = network(width=2)
    net[0].requires_grad_(False)
    model = BayesianNetwork(net, PRIOR, GAUSS, N=12)
    assert model.sites == ("2.weight", "2.bias")
    assert list(model.named_parameters()) == []
    guide, data = MeanFieldNormal(model), values(12)
    Training(model, guide, data, epochs=2, batch_size=5, device="cpu", folder=tmp_path).run()
    assert torch.equal(model.network[0].weight, net[0].weight)
    assert "network.0.weight" in checkpoint.load(tmp_path / "chain-0.pt")["model"]
    loc, _ = guide.loc_and_scale()
    assert not torch.equal(loc["2.weight"], net[2].weight)
    function = Posterior([(model, guide)]).function()
    assert torch.equal(function[0].weight, net[0].weight)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_acts_in_training_alone(training: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)).train(training)
    model = BayesianNetwork(net, PRIOR, GAUSS, N=12)
    data, guide = values(12), MeanFieldNormal(model, init_rho=-20.0)
    trained = Training(model, guide, data, epochs=1, batch_size=5, device="cpu")
    one, two = (model.apply_network(model.initial(), data.train.x) for _ in range(2))
    assert torch.equal(one, two) == (not training)
    trained.run()
    prediction = Posterior([(model, guide)]).predict(data.train.x, mean_weights=True)
    loc, _ = guide.loc_and_scale()
    whole = (data.train.x @ loc["0.weight"].T + loc["0.bias"]) @ loc["2.weight"].T + loc["2.bias"]
    torch.testing.assert_close(prediction.mean, whole)
    assert model.network[1].training == training


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch, of weight norm
@pytest.mark.parametrize("draws", [(), (2,), (2, 3)])
@pytest.mark.parametrize(
    ("net", "features"),
    [
        (network(width=2), (3,)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4)),
        (nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), (3,)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (3,)),
        # torch cannot batch an LSTM over weights
        (Chain(nn.LSTM(3, 4, batch_first=True), last, nn.Linear(4, 2)), (5, 3)),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).eval(), (3,)),
        (Attention().eval(), (5, 4)),
        (
            nn.Sequential(
                nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(20, 2)
            ).eval(),
            (5, 4),
        ),
    ],
    ids=[
        "perceptron",
        "convolution",
        "layer norm",
        "weight norm",
        "lstm",
        "batch norm, eval",
        "attention, eval",
        "encoder, eval",
    ],
)
def test_any_network_with_any_draws(
    net: nn.Module, features: tuple[int, ...], draws: tuple[int, ...]
) -> None:
    model = BayesianNetwork(net, PRIOR, GAUSS, N=5)
    x = normal(5, *features)
    weights = {
        name: w + 0.1 * normal(*draws, *w.shape, seed=i)
        for i, (name, w) in enumerate(model.initial().items())
    }
    output = model.apply_network(weights, x)
    assert output.shape == (*draws, 5, 2)
    for index in itertools.product(*map(range, draws)):
        one = copy.deepcopy(net)
        with torch.no_grad():
            for name, parameter in one.named_parameters():
                parameter.copy_(weights[name][index])
            torch.testing.assert_close(output[index], one(x), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch, of attention
def test_attention_in_evaluation_has_gradients_for_many_draws_too() -> None:
    """Torch's kernel for evaluation has none."""
    net, x = Attention().eval(), normal(5, 5, 4)
    model = BayesianNetwork(net, PRIOR, GAUSS, N=5)
    weights = {name: torch.stack([w, 1.1 * w]).requires_grad_() for name, w in model.initial().items()}
    of_both = torch.autograd.grad(model.apply_network(weights, x).square().sum(), list(weights.values()))
    for draw in range(2):
        output = model.apply_network({name: w[draw] for name, w in weights.items()}, x)
        of_one = torch.autograd.grad(output.square().sum(), list(weights.values()))
        for both, one in zip(of_both, of_one, strict=True):
            torch.testing.assert_close(both[draw], one[draw], rtol=1e-4, atol=1e-5)


class Undifferentiable(torch.autograd.Function):
    """cuDNN's recurrent layers in evaluation mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")


class OnCudnn(nn.GRU):
    used: ClassVar[list[bool]] = []

    def forward(self, *args: Any) -> Any:
        output, state = super().forward(*args)
        self.used.append(torch.backends.cudnn.enabled)
        fails = torch.backends.cudnn.enabled and not self.training
        return (Undifferentiable.apply(output) if fails else output), state


@pytest.mark.parametrize("way", ["svi", "laplace", "partly"])
def test_recurrent_layers_have_gradients_in_evaluation_mode_on_cuda_too(way: str) -> None:
    net = Chain(OnCudnn(3, 2, batch_first=True), last, nn.Linear(2, 2))
    data = from_arrays(normal(12, 4, 3), normal(12, 2, seed=1), task="regression")
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(1.0))
    inference, guide = SVI(), MeanFieldNormal
    if way == "laplace":
        inference, guide = Laplace(structure="full", linearised=False), None
    elif way == "partly":
        model = partly_bayesian(net, "*.0.*", likelihoods.Normal(1.0))
    posterior = fit(model, guide, data, epochs=1, fast="eager", inference=inference, progress=None)
    OnCudnn.used.clear()
    posterior.predict(data.train.x, draws=2)
    assert {*OnCudnn.used} == {True}  # cuDNN, where no gradient is asked for
    assert torch.backends.cudnn.enabled


class BesideAThread(nn.Linear):
    """While it computes, another thread's recurrent network is done, and turns cuDNN on again."""

    def forward(self, x: Tensor) -> Tensor:
        torch.backends.cudnn.enabled = True
        return super().forward(x)


@pytest.mark.parametrize("recurrent", [False, True])
def test_cudnn_stays_as_another_thread_leaves_it(recurrent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (nn.GRU(3, 3, batch_first=True), last) if recurrent else ()
    net = Chain(*first, BesideAThread(3, 2)).eval()
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(1.0))
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    model.apply_network(model.initial(), normal(12, 4, 3))
    assert torch.backends.cudnn.enabled


def test_the_models_dimension_for_particles() -> None:
    data = classes()
    model = BayesianNetwork(network(), PRIOR, likelihoods.Categorical(), N=12)
    with isolated(0), pyro.plate("particles", 4, dim=-2):
        trace = poutine.trace(model).get_trace(data.train.x, data.train.y)
    trace.compute_log_prob()
    assert trace.nodes["0.weight"]["value"].shape == (4, 1, 4, 3)
    assert trace.nodes["0.weight"]["log_prob"].shape == (4, 1)
    assert trace.nodes["y"]["log_prob"].shape == (4, 12)


def test_prior_and_likelihood_follow_the_networks_device(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [BayesianNetwork(network(width=2), PRIOR, likelihoods.Normal(0.5))]
    monkeypatch.setattr(BayesianNetwork, "device", torch.device("meta"))  # stands for a GPU
    own.append(BayesianNetwork(network(width=2), priors.Learned(PRIOR), likelihoods.Normal(0.5)))
    own[0].likelihood = likelihoods.Normal(0.1)
    for model in own:
        assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}


def test_precision_follows_the_model() -> None:
    model = BayesianNetwork(network(), priors.ScaleMixture(), likelihoods.Categorical(), N=12).double()
    trace = traced(model, normal(12, 3, dtype=torch.float64), classes().train.y)
    for name in (*model.sites, "y"):
        assert trace.nodes[name]["log_prob_sum"].dtype == torch.float64


@pytest.mark.parametrize(("seen", "then"), [(torch.float32, torch.float64), (torch.int64, torch.int64)])
def test_new_rows_of_a_fitted_model_follow_its_precision(seen: torch.dtype, then: torch.dtype) -> None:
    model = BayesianNetwork(network(), PRIOR, GAUSS, N=4)
    model.input_dtype = seen
    assert model.double().input_dtype == then


@pytest.mark.parametrize("plain", [False, True])
def test_pyro_sees_every_parameter_of_a_prior(plain: bool) -> None:
    """Its own SVI would leave the others as they are; also of a prior that lies within a plain one."""
    learned = priors.Learned(priors.Normal(), by="gradient")
    model = BayesianNetwork(network(), priors.PerParameter(default=learned) if plain else learned, GAUSS, N=4)
    with isolated(0):
        nodes = poutine.trace(model).get_trace(normal(4, 3), normal(4, 3)).nodes
    seen = {id(stored_leaf(site["value"])) for site in nodes.values() if site["type"] == "param"}
    assert model.prior_parameters
    assert seen >= {id(parameter) for parameter in model.prior_parameters}


def test_copies_and_pickles() -> None:
    model = BayesianNetwork(Tied(), PRIOR, GAUSS, N=4)
    x, weights = normal(4, 3), {name: w + 0.2 for name, w in model.initial().items()}
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.sites == model.sites
        assert torch.equal(twin.apply_network(weights, x), model.apply_network(weights, x))


def test_what_a_call_makes_of_a_draw_does_not_stay_on_the_network() -> None:
    """Nor what the user's own call had left: neither could be copied. What is no draw's stays."""

    class Remembers(nn.Linear):
        seen: Any = None
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen = super().forward(x)
            self.maps = {"last": [self.seen]}
            return self.seen

    net, x = Remembers(3, 2), normal(4, 3)
    net(x)
    model = BayesianNetwork(net, PRIOR, GAUSS, N=4)
    kept = model.network.seen
    assert torch.equal(kept, net.seen)
    draws = {name: w.expand(2, *w.shape).clone().requires_grad_() for name, w in model.initial().items()}
    for weights in (draws, {name: w[0] for name, w in draws.items()}):
        assert model.apply_network(weights, x).requires_grad
        assert model.network.seen is kept
    assert "last" in model.network.maps  # the user's own call's, whose values
    assert model.network.calls == 3
    assert copy.deepcopy(model).sites == model.sites


def test_weights_must_be_floating_point() -> None:
    net = nn.Linear(3, 2)
    net.scale = nn.Parameter(torch.ones(2, dtype=torch.long), requires_grad=False)
    with pytest.raises(ValueError, match=r"parameter 'scale' is torch\.int64"):
        BayesianNetwork(net, PRIOR, GAUSS, N=12)


def test_a_prior_without_a_width_is_refused() -> None:
    class Point(priors.Prior):
        def distribution(self, name: str, parameter: Tensor) -> Any:
            return dist.Normal(parameter, torch.zeros_like(parameter)).to_event(parameter.dim())

    with pytest.raises(ValueError, match="the prior of 'weight' has a scale of 0, which must be positive"):
        BayesianNetwork(nn.Linear(3, 2), Point(), GAUSS, N=12)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (PRIOR, priors.PerParameter(default=PRIOR, where={"bias": priors.Deterministic()})),
        (priors.PerParameter(default=PRIOR, where={"bias": priors.Deterministic()}), PRIOR),
        (PRIOR, priors.Learned(PRIOR)),
        (priors.Learned(PRIOR), PRIOR),
        (PRIOR, priors.ARD()),
        (priors.ARD(), PRIOR),
    ],
)
def test_a_prior_of_other_sites_is_refused(first: priors.Prior, other: priors.Prior) -> None:
    model = BayesianNetwork(nn.Linear(2, 1), first, GAUSS)
    with pytest.raises(ValueError, match="were made for another prior: build a new BayesianNetwork with"):
        model.prior = other
    assert repr(model.prior) == repr(first)


@pytest.mark.parametrize("kind", [lambda prior: prior, priors.Learned])
def test_a_prior_of_the_same_sites_takes_the_place_of_another(kind: Any) -> None:
    model = BayesianNetwork(nn.Linear(2, 1), kind(PRIOR), GAUSS)
    model.prior = kind(priors.Normal(sigma=3.0))
    assert model.prior_of("weight").base_dist.scale.unique().tolist() == [3.0]


def test_a_prior_or_likelihood_that_is_refused_is_told_why() -> None:
    mixed = priors.PerParameter(default=PRIOR, where={"bias": priors.Learned(PRIOR)})
    model = BayesianNetwork(nn.Linear(2, 1), mixed, GAUSS)
    with pytest.raises(ValueError, match="the model's modules were made for another prior"):
        model.prior = mixed
    latent = likelihoods.Normal(dist.HalfNormal(1.0))
    with pytest.raises(
        ValueError, match=r"sites \(they differ in likelihood.scale\) were made for another l"
    ):
        model.likelihood = latent
    model.likelihood = likelihoods.Normal(2.0)
    assert float(model.likelihood.scale) == 2.0


def test_a_new_likelihood_or_prior_is_copied_as_the_first_is() -> None:
    noise, prior = likelihoods.Normal(2.0, learn_scale=True), priors.Learned(PRIOR)
    models = [BayesianNetwork(nn.Linear(2, 1), priors.Learned(PRIOR), GAUSS) for _ in range(2)]
    for model in models:
        model.likelihood, model.prior = noise, prior
        assert model.likelihood(torch.zeros(1, 1)).stddev.item() == pytest.approx(2.0)
        assert model.sample_weights()["weight"].shape == (1, 2)
    for parts in zip(*(model.modules() for model in models), strict=True):
        assert parts[0] is not parts[1]
    assert not {id(part) for part in (*noise.modules(), *prior.modules())} & {
        id(part) for part in models[0].modules()
    }


@pytest.mark.parametrize(
    ("prior", "sites"),
    [
        (priors.FanInNormal(), []),
        (priors.ARD(), []),
        (priors.Horseshoe(), []),
        (priors.Learned(PRIOR), []),
        (priors.Learned(priors.Centred()), ["weight", "bias"]),
        (priors.PerParameter(default=PRIOR, where={"bias": priors.Centred()}), ["bias"]),
    ],
)
def test_the_centres_are_the_values_that_a_prior_reads(prior: priors.Prior, sites: list[str]) -> None:
    """Whether they are 0 or 1, as those of biases and normalisations are, or any."""
    for value in (0.0, 1.0, None):
        net = nn.Linear(2, 1)
        if value is not None:
            nn.init.constant_(net.weight, value)
            nn.init.constant_(net.bias, value)
        assert list(BayesianNetwork(net, prior, GAUSS).centres()) == sites


def test_an_empty_parameter_is_refused() -> None:
    net = nn.Linear(3, 2)
    net.spare = nn.Parameter(torch.ones(0, 4))
    with pytest.raises(ValueError, match=r"parameter 'spare' of shape \(0, 4\) has no values"):
        BayesianNetwork(net, PRIOR, GAUSS, N=12)


def test_guides_of_one_vector_refuse_weights_of_two_precisions() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).double())

    model = BayesianNetwork(Mixed(), PRIOR, GAUSS, N=12)
    for make in (MeanFieldNormal, FlatGuide):
        with pytest.raises(ValueError, match=r"one precision, but 'a.bias' is torch.float32 and 'b.bias' is"):
            make(model)()


def test_torchs_own_distributions_are_no_sites() -> None:
    class Torchs(likelihoods.Likelihood):
        def forward(self, output: Tensor) -> Any:
            return torch.distributions.Categorical(logits=output)

    model = BayesianNetwork(nn.Linear(3, 2), PRIOR, Torchs(), N=4)
    with pytest.raises(ValueError, match=r"pyro.distributions, got torch\.distributions\.categorical"):
        model(normal(4, 3), torch.zeros(4))


def test_a_batch_larger_than_the_data() -> None:
    model = BayesianNetwork(nn.Linear(3, 2), PRIOR, GAUSS, N=4)
    with pytest.raises(ValueError, match="a batch of 5 rows is larger than the data set, N=4"):
        model(normal(5, 3), normal(5, 2))


@pytest.mark.parametrize("net", [nn.Sequential(nn.Flatten(0), nn.Linear(12, 2)), nn.LSTM(3, 2)])
def test_a_network_that_returns_something_else(net: nn.Module) -> None:
    model = BayesianNetwork(net, PRIOR, GAUSS, N=4)
    with pytest.raises(ValueError, match=r"must map \(B, \*features\) to \(B, \*grid, width\)"):
        model(normal(4, 3))


def test_a_latent_scale_moves_and_casts_with_the_model() -> None:
    """Pyro leaves the distribution of a `PyroSample` where it is."""
    scale = pyro.distributions.LogNormal(torch.zeros(()), torch.ones(()))
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale), 12)
    model.double()
    trace = traced(model, normal(12, 3, dtype=torch.float64), normal(12, 1, dtype=torch.float64))
    assert trace.nodes["likelihood.scale"]["value"].dtype == torch.float64
    moved = copy.deepcopy(model).to("meta")
    assert moved.likelihood._pyro_samples["scale"].base_dist.loc.device.type == "meta"
    assert model.likelihood._pyro_samples["scale"].base_dist.loc.device.type == "cpu"
    assert scale.base_dist.loc.dtype == torch.float32, "the given distribution is left as it was"


def test_the_priors_given_values_have_the_density_of_the_model() -> None:
    noise = likelihoods.Normal(pyro.distributions.HalfNormal(2.0))
    model = BayesianNetwork(nn.Linear(3, 1), priors.Horseshoe(), noise, 12)
    values = {name: traced(model).nodes[name]["value"] for name in model.latents}
    laws = model.priors_given(values)
    assert list(laws) == list(model.latents)
    whole = poutine.trace(poutine.condition(model, data=values)).get_trace().log_prob_sum()
    torch.testing.assert_close(sum(laws[n].log_prob(value).sum() for n, value in values.items()), whole)


@pytest.mark.parametrize("rows", [4, 5])
def test_one_value_of_a_latent_serves_all_draws(rows: int) -> None:
    """Of a point there is one, also where there are as many draws as rows."""
    noise = likelihoods.Normal(pyro.distributions.HalfNormal(1.0))
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), noise, 12)
    output = normal(5, rows, 1)
    law = model.observation(output, {"likelihood.scale": torch.tensor([2.0])}, draws=1)
    expected = pyro.distributions.Normal(output, 2.0).log_prob(torch.zeros(()))[..., 0]
    torch.testing.assert_close(law.log_prob(torch.zeros(rows, 1)), expected)


def test_weights_are_sampled_beside_a_latent_of_the_likelihood() -> None:
    """Without a call of the model before it."""
    model = BayesianNetwork(nn.Linear(3, 1), PRIOR, likelihoods.Normal(dist.HalfNormal(1.0)), 12)
    with isolated(0):
        sampled = model.sample_weights()
    assert set(sampled) == {"likelihood.scale", "weight", "bias"}
