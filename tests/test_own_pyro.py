"""Guides, priors, likelihoods, ELBOs and handlers of a user's own in place of ours, in one table.

And our model and guide in a user's own SVI loop, Predictive, effect handlers and NUTS.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.contrib.easyguide import EasyGuide
from pyro.distributions import constraints
from pyro.infer import (
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
)
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn

from engine_fakes import network, normal, values
from own_priors import Correlated, Hierarchical, Learned, Loose
from pyrobbb import Posterior, fit, inference, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.mean_field import MeanFieldNormal

Parts = tuple[BayesianNetwork, MeanFieldNormal, Dataset]

# The table: pieces of a user's own Pyro, of which each works or is refused in words that say what to do.


class Handmade(PyroModule):
    """A normal for each weight, written by hand."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__()
        self.shapes = {name: value.shape for name, value in model.initial().items()}
        for name, value in model.initial().items():
            setattr(self, self._key(name), PyroParam(value.clone()))
        self.scale = PyroParam(torch.tensor(0.1), constraint=constraints.positive)

    @staticmethod
    def _key(name: str) -> str:
        return "loc_" + name.replace(".", "_")

    def forward(self, x: Any = None, y: Any = None) -> None:
        for name, shape in self.shapes.items():
            pyro.sample(name, dist.Normal(getattr(self, self._key(name)), self.scale).to_event(len(shape)))


class NeedsData(Handmade):
    def forward(self, x: Any, y: Any = None) -> None:
        super().forward(x, y)


class Easy(EasyGuide):
    """Pyro's easy guide: one normal for all sites as a group."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__(model)
        self.loc = nn.Parameter(torch.zeros(model.num_weights))
        self.log_scale = nn.Parameter(torch.full((model.num_weights,), -2.0))

    def guide(self, x: Any = None, y: Any = None) -> None:
        weights = self.group(match=r"[02]\..*")
        weights.sample("weights", dist.Normal(self.loc, self.log_scale.exp()).to_event(1))


def in_two_parts(model: BayesianNetwork) -> nn.Module:
    guide = autoguide.AutoGuideList(model)
    guide.append(autoguide.AutoNormal(poutine.block(model, expose=["0.weight", "0.bias"])))
    guide.append(autoguide.AutoDelta(poutine.block(model, hide=["0.weight", "0.bias"])))
    return guide


class Horseshoe(priors.Prior):
    """A scale for each weight, beneath one for its layer."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        layer = pyro.sample(f"{name}_layer", dist.HalfCauchy(1.0))
        own = dist.HalfCauchy(torch.ones_like(parameter)).to_event(parameter.dim())
        each = pyro.sample(f"{name}_each", own)
        return dist.Normal(0.0, each * priors.beside(layer, parameter)).to_event(parameter.dim())


class Positive(priors.Prior):
    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.HalfNormal(1.0), parameter)


class Discrete(priors.Prior):
    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Bernoulli(0.5), parameter)


class Spiked(priors.Prior):
    """A spike and a slab, of torch's own mixture."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        each = dist.Normal(torch.zeros(2), torch.tensor([0.05, 1.0]))
        mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), each)
        return priors.elementwise(mixture, parameter)


class Unshaped(priors.Prior):
    def distribution(self, name: str, parameter: Tensor) -> Any:
        return dist.Normal(torch.zeros_like(parameter), 1.0)


class Mixture(likelihoods.Likelihood):
    """Two normals with the same mean: most rows are exact, one in ten is not."""

    def forward(self, output: Tensor) -> Any:
        which = dist.Categorical(probs=torch.tensor([0.9, 0.1]))
        each = dist.Normal(output[..., None], torch.tensor([0.1, 1.0]))
        return dist.MixtureSameFamily(which.expand(output.shape), each).to_event(1)


class SkewNoise(likelihoods.Likelihood):
    """A flow's noise: the target's logarithm is normal, around the network's output."""

    def forward(self, output: Tensor) -> Any:
        return dist.LogNormal(output, 0.5).to_event(1)


