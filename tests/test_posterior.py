"""Draws, moments and predictions of a fitted posterior, against closed forms and against each other."""

import math
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from pyro.distributions import LogNormal
from pyro.infer import autoguide
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from commands import command
from engine_fakes import law, network, normal
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated, mixed_seed
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.draws import some_draws
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.initializers import Constant, Normal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior, moments
from pyrobbb.predictive import ClassPrediction, ValuePrediction


def set_up(model: BayesianNetwork, guide: nn.Module, features: int = 3) -> tuple[BayesianNetwork, Any]:
    with isolated(0):
        guide(torch.zeros(1, features))
    return model, guide


def class_posterior(seed: int = 0, spread: float = 1.0) -> Posterior:
    """A posterior over class probabilities that disagrees with itself."""
    model = BayesianNetwork(network(seed=seed), priors.Normal(), likelihoods.Categorical(), 12)
    return Posterior([set_up(model, MeanFieldNormal(model, init_rho=math.log(math.expm1(spread))))])


def linear_posterior(noise: float = 0.3, outputs: int = 1) -> Posterior:
    model = BayesianNetwork(nn.Linear(3, outputs), priors.Normal(), likelihoods.Normal(scale=noise), 12)
    guide = MeanFieldNormal(model, init_loc=Normal(scale=1.0), init_rho=Normal(scale=1.0, loc=-1.0))
    return Posterior([set_up(model, guide)])


def classified(posterior: Posterior, *args: Any, **options: Any) -> ClassPrediction:
    prediction = posterior.predict(*args, **options)
    assert isinstance(prediction, ClassPrediction)
    return prediction


def test_the_draws_of_a_mean_field_are_those_of_its_program() -> None:
    """Though Pyro runs it for the first one alone."""
    model, guide = linear_posterior().chains[0]
    keys = [(3, 1, number) for number in range(4)]
    for key, drawn in zip(keys, some_draws((model, guide), keys), strict=True):
        with isolated(mixed_seed(*key)):
            expected = guide()
        assert all(torch.equal(drawn[name], value) for name, value in expected.items())
    name = model.sites[0]
    fixed = torch.zeros_like(expected[name])
    with poutine.condition(data={name: fixed}):
        assert all(torch.equal(drawn[name], fixed) for drawn in some_draws((model, guide), keys))


def test_inputs_that_require_gradients_are_taken_silently() -> None:
    x, posterior = normal(5, 3), linear_posterior()
    posterior.reach = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = posterior.predict(x.clone().requires_grad_())
    assert torch.equal(found.mean, posterior.predict(x).mean)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_averaged_in_single(dtype: torch.dtype) -> None:
    x, y, posterior = normal(50, 3), torch.arange(50) % 3, class_posterior()
    for part in posterior.chains[0]:
        part.to(dtype)
    found = classified(posterior, x, y, draws=300)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(50))
    assert found.metrics(y)["nll"] == pytest.approx(-float(found.log_predictive.mean()), rel=1e-4)


def valued(posterior: Posterior, *args: Any, **options: Any) -> ValuePrediction:
    prediction = posterior.predict(*args, **options)
    assert isinstance(prediction, ValuePrediction)
    return prediction


def test_scores_of_values_are_of_the_targets_that_were_given() -> None:
    """Probabilities may be scored against any labels; of values only the given ones have a log-likelihood."""
    posterior, x = linear_posterior(), normal(5, 3)
    y = x.sum(1).double().numpy() / 3  # which float32 rounds
    found = valued(posterior, x, y)
    expected = {"rmse": float(found.losses(y).mean()) ** 0.5, "nll": -float(found.log_predictive.mean())}
    for same in (y, y[:, None], torch.tensor(y), found.y):
        assert found.metrics(same) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"y differs from the y passed to predict\(x, y\)"):
        found.metrics(y[::-1])
    with pytest.raises(ValueError, match=r"needs y: call predict\(x, y\)"):
        valued(posterior, x).metrics(y)


