"""Laplace's evidence against closed forms and integrals."""

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from exact_models import NOISE, SIGMA, D, N, linear
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference import Laplace


@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("centred", [False, True])
def test_the_evidence_of_a_linear_model_is_exact_wherever_it_is_taken(scale: float, centred: bool):
    """Also around weights that are no mode, and where the data leave a direction free."""
    _, data, *_ = linear()
    x = torch.cat([data.x, torch.zeros(N, 1)], 1).double()  # a dead input
    net = nn.Linear(D + 1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.5, 1.0, -1.0, 1.0]]))
    prior = priors.Centred(sigma=SIGMA) if centred else priors.Normal(sigma=SIGMA)
    model = BayesianNetwork(net, prior, likelihoods.Normal(scale=NOISE))
    posterior = Laplace(structure="full", prior_scale=scale).around(model, Split(x, data.y.double()))
    mean = (x @ net.weight[0] if centred else torch.zeros(N)).detach().double()
    covariance = (scale * SIGMA) ** 2 * x @ x.T + NOISE**2 * torch.eye(N).double()
    exact = torch.distributions.MultivariateNormal(mean, covariance).log_prob(data.y[:, 0].double())
    torch.testing.assert_close(posterior.chains[0][1].log_evidence, exact, rtol=1e-6, atol=1e-6)
    assert model.N is None, "the user's own"
    assert posterior.model.N == N


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize("weight", [-3.0, -1.0])
def test_counts_far_from_a_mode_are_told(structure: str, weight: float, caplog: Any):
    """A step of the diagonal overshoots by many powers of ten under a logarithmic link."""
    x = 1 + torch.rand(100, 2)
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(sigma=10.0), likelihoods.Poisson())
    with torch.no_grad():
        for parameter in model.initial().values():
            parameter.fill_(weight)
    found = Laplace(structure=structure).around(model, Split(x, torch.full((100, 1), 20.0)))
    assert "not at a mode of log p(D, w)" in caplog.text
    assert found.chains[0][1].log_evidence.isfinite()


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize(("sds", "told"), [(6.0, True), (1.0, False)])
def test_weights_off_the_mode_are_told_where_blocks_do_not_see_it(
    structure: str, sds: float, told: bool, caplog: Any
):
    """Along the weakest direction, where weight and bias are correlated; of rows that count 1000 times too,
    whose log-likelihood is large."""
    x = torch.linspace(1, 2, 60).double()[:, None]
    y, design = 2 * x - 1 + 0.5 * torch.sin(40 * x), torch.cat([x, torch.ones_like(x)], 1)
    for count in (1.0, 1000.0):
        precision = count / 0.25 * design.T @ design + torch.eye(2)
        values, vectors = torch.linalg.eigh(precision)
        at = torch.linalg.solve(precision, count / 0.25 * design.T @ y)[:, 0]
        at = at + sds * vectors[:, 0] / values[0].sqrt()
        net = nn.Linear(1, 1).double()
        with torch.no_grad():
            net.weight.fill_(at[0])
            net.bias.fill_(at[1])
        caplog.clear()
        rows = Split(x, y, torch.full((60,), count))
        Laplace(structure=structure).around(
            BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5)), rows
        )
        assert ("not at a mode" in caplog.text) == told
        if found := re.search(r"gain ([\d.]+) nats", caplog.text):  # by conjugate steps, of sds^2 / 2
            assert 0.8 * sds**2 / 2 < float(found[1]) <= sds**2 / 2


@pytest.mark.parametrize(
    ("inputs", "dead", "sds", "told"), [(60, 0, 0.5, False), (60, 0, 1.0, True), (4, 60, 1.5, True)]
)
def test_a_gain_is_measured_by_the_number_of_weights_that_the_data_determine(
    inputs: int, dead: int, sds: float, told: bool, caplog: Any
):
    """The gain from s standard deviations in d weights is d s^2 / 2: of 60, 7.5 nats are less than 0.2 each;
    of 4, which 60 weights of dead inputs do not add to, 4.5 nats are more than 3."""
    x = torch.cat([100 * torch.eye(inputs), torch.zeros(inputs, dead)], 1).double()
    y = x.sum(1, keepdim=True)
    precision = (x.T @ x + torch.eye(inputs + dead)).diagonal()
    at = (x.T @ y)[:, 0] / precision
    at[:inputs] += sds / precision[:inputs].sqrt()
    net = nn.Linear(inputs + dead, 1, bias=False).double()
    net.weight.data.copy_(at[None])
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(1.0))
    Laplace(structure="full").around(model, Split(x, y))
    assert ("not at a mode" in caplog.text) == told


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_evidence_does_not_turn_on_a_padding_row(structure: str):
    def evidence(padding: float) -> float:
        table = nn.Embedding(3, 1, padding_idx=0).double()
        with torch.no_grad():
            table.weight.copy_(torch.tensor([[padding], [1.0], [-1.0]]))
        x = torch.tensor([[1], [2]] * 10)
        y = table(x).detach()[:, 0] + 0.1
        net = nn.Sequential(table, nn.Flatten())
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5), 20)
        guide = Laplace(structure=structure).around(model, Split(x, y)).chains[0][1]
        return float(guide.log_evidence)

    assert evidence(5.0) == pytest.approx(evidence(0.0), abs=1e-6)


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_the_evidence_of_labels_is_that_of_probabilities_far_from_a_mode(structure: str, caplog: Any):
    """Steps along the data's slope, measured by part of the curvature, had promised thousands of nats."""
    z = torch.randn(500, 1)
    x, y = z + 0.1 * torch.randn(500, 50), (z[:, 0] + 0.3 * torch.randn(500) > 0).long()
    net = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 2))  # not trained
    model = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Categorical())
    posterior = Laplace(structure=structure).around(model, Split(x, y))
    assert posterior.chains[0][1].log_evidence < 0
    assert "not at a mode of log p(D, w): steps towards one gain" in caplog.text


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize("scale", [0.001, 0.3, 2.0])
@pytest.mark.parametrize("weight", [1.5, 6.0])
def test_the_evidence_of_labels_under_a_scaled_prior_is_the_integral(
    structure: str, scale: float, weight: float
):
    """Near the mode under the prior that found it and elsewhere, where one quadratic tells neither."""
    x = torch.linspace(-2, 2, 40)[:, None]
    y = (x[:, 0] + 0.5 * torch.cos(20 * x[:, 0]) > 0).long()
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, weight)
    model = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Bernoulli())
    around = Laplace(structure=structure, prior_scale=scale).around(model, Split(x, y))
    z = torch.linspace(-8, 8, 2001).double()
    signs = 2 * y.double() - 1
    scores = nn.functional.logsigmoid(signs * x[:, 0].double() * scale * z[:, None]).sum(1)
    exact = (scores - z.square() / 2).logsumexp(0) + math.log(16 / 2000) - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(around.chains[0][1].log_evidence.double(), exact, rtol=0, atol=2.0)