class LatentNoise(likelihoods.Likelihood):
    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroSample(dist.HalfNormal(torch.ones(2)).to_event(1))

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, self.scale).to_event(1)


class NoEvent(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, 0.5)


class SamplesInForward(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, pyro.sample("noise", dist.HalfNormal(1.0))).to_event(1)


class Annealed(Trace_ELBO):
    """An ELBO of one's own: half the loss, which changes no optimum."""

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        with poutine.scale(scale=0.5):
            return float(super().loss_and_grads(model, guide, *args, **kwargs))


class Tempered(BayesianNetwork):
    """A handler around the whole model: the likelihood counts half."""

    def forward(self, x: Any = None, y: Any = None) -> Any:
        with poutine.scale(scale=0.5):
            return super().forward(x, y)


@dataclass(frozen=True)
class Piece:
    """One part that takes the place of ours; `refused` is what the error must say."""

    guide: Any = MeanFieldNormal
    prior: Any = field(default_factory=priors.Normal)
    likelihood: Any = field(default_factory=partial(likelihoods.Normal, scale=0.5))
    model: Any = BayesianNetwork
    options: Any = None
    refused: str | None = None


PIECES: dict[str, Piece] = {
    # guides
    "AutoNormal": Piece(autoguide.AutoNormal),
    "AutoLowRankMultivariateNormal": Piece(partial(autoguide.AutoLowRankMultivariateNormal, rank=2)),
    "AutoIAFNormal, a flow": Piece(autoguide.AutoIAFNormal),
    "AutoDelta": Piece(autoguide.AutoDelta),
    "AutoNormalMessenger, which runs the model": Piece(autoguide.AutoNormalMessenger),
    "AutoGuideList of two kinds": Piece(in_two_parts),
    "EasyGuide": Piece(Easy),
    "a guide by hand": Piece(Handmade),
    "a guide that needs data": Piece(NeedsData, refused=r"write NeedsData.forward\(self, x=None, y=None\)"),
    "a guide that is a function": Piece(lambda model: lambda x=None, y=None: None, refused="guide must be a"),
    # priors
    "IID": Piece(prior=priors.IID(dist.Cauchy(0.0, 1.0))),
    "a prior that is a mixture": Piece(autoguide.AutoNormal, prior=Spiked()),
    "a prior that is a mixture, at its mode": Piece(
        partial(inference.MAP().guide, make=None), prior=Spiked(), options={"inference": inference.MAP()}
    ),
    "a prior with a covariance": Piece(prior=Correlated()),
    "a hierarchical prior": Piece(autoguide.AutoNormal, prior=Hierarchical()),
    "a hierarchical prior under our guide": Piece(prior=Hierarchical(), refused=r"lives on .*AutoNormal"),
    "a horseshoe": Piece(autoguide.AutoNormal, prior=Horseshoe()),
    "a prior that is trained": Piece(prior=Learned()),
    "a prior whose pyro.param is loose": Piece(
        prior=Loose(), refused=r"would not be trained; derive .* from"
    ),
    "positive weights": Piece(autoguide.AutoNormal, prior=Positive()),
    "positive weights under our guide": Piece(prior=Positive(), refused=r"lives on .*AutoNormal"),
    "discrete weights under our guide": Piece(prior=Discrete(), refused=r"lives on .*guide of your own"),
    "discrete weights, at their mode": Piece(
        partial(inference.MAP().guide, make=None),
        prior=Discrete(),
        refused=r"is not an image of the real line",
    ),
    "a prior without to_event": Piece(prior=Unshaped(), refused=r"event shape \(\), .*; end it with .expand"),
    # likelihoods
    "a mixture": Piece(likelihood=Mixture()),
    "positive targets": Piece(likelihood=SkewNoise()),
    "a latent noise for each target": Piece(autoguide.AutoNormal, likelihood=LatentNoise()),
    "a likelihood without to_event": Piece(likelihood=NoEvent(), refused=r"end forward with .to_event\(1\)"),
    "a likelihood that samples": Piece(
        autoguide.AutoNormal, likelihood=SamplesInForward(), refused=r"samples 'noise', .* = PyroSample\("
    ),
    # ELBOs
    "TraceMeanField_ELBO": Piece(options={"elbo": TraceMeanField_ELBO}),
    "TraceGraph_ELBO": Piece(options={"elbo": TraceGraph_ELBO}),
    "RenyiELBO": Piece(options={"elbo": RenyiELBO(alpha=0.5, num_particles=2)}),
    "an ELBO of one's own": Piece(options={"elbo": Annealed}),
    "a compiled ELBO": Piece(options={"elbo": JitTrace_ELBO}, refused="JitTrace_ELBO does not expose its"),
    "a loss that is a function": Piece(options={"elbo": lambda *a: 0.0}, refused="one of Pyro's ELBOs"),
    # handlers
    "a model within poutine.scale": Piece(model=Tempered),
}