def test_a_torch_data_set_or_loader_is_predicted_as_its_rows_are() -> None:
    posterior, x, y = class_posterior(), normal(7, 3), torch.arange(7) % 2
    rows = TensorDataset(x, y)
    wanted = posterior.predict(x, y, draws=3)
    for given_rows in (rows, DataLoader(rows, batch_size=2)):
        found = posterior.predict(given_rows, draws=3)
        assert torch.equal(found.probs, wanted.probs)
        assert torch.equal(found.log_likelihood, wanted.log_likelihood)
        assert found.metrics(found.y) == wanted.metrics(y)


def test_chains_are_taken_as_they_are() -> None:
    chains = linear_posterior().chains
    assert class_posterior().with_chains(chains).chains == chains


def test_what_is_printed_of_it_is_short() -> None:
    posterior, x = linear_posterior(outputs=2), normal(5, 3)
    assert repr(posterior) == "Posterior of one chain: MeanFieldNormal over 8 weights, N=12"
    assert repr(Posterior(posterior.chains * 2)).startswith("Posterior of 2 chains: ")
    assert repr(posterior.predict(x, draws=7)) == "ValuePrediction(7 draws of y (5, 2))"
    found = class_posterior().predict(x, torch.arange(5) % 3, draws=4)
    words = "log_likelihood (4, 5), y (5,), probs (5, 3), predictive_entropy (5,), expected_entropy (5,)"
    assert repr(found) == f"ClassPrediction({words})"
    with pytest.raises(ValueError, match=r"a single row is x\[None\]"):
        posterior.predict(x[0])


# Draws


def test_draw_s_is_the_same_however_many_are_asked_for() -> None:
    posterior = class_posterior()
    few, many = posterior.draw(2, seed=5), posterior.draw(6, seed=5)
    each = list(posterior.each_draw(6, seed=5))
    for name in posterior.model.sites:
        assert torch.equal(many[name][:2], few[name])
        assert torch.equal(many[name][4], each[4][name])
        assert not torch.equal(many[name][0], many[name][1])
        assert not torch.equal(posterior.draw(2, seed=6)[name], few[name])


def test_draws_do_not_depend_on_what_else_is_random() -> None:
    posterior = class_posterior()
    before = posterior.draw(1)
    generator = posterior.each_draw(2)
    first = next(generator)
    torch.randn(5)
    second = next(generator)
    for name, value in before.items():
        assert torch.equal(first[name], value[0])
        assert torch.equal(second[name], posterior.draw(2)[name][1])


def test_chains_draw_differently() -> None:
    one = class_posterior()
    two = Posterior([one.chains[0], one.chains[0]])
    assert not torch.equal(two.draw(1, chain=0)["0.weight"], two.draw(1, chain=1)["0.weight"])


def test_draws_carry_no_graph() -> None:
    posterior = class_posterior()
    assert not posterior.draw(1)["0.weight"].requires_grad
    assert not posterior.mean_weights()["0.weight"].requires_grad


@law
@given(st.integers(-(10**9), 10**12), st.integers(0, 3))
def test_any_seed_serves(seed: int, chain: int) -> None:
    posterior = Posterior(linear_posterior().chains * 4)
    one, two = (posterior.draw(1, seed=seed, chain=chain)["bias"] for _ in range(2))
    assert torch.equal(one, two)


def test_a_seed_is_a_whole_number() -> None:
    posterior = linear_posterior()
    for take in (posterior.draw, posterior.function, lambda n, seed: next(posterior.each_draw(n, seed=seed))):
        with pytest.raises(ValueError, match=r"seed must be a whole number, got 1\.5"):
            take(1, seed=1.5)


GUIDES: dict[str, Callable[[Any], nn.Module]] = {
    "mean_field": partial(MeanFieldNormal, init_rho=Normal(scale=1.0, loc=-1.0)),
    "auto_normal": partial(autoguide.AutoNormal, init_scale=0.3),
    "auto_low_rank": partial(autoguide.AutoLowRankMultivariateNormal, init_scale=0.3),
    "auto_multivariate": partial(autoguide.AutoMultivariateNormal, init_scale=0.3),
    "auto_delta": autoguide.AutoDelta,
}


