"""One draw of the posterior as a plain network, and predictions of large networks, draw by draw."""

from functools import partial

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.evaluation.conformal import calibrate
from pyrobbb.likelihoods import Categorical
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import LabelPrediction
from pyrobbb.priors import Deterministic, Normal, PerParameter


@pytest.fixture
def posterior() -> Posterior:
    with isolated(0):
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))
        prior = PerParameter(default=Normal(), where={"0.bias": Deterministic()})
        model = BayesianNetwork(net, prior, Categorical(), 20)
        guide = MeanFieldNormal(model, init_rho=0.0)
        guide(torch.randn(2, 4), torch.tensor([0, 1]))
    model.eval()
    return Posterior([(model, guide)])


def test_a_function_draw_is_a_plain_network(posterior: Posterior) -> None:
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    network = posterior.function(2, seed=5)
    assert type(network) is nn.Sequential
    assert {name for name, _ in network.named_parameters()} == {"0.weight", "0.bias", "3.weight", "3.bias"}
    *_, weights = posterior.each_draw(3, seed=5)
    expected = posterior.model.apply_network(weights, x)
    torch.testing.assert_close(network(x), expected)
    torch.testing.assert_close(network(x), network(x))  # one function, not a new draw
    assert not torch.equal(network(x), posterior.function(1, seed=5)(x))
    program = torch.export.export(network, (x,))
    torch.testing.assert_close(program.module()(x), expected)


def test_a_function_draw_leaves_the_posterior_alone(posterior: Posterior) -> None:
    before = posterior.draw(1)
    with torch.no_grad():
        for parameter in posterior.function().parameters():
            parameter.zero_()
    for name, value in posterior.draw(1).items():
        assert torch.equal(value, before[name])
    assert not torch.equal(posterior.model.network[0].bias, torch.zeros(5))


def test_large_networks_predict_as_small_ones(posterior: Posterior, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    small = posterior.predict(x, y, draws=6, rows=4)
    monkeypatch.setattr("pyrobbb._support.chunking.LARGE", 1)
    large = posterior.predict(x, y, draws=6, rows=4)
    torch.testing.assert_close(large.probs, small.probs)
    torch.testing.assert_close(large.expected_entropy, small.expected_entropy)
    torch.testing.assert_close(large.log_likelihood, small.log_likelihood)


class WithoutTheLast(Categorical):
    """Rules the last class out."""

    def forward(self, output: Tensor) -> dist.TorchDistribution:
        last = torch.arange(output.shape[-1]) == output.shape[-1] - 1
        return dist.Categorical(logits=output.masked_fill(last, -torch.inf))


def test_entropies_of_classes_that_are_ruled_out() -> None:
    with isolated(0):
        model = BayesianNetwork(nn.Linear(4, 3), Normal(), WithoutTheLast(), 20)
        guide = MeanFieldNormal(model, init_rho=0.0)
        guide()
    posterior = Posterior([(model, guide)])
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    found = posterior.predict(x, draws=6)
    two = model.apply_network(posterior.draw(6), x)[..., :2].softmax(-1)
    expected = -(two * two.log()).sum(-1).mean(0)
    torch.testing.assert_close(found.expected_entropy, expected)
    torch.testing.assert_close(found.mutual_information, found.predictive_entropy - expected)
    y, counts = torch.arange(7) % 2, torch.tensor([2, 0, 1, 3, 0, 1, 1])
    repeated = posterior.predict(x.repeat_interleave(counts, 0), draws=6)
    assert found.metrics(y, counts) == pytest.approx(
        repeated.metrics(y.repeat_interleave(counts)), rel=1e-5, abs=1e-7
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(1.7, r"which are whole numbers, got 1\.7"), (3.0, r"from 0 to 2, got 0\.\.3"), (-1.0, r"got -1\.\.2")],
)
@pytest.mark.parametrize("score", ["metrics", "losses", "calibrate"])
def test_what_is_no_label_is_refused(posterior: Posterior, score: str, wrong: float, message: str) -> None:
    prediction, y = posterior.predict(torch.randn(9, 4), draws=2), torch.arange(9.0) % 3
    act = {
        "metrics": prediction.metrics,
        "losses": prediction.losses,
        "calibrate": partial(calibrate, prediction),
    }
    act[score](y)
    y[4] = wrong
    with pytest.raises(ValueError, match=f"y must hold labels.*{message}"):
        act[score](y)


@pytest.mark.parametrize("shape", [(5,), (1, 9), ()])
def test_labels_of_other_rows_are_refused(posterior: Posterior, shape: tuple[int, ...]) -> None:
    prediction = posterior.predict(torch.randn(9, 4), draws=2)
    with pytest.raises(ValueError, match=r"y must have the shape of the prediction, \(9,\), got \("):
        prediction.losses(torch.zeros(shape, dtype=torch.long))


class Sharp(Categorical):
    """Logits so far apart that single precision rounds probabilities to 0."""

    def forward(self, output: Tensor) -> dist.TorchDistribution:
        return super().forward(300 * output)


def test_the_nll_of_classes_is_of_the_log_likelihood_that_predict_was_asked_for() -> None:
    with isolated(0):
        model = BayesianNetwork(nn.Linear(4, 3), Normal(), Sharp(), 20)
        guide = MeanFieldNormal(model, init_rho=0.0)
        guide()
        x, y = torch.randn(50, 4), torch.arange(50) % 3
    posterior = Posterior([(model, guide)])
    given = posterior.predict(x, y, draws=1)
    (weights,) = posterior.each_draw(1)
    exact = nn.functional.cross_entropy(300 * model.apply_network(weights, x).double(), y)
    assert exact > 200
    assert given.metrics(y)["nll"] == pytest.approx(float(exact), rel=1e-5)
    assert posterior.predict(x, draws=1).metrics(y)["nll"] < 90  # as far as probabilities tell
    other = (y + 1) % 3  # whose log-likelihood nobody asked for
    assert given.metrics(other)["nll"] == posterior.predict(x, draws=1).metrics(other)["nll"]


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_the_nll_of_a_single_label_does_not_depend_on_its_shape(shape: tuple[int, ...]) -> None:
    log_likelihood = torch.tensor([[-100.0, -300.0]])  # beyond what probabilities in single precision hold
    y = torch.tensor([0, 1]).reshape(shape)
    probs, nothing = torch.eye(2).flip(0), torch.zeros(2)
    given = LabelPrediction(
        log_likelihood, None, y=y, probs=probs, predictive_entropy=nothing, expected_entropy=nothing
    )
    assert given.metrics(y)["nll"] == 200