@pytest.mark.parametrize("name", PIECES)
def test_it_works_or_says_what_to_do(name: str) -> None:
    """Fitted, each parameter has moved, and predictions are finite."""
    piece, data = PIECES[name], values(12)
    if name == "positive targets":
        data = replace(data, train=Split(data.train.x, data.train.y.exp()))

    def fitted() -> Posterior:
        with isolated(0):
            model = piece.model(network(width=2), piece.prior, piece.likelihood, 12)
            guide = piece.guide(model)
        options = {"epochs": 2, "batch_size": 6, "device": "cpu", "progress": None} | (piece.options or {})
        return fit(model, guide, data, **options)

    if piece.refused is not None:
        with pytest.raises(ValueError, match=piece.refused):
            fitted()
        return
    posterior = fitted()
    assert isfinite(posterior.history.rows[-1].free_energy)
    model, guide = posterior.chains[0]
    with isolated(0):
        fresh = piece.model(network(width=2), piece.prior, piece.likelihood, 12)
        beginning = piece.guide(fresh)
        beginning(data.train.x, data.train.y)
    begun = dict(beginning.named_parameters())
    moved = {key: not torch.equal(p, begun[key]) for key, p in guide.named_parameters() if p.numel()}
    assert moved
    assert any(moved.values())
    assert posterior.predict(data.train.x, data.train.y, draws=3).log_predictive.isfinite().all()
    assert set(posterior.draw(2)) == set(model.latents)


@pytest.mark.parametrize(
    ("prior", "likelihood"),
    [
        (Hierarchical(), likelihoods.Normal(scale=0.5)),
        (priors.Normal(), LatentNoise()),
        (Spiked(), likelihoods.Normal(scale=0.5)),
    ],
    ids=["hierarchical prior", "latent noise", "mixture"],
)
def test_nuts_with_other_supports_and_more_than_weights(prior: Any, likelihood: Any) -> None:
    """Ours and Pyro's draw every latent site, and predict."""
    data = values(12)
    model = BayesianNetwork(nn.Linear(3, 2), prior, likelihood, 12)
    method = inference.NUTS(warmup=4, draws=4, max_tree_depth=3)
    posterior = fit(model, None, data, inference=method, epochs=1, device="cpu", progress=None)
    assert set(posterior.draw(4)) == set(model.latents)
    assert posterior.predict(data.train.x, draws=4).mean.isfinite().all()
    with isolated(0):
        mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=4, warmup_steps=4, disable_progbar=True)
        mcmc.run(data.train.x, data.train.y)
        drawn = mcmc.get_samples()
        predicted = Predictive(model, posterior_samples=drawn)(data.train.x)
    assert set(drawn) == set(model.latents)
    assert predicted["y"].shape[0] == 4
    assert predicted["y"].isfinite().all()


# Model and guide in a program of the user's own


@pytest.fixture
def parts() -> Parts:
    data = values(24)
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(scale=0.5), 24)
    return model, MeanFieldNormal(model), data


def flat(guide: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in guide.parameters()])