@pytest.mark.parametrize("name", GUIDES)
def test_moments_are_those_of_the_draws(name: str) -> None:
    model = BayesianNetwork(nn.Linear(3, 2), priors.Normal(), likelihoods.Normal(0.1), 12)
    chain = set_up(model, GUIDES[name](model))
    with torch.no_grad():  # away from the regular start
        for i, parameter in enumerate(chain[1].parameters()):
            parameter.add_(0.3 * normal(*parameter.shape, seed=i))
    loc, scale = moments(chain)
    assert {k: v.shape for k, v in loc.items()} == {k: v.shape for k, v in model.initial().items()}
    S = 400
    draws = Posterior([chain]).draw(S)
    for site in model.sites:
        if name == "auto_delta":
            assert torch.equal(draws[site][0], loc[site])
            assert (scale[site] == 0).all()
            continue
        assert (scale[site] > 0).all()
        z = (draws[site] - loc[site]) / scale[site]
        assert float(z.mean(0).abs().max()) < 5 / S**0.5
        assert float((z.var(0) - 1).abs().max()) < 5 * (2 / S) ** 0.5


def test_mean_weights_are_mu() -> None:
    posterior = class_posterior()
    mean, x = posterior.mean_weights(), normal(5, 3)
    net = network()
    prediction = classified(posterior, x, mean_weights=True)
    for name, parameter in net.named_parameters():
        assert torch.equal(mean[name], parameter)
    torch.testing.assert_close(prediction.probs, net(x).softmax(-1).detach())
    assert float(prediction.mutual_information.abs().max()) < 1e-6  # one draw does not disagree with itself


# Class probabilities


@law
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(1e-3, 10), st.integers(1, 9))
def test_probabilities_and_entropies_have_bounds(seed: int, draws: int, spread: float, rows: int) -> None:
    """H(mean p) >= mean H(p), both within [0, log C]; probabilities sum to 1."""
    x = 10 * normal(rows, 3, seed=seed)
    prediction = classified(wide(spread), x, draws=draws, seed=seed)
    assert prediction.probs.shape == (rows, 3)
    assert (prediction.probs >= 0).all()
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(rows), rtol=1e-6, atol=1e-6)
    high = math.log(3) + 1e-5
    for entropy in (prediction.predictive_entropy, prediction.expected_entropy):
        assert (entropy > -1e-6).all()
        assert (entropy < high).all()
    assert (prediction.predictive_entropy > prediction.expected_entropy - 1e-5).all()
    information = prediction.mutual_information
    assert (information >= 0).all()
    torch.testing.assert_close(
        information, prediction.predictive_entropy - prediction.expected_entropy, rtol=0, atol=1e-5
    )


@cache
def wide(spread: float) -> Posterior:
    return class_posterior(spread=spread)


def test_probabilities_are_averaged_not_logits_nor_logs() -> None:
    posterior, x, y = class_posterior(), normal(7, 3), torch.arange(7) % 3
    each = torch.stack([posterior.model.apply_network(w, x) for w in posterior.each_draw(20)]).log_softmax(-1)
    prediction = classified(posterior, x, y, draws=20)
    torch.testing.assert_close(prediction.probs, each.exp().mean(0))
    for wrong in (each.mean(0).softmax(-1), each.mean(0).exp()):
        assert float((prediction.probs - wrong).abs().max()) > 0.02
    entropies = torch.distributions.Categorical(logits=each).entropy()
    torch.testing.assert_close(prediction.expected_entropy, entropies.mean(0))
    torch.testing.assert_close(
        prediction.predictive_entropy, torch.distributions.Categorical(probs=prediction.probs).entropy()
    )
    assert prediction.log_likelihood is not None
    torch.testing.assert_close(prediction.log_likelihood, each[:, torch.arange(7), y])
    torch.testing.assert_close(prediction.log_predictive, prediction.probs[torch.arange(7), y].log())


def test_certain_predictions_have_no_entropy_and_no_nan() -> None:
    model = BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical(), 12)
    posterior = Posterior([set_up(model, MeanFieldNormal(model, init_loc=Normal(scale=1e9), init_rho=-8.0))])
    prediction = classified(posterior, normal(5, 3), torch.zeros(5, dtype=torch.long), draws=3)
    for value in (prediction.predictive_entropy, prediction.expected_entropy, prediction.mutual_information):
        assert value.isfinite().all()
        assert float(value.abs().max()) < 1e-5
    assert prediction.log_likelihood is not None
    assert prediction.log_likelihood.isfinite().all()


# Real values


def test_value_moments_of_a_linear_model() -> None:
    """Mean x mu + b; variance x^2 sigma^2 + sigma_b^2 + noise^2, within 5 standard errors of 800 draws."""
    S, noise = 800, 0.3
    posterior, x = linear_posterior(noise), normal(6, 3)
    loc, scale = moments(posterior.chains[0])
    prediction = valued(posterior, x, draws=S)
    mean = x @ loc["weight"].T + loc["bias"]
    spread = x**2 @ (scale["weight"] ** 2).T + scale["bias"] ** 2
    assert prediction.means.shape == (S, 6, 1)
    assert ((prediction.mean - mean).abs() < 5 * (spread / S).sqrt()).all()
    assert ((prediction.variance - noise**2 - spread).abs() < 5 * spread * (2 / S) ** 0.5).all()
    torch.testing.assert_close(prediction.noise, torch.full((6, 1), noise**2))
    low, median, high = prediction.function_quantiles([0.025, 0.5, 0.975])
    assert ((median - mean).abs() < 5 * (math.pi / 2 * spread / S).sqrt()).all()
    torch.testing.assert_close(high - low, 2 * 1.96 * spread.sqrt(), rtol=0.2, atol=0)


def test_log_predictive_of_a_linear_model() -> None:
    """Log mean_s p(y | x, w_s) nears the exact log N(y | x mu + b, variance); a mean of logs does not."""
    noise = 0.5
    posterior, x = linear_posterior(noise), 0.5 * normal(6, 3)
    loc, scale = moments(posterior.chains[0])
    exact = torch.distributions.Normal(
        x @ loc["weight"].T + loc["bias"],
        (x**2 @ (scale["weight"] ** 2).T + scale["bias"] ** 2 + noise**2).sqrt(),
    )
    y = exact.mean + 0.5 * normal(6, 1, seed=1)
    prediction = valued(posterior, x, y, draws=1000)
    assert prediction.log_likelihood is not None
    assert prediction.log_likelihood.shape == (1000, 6)
    density = prediction.log_likelihood.exp()
    error = density.std(0) / 1000**0.5
    assert ((density.mean(0) - exact.log_prob(y).sum(-1).exp()).abs() < 5 * error).all()
    torch.testing.assert_close(prediction.log_predictive, density.mean(0).log())


def test_noise_that_the_network_gives() -> None:
    model = BayesianNetwork(nn.Linear(3, 2), priors.Normal(), likelihoods.HeteroscedasticNormal(), 12)
    posterior, x = Posterior([set_up(model, MeanFieldNormal(model, init_rho=0.0))]), normal(5, 3)
    prediction = valued(posterior, x, draws=4)
    outputs = torch.stack([model.apply_network(w, x) for w in posterior.each_draw(4)])
    torch.testing.assert_close(prediction.means, outputs[..., :1])
    noise = (nn.functional.softplus(outputs[..., 1:]) + 1e-3).square().mean(0)
    torch.testing.assert_close(prediction.noise, noise)
    torch.testing.assert_close(prediction.variance, noise + outputs[..., :1].var(0, unbiased=False))


# Chunks, chains, samples


@pytest.mark.parametrize("kind", [class_posterior, linear_posterior])
@pytest.mark.parametrize(("rows", "megabytes"), [(1, 128.0), (4, 1e-9), (7, 3e-4), (1000, 1e-9)])
def test_predictions_do_not_depend_on_chunks(
    kind: Callable[[], Posterior], rows: int, megabytes: float
) -> None:
    posterior, x = kind(), normal(9, 3)
    y = torch.arange(9) % 3 if kind is class_posterior else normal(9, 1, seed=1)
    whole = posterior.predict(x, y, draws=7, seed=3)
    parts = posterior.predict(x, y, draws=7, seed=3, rows=rows, megabytes=megabytes)
    classes = ("log_likelihood", "probs", "predictive_entropy", "expected_entropy")
    for name in classes if kind is class_posterior else ("log_likelihood", "means", "noise"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-5, atol=1e-6)