def test_an_own_svi_loop_over_minibatches_takes_the_steps_of_the_elbo(parts: Parts) -> None:
    """Loss and parameters of each step are those of log q(w) - log p(y, w), written out beside it."""
    model, guide, data = parts
    with isolated(0):
        guide(data.train.x, data.train.y)
        begun = flat(guide)
        svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-4}), Trace_ELBO())  # type: ignore[attr-defined]
        for step, rows in enumerate(torch.arange(24).split(8)):
            x, y = data.train.x[rows], data.train.y[rows]
            before = [p.detach().clone() for p in guide.parameters()]
            pyro.set_rng_seed(step)
            q = poutine.trace(guide).get_trace(x, y)
            p = poutine.trace(poutine.replay(model, q)).get_trace(x, y)
            cost = q.log_prob_sum() - p.log_prob_sum()
            slopes = torch.autograd.grad(cost, list(guide.parameters()))
            pyro.set_rng_seed(step)
            assert svi.step(x, y) == pytest.approx(float(cost.detach()), rel=1e-5)
            for old, new, slope in zip(before, guide.parameters(), slopes, strict=True):
                torch.testing.assert_close(new.detach(), old - 1e-4 * slope, rtol=1e-4, atol=1e-6)
    assert not torch.equal(flat(guide), begun)


def test_predictive_with_a_guide_draws_weights_and_targets(parts: Parts) -> None:
    model, guide, data = parts
    x, S = normal(5, 3, seed=8), 400
    with isolated(0):
        guide(data.train.x, data.train.y)
        drawn = Predictive(model, guide=guide, num_samples=S)(x)
    loc, scale = guide.loc_and_scale()
    assert drawn["y"].shape == (S, 5, 2)
    for name in model.sites:
        found = drawn[name].reshape(S, *loc[name].shape)
        assert ((found.mean(0) - loc[name]).abs() < 5 * scale[name] / S**0.5).all()
    f = model.apply_network({n: drawn[n].reshape(S, *loc[n].shape) for n in model.sites}, x)
    noise = drawn["y"] - f
    assert abs(float(noise.mean())) < 5 * 0.5 / noise.numel() ** 0.5
    assert abs(float(noise.std()) - 0.5) < 5 * 0.5 / (2 * noise.numel()) ** 0.5


@pytest.mark.parametrize("S", [1, 5, 7])  # 5 are as many as rows
def test_predictive_may_take_all_draws_at_once(parts: Parts, S: int) -> None:
    model, guide, data = parts
    with isolated(0):
        guide(data.train.x, data.train.y)
        drawn = Predictive(model, guide=guide, num_samples=S, parallel=True)(normal(5, 3, seed=8))
    assert drawn["y"].shape == (S, 5, 2)
    weights = {name: drawn[name] for name in model.sites}
    f = model.apply_network(weights, normal(5, 3, seed=8))
    assert bool(((drawn["y"] - f).abs() < 0.5 * 6).all())  # the noise of each draw's own function