def test_chains_are_averaged_in_equal_parts() -> None:
    one, two = class_posterior(seed=0), class_posterior(seed=1)
    x, y = normal(5, 3), torch.arange(5) % 3
    both = Posterior([*one.chains, *two.chains])
    prediction = classified(both, x, y, draws=4)
    alone = [classified(both, x, y, draws=4, chains=[i]) for i in (0, 1)]
    torch.testing.assert_close(prediction.probs, (alone[0].probs + alone[1].probs) / 2)
    assert prediction.log_likelihood is not None
    assert prediction.log_likelihood.shape == (8, 5)
    torch.testing.assert_close(alone[0].probs, classified(one, x, draws=4).probs)
    assert torch.equal(classified(both, x, draws=4, chains=np.array([1])).probs, alone[1].probs)
    mean = classified(both, x, mean_weights=True)
    torch.testing.assert_close(
        mean.probs, (network(seed=0)(x).softmax(-1) + network(seed=1)(x).softmax(-1)).detach() / 2
    )


def test_samples_of_y_come_from_the_predictive() -> None:
    noise, S = 0.3, 600
    posterior, x = linear_posterior(noise), normal(4, 3)
    prediction = valued(posterior, x, draws=S, sample=True)
    assert prediction.samples is not None
    assert prediction.samples.shape == (S, 4, 1)
    residual = prediction.samples - prediction.means
    assert float((residual.std(0) - noise).abs().max()) < 5 * noise / (2 * S) ** 0.5
    assert valued(posterior, x, draws=2).samples is None
    labels = classified(class_posterior(), normal(4, 3), draws=S, sample=True)
    assert labels.samples is not None
    frequency = nn.functional.one_hot(labels.samples, 3).double().mean(0)
    assert float((frequency - labels.probs).abs().max()) < 5 * 0.5 / S**0.5


def test_deterministic_and_learnt_parameters_take_part() -> None:
    prior = priors.PerParameter(default=priors.Normal(), where={"bias": priors.Deterministic()})
    model = BayesianNetwork(nn.Linear(3, 1), prior, likelihoods.Normal(scale=0.3, learn_scale=True), 12)
    posterior = Posterior([set_up(model, MeanFieldNormal(model, init_loc=Constant(0.0), init_rho=-20.0))])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    prediction = valued(posterior, normal(4, 3), draws=2)
    torch.testing.assert_close(prediction.mean, torch.full((4, 1), 2.0))
    torch.testing.assert_close(prediction.noise, torch.full((4, 1), math.log1p(math.exp(2.0)) ** 2))


# Bad input


@pytest.mark.parametrize("make", [MeanFieldNormal, autoguide.AutoNormal])
def test_a_guide_that_was_never_fitted(make: Callable[[Any], nn.Module]) -> None:
    model = BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical(), 12)
    posterior = Posterior([(model, make(model))])
    asks = (lambda: posterior.predict(normal(2, 3)), lambda: posterior.draw(1), posterior.mean_weights)
    for ask in asks:
        with pytest.raises(ValueError, match="fit it"):
            ask()


# Memory