@pytest.mark.parametrize("K", [2, 24])  # 24 are as many as rows
@pytest.mark.parametrize("site", ["0.weight", "2.bias", "likelihood.scale", "all weights"])
def test_particles_may_share_a_value_that_a_handler_fixes(site: str, K: int) -> None:
    data = values(24)
    own = likelihoods.Normal(scale=dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    model = BayesianNetwork(network(width=2), priors.Normal(), own, 24)
    with isolated(0):
        drawn = model.prior_draw()
        fixed = model.sites if site == "all weights" else [site]
        with pyro.plate("particles", K, dim=-2):
            nodes = (
                poutine.trace(poutine.condition(model, {n: drawn[n] for n in fixed}))
                .get_trace(data.train.x, data.train.y)
                .nodes
            )
    for k in range(K):
        each = {n: nodes[n]["value"] if n in fixed else nodes[n]["value"][k, 0] for n in model.latents}
        alone = model.observation(model.apply_network(each, data.train.x), each)
        torch.testing.assert_close(nodes["y"]["fn"].base_dist.loc[k], alone.base_dist.loc)
        torch.testing.assert_close(
            nodes["y"]["fn"].base_dist.scale.expand(K, 24, 2)[k], alone.base_dist.scale.expand(24, 2)
        )


@pytest.mark.parametrize("S", [4, 5])  # 5 are as many as rows
def test_predictive_may_be_given_some_of_the_weights(parts: Parts, S: int) -> None:
    model, _, _ = parts
    given = {"2.bias": normal(S, 2, seed=3), "2.weight": torch.zeros(S, 2, 4)}
    with isolated(0):
        drawn = Predictive(model, given, parallel=True)(normal(5, 3, seed=8))["y"]
    assert bool(((drawn - given["2.bias"][:, None]).abs() < 0.5 * 6).all())


class Recorded(likelihoods.Likelihood):
    """Keeps its mean in the trace, and has a noise scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroSample(dist.LogNormal(0.0, 1.0))

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(pyro.deterministic("mean", output), self.scale).to_event(1)


def test_a_likelihood_may_keep_a_value_in_the_trace() -> None:
    """Once, also where there are as many draws as rows."""
    model = BayesianNetwork(network(width=2), priors.Normal(), Recorded(), 24)
    with isolated(0), pyro.plate("particles", 5, dim=-2):
        trace = poutine.trace(model).get_trace(normal(5, 3), normal(5, 2))
    assert trace.nodes["mean"]["value"].shape == (5, 5, 2)


def test_a_value_of_another_shape(parts: Parts) -> None:
    given = pyro.condition(parts[0], {"2.bias": torch.zeros(1)})
    with pytest.raises(
        ValueError, match=r"'2.bias' was given a value of shape \(1,\), which must end in \(2"
    ):
        given(parts[2].train.x)


class Store(Handmade):
    """A scale in Pyro's store, and in no module."""

    def forward(self, x: Any = None, y: Any = None) -> None:
        pyro.param("wide", torch.ones(()))
        super().forward(x, y)


def test_a_posterior_refuses_what_only_pyros_store_holds(parts: Parts) -> None:
    """It would predict with the initial value."""
    model, guide, data = parts
    lost = "'wide' is not registered on its module, so its trained value would be lost"
    with pytest.raises(ValueError, match=f"the guide's parameter {lost}"):
        Posterior([(model, Store(model))]).predict(data.train.x)
    with isolated(0):
        guide(data.train.x, data.train.y)
    named = BayesianNetwork(network(width=2), priors.Normal(), Named(), 24)
    with pytest.raises(ValueError, match=f"the model's parameter {lost}"):
        Posterior([(named, guide)]).predict(data.train.x)


class Named(likelihoods.Likelihood):
    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, pyro.param("wide", torch.ones(()))).to_event(1)