MEASURE = """
import resource, sys, torch
from torch import nn
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.{kind} import {kind}
from pyrobbb import likelihoods, priors
from pyrobbb.data.dataset import Spec
from pyrobbb.posterior import Posterior

features = {features}
spec = Spec(60_000, features, 10, "classification")
model = {kind}(spec, priors.ScaleMixture(), likelihoods.Categorical(), {options})
guide = MeanFieldNormal(model)
guide(torch.zeros(1, *features))
x, y = torch.rand({rows}, *features), torch.zeros({rows}, dtype=torch.long)
posterior = Posterior([(model, guide)])
posterior.predict(x[:8], y[:8], draws=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
posterior.predict(x, y, draws={draws}, rows={at_once})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def extra(folder: Path, **what: Any) -> float:
    """Peak memory, in MB, that a prediction adds, measured in a process of its own."""
    (folder / "measure.py").write_text(MEASURE.format(**what))
    done = command(folder, "measure")
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_predicting_with_the_papers_largest_network_stays_under_a_gigabyte(tmp_path: Path) -> None:
    """Draws are made a few at a time, here 13: what 14 of them need, 100 need too."""
    options = "hidden=(1200, 1200)"
    given = {"features": (784,), "options": options, "rows": 600, "draws": 14, "at_once": 1000}
    assert extra(tmp_path, kind="mlp", **given) < 600


def test_activations_have_no_more_room_than_they_are_given(tmp_path: Path) -> None:
    """A convolutional network has few weights but large activations, 130 kB for each draw and image."""
    given = {"features": (1, 28, 28), "options": "", "rows": 100, "draws": 32, "at_once": 200}
    assert extra(tmp_path, kind="convnet", **given) < 200


def trained(make: Callable[[Any], nn.Module]) -> tuple[BayesianNetwork, nn.Module]:
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale=0.3), 12)
    with isolated(0):
        return set_up(model, make(model))


@pytest.mark.parametrize("make", [autoguide.AutoStructured, partial(autoguide.AutoIAFNormal, hidden_dim=[8])])
def test_guides_without_quantiles_have_the_moments_of_their_draws(make: Callable[[Any], nn.Module]) -> None:
    chain = trained(make)
    locs, scales = moments(chain)
    draws = Posterior([chain]).draw(200)
    for name in locs:
        torch.testing.assert_close(locs[name], draws[name].mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(scales[name], draws[name].std(0), atol=1e-5, rtol=1e-4)
        assert (scales[name] > 0).all()


class LogNormalPrior(priors.Prior):
    def distribution(self, name: str, parameter: Tensor) -> Any:
        return LogNormal(torch.zeros_like(parameter), 1.0).to_event(parameter.dim())


def test_a_mean_is_no_median_where_weights_are_positive() -> None:
    model = BayesianNetwork(nn.Linear(3, 1), LogNormalPrior(), likelihoods.Normal(scale=0.3), 12)
    with isolated(0):
        chain = set_up(model, autoguide.AutoNormal(model, init_scale=1.0))
    draws = Posterior([chain]).draw(200)
    for name, mean in Posterior([chain]).mean_weights().items():
        torch.testing.assert_close(mean, draws[name].mean(0), atol=1e-5, rtol=1e-4)


def test_samples_of_each_chain_have_noise_of_their_own() -> None:
    one = linear_posterior()
    both = Posterior([*one.chains, *one.chains])
    x = normal(50, 3)
    noise = []
    for c in range(2):
        prediction = valued(both, x, draws=3, chains=[c], sample=True)
        assert prediction.samples is not None
        noise.append((prediction.samples - prediction.means).flatten())
    assert abs(float(torch.corrcoef(torch.stack(noise))[0, 1])) < 0.5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_whole_number_type(dtype: torch.dtype) -> None:
    posterior, x, y = class_posterior(), normal(5, 3), torch.tensor([0, 1, 2, 1, 0])
    expected = classified(posterior, x, y, draws=4).log_predictive
    torch.testing.assert_close(classified(posterior, x, y.to(dtype), draws=4).log_predictive, expected)


@pytest.mark.parametrize("draws", [1, 7])
def test_draws_that_are_all_alike_are_computed_once(draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale=0.3), 12)
    posterior = Posterior([(model, FlatGuide(model)), set_up(model, autoguide.AutoDelta(model))])
    x, y, calls = normal(5, 3), normal(5, 1), []
    apply = BayesianNetwork.apply_network

    def counted(self: BayesianNetwork, weights: Any, rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return apply(self, weights, rows)

    monkeypatch.setattr(BayesianNetwork, "apply_network", counted)
    found = posterior.predict(x, y, draws=draws, sample=True)
    assert calls.count(5) == 2  # one for each chain
    assert found.log_likelihood.shape == (2 * draws, 5)
    assert len(found.samples.unique(dim=0)) == 2 * draws
    each = [posterior.predict(x, y, draws=1, chains=[chain]).log_likelihood for chain in (0, 1)]
    torch.testing.assert_close(found.log_likelihood, torch.cat([one.expand(draws, 5) for one in each]))


def test_pixels_in_bytes_are_what_an_array_of_them_is() -> None:
    posterior = class_posterior()
    pixels = torch.arange(12, dtype=torch.uint8).reshape(4, 3)
    found = posterior.predict(pixels, draws=3).probs
    assert torch.equal(found, posterior.predict(pixels.numpy(), draws=3).probs)