def test_networks_that_sample_or_constrain_their_own_weights() -> None:
    sampling, mapped = PyroModule[nn.Linear](3, 2), PyroModule[nn.Linear](3, 2)
    sampling.weight = PyroSample(dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    mapped.weight = PyroParam(torch.ones(2, 3), constraint=constraints.positive)
    with pytest.raises(ValueError, match=r"network has a PyroSample 'weight', .* make it an nn.Parameter"):
        BayesianNetwork(sampling, priors.Normal(), likelihoods.Normal(), 24)
    with pytest.raises(
        ValueError, match="'weight_unconstrained' holds the unconstrained values of a PyroPar"
    ):
        BayesianNetwork(mapped, priors.Normal(), likelihoods.Normal(), 24)
    prior = priors.PerParameter(
        default=priors.Normal(), where={"weight_unconstrained": priors.Deterministic()}
    )
    assert BayesianNetwork(mapped, prior, likelihoods.Normal(), 24).sites == ("bias",)


def test_effect_handlers_see_every_weight(parts: Parts) -> None:
    model, guide, data = parts
    x, y = data.train.x, data.train.y
    given = torch.zeros(2, 4)
    with isolated(0):
        guide(x, y)
        conditioned = poutine.trace(pyro.condition(model, {"2.weight": given})).get_trace(x, y)
        intervened = poutine.trace(pyro.do(model, {"2.weight": given})).get_trace(x, y)
        replayed = poutine.trace(poutine.replay(model, poutine.trace(guide).get_trace(x, y))).get_trace(x, y)
        nothing = {name: torch.zeros_like(value) for name, value in model.initial().items()}
        substituted = pyro.condition(model, nothing)
        y_of_nothing = poutine.trace(substituted).get_trace(x).nodes["y"]["fn"].mean
    assert conditioned.nodes["2.weight"]["is_observed"]
    assert torch.equal(conditioned.nodes["2.weight"]["value"], given)
    bias = intervened.nodes["2.bias"]["value"]
    assert torch.equal(intervened.nodes["y"]["fn"].mean, bias.expand(24, 2))
    assert set(model.sites) <= set(replayed.nodes)
    assert float(y_of_nothing.abs().max()) == 0


def test_nuts_draws_every_weight_of_a_network(parts: Parts) -> None:
    model, _, data = parts
    with isolated(0):
        mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=4, warmup_steps=4, disable_progbar=True)
        mcmc.run(data.train.x, data.train.y)
        samples = mcmc.get_samples()
        predicted = Predictive(model, posterior_samples=samples)(data.train.x[:3])
    assert {name: value.shape for name, value in samples.items()} == {
        name: (4, *value.shape) for name, value in model.initial().items()
    }
    assert predicted["y"].shape == (4, 3, 2)


@pytest.mark.parametrize("kind", [autoguide.AutoNormal, autoguide.AutoDelta, autoguide.AutoIAFNormal])
def test_a_guide_without_one_of_the_weights_is_told_so_by_predictions(kind: Any) -> None:
    with isolated(0):
        model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale=0.5), 12)
        guide = kind(poutine.block(model, hide=["bias"]))
        guide(torch.zeros(1, 3), torch.zeros(1, 1))
    posterior = Posterior([(model, guide)])
    for use in (lambda: posterior.predict(torch.zeros(1, 3), draws=2), posterior.mean_weights):
        with pytest.raises(ValueError, match=r"has no site 'bias' \(to hold .* prior Deterministic"):
            use()


@pytest.mark.parametrize("kind", [autoguide.AutoNormal, autoguide.AutoDelta])
def test_mean_weights_are_not_the_memory_of_pyros_guides(kind: Any) -> None:
    with isolated(0):
        model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale=0.5), 12)
        guide = kind(model)
        guide(torch.zeros(1, 3), torch.zeros(1, 1))
    posterior = Posterior([(model, guide)])
    for value in posterior.mean_weights().values():
        value.fill_(7.0)
    assert not any(bool((value == 7).any()) for value in posterior.mean_weights().values())


def test_a_model_of_ones_own_around_the_network_has_a_latent_input_for_each_row() -> None:
    """Its log joint is the sum of three normals, of the weights, of what is missing, and of y given both."""
    ours = BayesianNetwork(
        nn.Linear(2, 1, bias=False), priors.Normal(sigma=2.0), likelihoods.Normal(scale=0.5)
    )
    seen, missing = normal(6, seed=1), normal(6, seed=2)
    y, w = normal(6, 1, seed=3), normal(1, 2, seed=4)

    def model() -> None:
        weights = ours.sample_weights()
        with pyro.plate("rows", 6):
            x = torch.stack([seen, pyro.sample("missing", dist.Normal(0.3 * seen, 1.0))], -1)
            pyro.sample("y", ours.observation(ours.apply_network(weights, x), weights), obs=y)

    given = poutine.condition(model, data={"weight": w, "missing": missing})
    of_y = dist.Normal(w[0, 0] * seen + w[0, 1] * missing, 0.5).log_prob(y[:, 0]).sum()
    of_latents = (
        dist.Normal(0.0, 2.0).log_prob(w).sum() + dist.Normal(0.3 * seen, 1.0).log_prob(missing).sum()
    )
    torch.testing.assert_close(poutine.trace(given).get_trace().log_prob_sum(), of_y + of_latents)
