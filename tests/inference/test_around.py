"""Laplace around what was fitted, or trained elsewhere."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_fakes import normal
from exact_models import NOISE, SIGMA, D, N, linear
from pyrobbb import likelihoods, priors
from pyrobbb._support.distribution_parts import univariate
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_table
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.draws import NoWeights
from pyrobbb.inference import MAP, Laplace
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import fit


def test_laplace_goes_around_any_fitted_posterior():
    model, data, precision, _ = linear()
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    point = fit(model, None, whole, inference=MAP(), epochs=2, progress=None)
    posterior = Laplace(structure="full").around(point, data)
    _, scale = posterior.chains[0][1].loc_and_scale()
    torch.testing.assert_close(
        scale["weight"][0], torch.linalg.inv(precision).diagonal().sqrt(), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(posterior.mean_weights()["weight"], point.mean_weights()["weight"])
    two = Posterior(point.chains * 2, chain_weights=(0.75, 0.25))
    assert Laplace(structure="full").around(two, data).chain_weights == (0.75, 0.25)
    of_whole = Laplace(structure="full").around(point, whole)
    assert torch.equal(of_whole.chains[0][1].log_evidence, posterior.chains[0][1].log_evidence)
    for rows, reason in ((data.head(N - 1), f"all N={N} training rows, got {N - 1}"), (data.x, "or a Split")):
        with pytest.raises(ValueError, match=reason):
            Laplace().around(point, rows)
    points = BayesianNetwork(nn.Linear(D, 1), priors.Deterministic(), likelihoods.Normal(0.1), N)
    for given in (Posterior([(points, NoWeights())]), points):
        with pytest.raises(ValueError, match="no Bayesian weights"):
            Laplace().around(given, data)
    table = from_table(
        {"a": data.x[:, 0].tolist(), "y": data.y[:, 0].tolist()}, target="y", task="regression"
    )
    of_table = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.1))
    assert Laplace().around(of_table, table).predict({"a": [0.5]}, draws=3).mean.shape == (1, 1)


@pytest.mark.parametrize(
    ("rows", "likelihood", "message"),
    [
        ((torch.ones(5, 2), torch.full((5,), 3)), likelihoods.Bernoulli(), "needs targets that are 0 or 1"),
        ((torch.ones(5, 2), torch.full((5, 1), 1.5)), likelihoods.Poisson(), "1.5 in row 0 is outside"),
        (
            (torch.ones(5, 2), torch.full((5, 1), math.nan)),
            likelihoods.Normal(1.0),
            "5 values are not finite, the first in row 0",
        ),
        ((torch.full((5, 2), math.nan), torch.ones(5, 1)), likelihoods.Normal(1.0), "x holds nan in row 0"),
        ((torch.ones(5, 2), torch.ones(4, 1)), likelihoods.Normal(1.0), "x and y differ in length"),
        (
            (torch.ones(5, 2), torch.ones(5, 1), torch.ones(6)),
            likelihoods.Normal(1.0),
            "weights must have the",
        ),
    ],
)
def test_laplace_goes_around_no_rows_that_a_fit_would_refuse(rows: Any, likelihood: Any, message: str):
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihood)
    with pytest.raises(ValueError, match=message):
        Laplace(structure="diagonal").around(model, Split(*rows))


def test_laplace_goes_around_a_network_that_was_trained_elsewhere():
    """Its weights are taken as they are, and the curvature there is that of the linear model."""
    _, data, precision, mean = linear()
    trained = nn.Linear(D, 1, bias=False)
    trained.weight.data.copy_(mean)
    model = BayesianNetwork(trained, priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE))
    posterior = Laplace(structure="full").around(model, data)
    torch.testing.assert_close(posterior.mean_weights()["weight"], trained.weight.detach())
    covariance = torch.linalg.inv(precision)
    _, scale = posterior.chains[0][1].loc_and_scale()
    torch.testing.assert_close(scale["weight"][0], covariance.diagonal().sqrt(), rtol=1e-4, atol=1e-6)
    prediction = posterior.predict(data.x, data.y, draws=2000)
    expected = ((data.x @ covariance) * data.x).sum(1).sqrt()  # five standard deviations of 2000 draws
    torch.testing.assert_close(prediction.means.std(0)[:, 0], expected, rtol=0.08, atol=0)


@pytest.mark.parametrize(("scale", "told"), [(None, True), (NOISE, False)])
def test_a_noise_that_laplace_keeps_is_told_where_residuals_are_another(
    scale: float | None, told: bool, caplog: Any
):
    """A noise that is to be learned starts at 1."""
    x = normal(200, D)
    net = nn.Linear(D, 1)
    y = net(x).detach() + NOISE * normal(200, 1, seed=1)
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=scale))
    Laplace(structure="full").around(model, Split(x, y))
    assert ("around keeps the noise as it is; give its scale=" in caplog.text) == told


def test_laplace_goes_around_a_network_with_the_rows_of_a_loader():
    _, data, *_ = linear()
    model = BayesianNetwork(nn.Linear(D, 1), priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE))
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=3, shuffle=True)
    found, wanted = (Laplace().around(model, rows).chains[0][1] for rows in (loader, data))
    assert torch.equal(found.log_evidence, wanted.log_evidence)


@pytest.mark.parametrize("scale", [0.05, 0.2, 3.0])
def test_a_scaled_prior_around_the_mode_is_that_prior_s_posterior(scale: float):
    """Of a linear model: the same mode, and the exact covariance and evidence of the other prior."""
    model, data, _, mean = linear()
    narrow = Laplace(structure="full", prior_scale=scale).guide(model.double(), None)
    prior, likelihood = priors.Normal(sigma=scale * SIGMA), likelihoods.Normal(scale=NOISE)
    other = BayesianNetwork(nn.Linear(D, 1, bias=False).double(), prior, likelihood, N)
    same = Laplace(structure="full").guide(other, None)
    for guide, of in ((narrow, model), (same, other)):
        guide.loc.data.copy_(mean)
        guide.fit(of, Split(data.x.double(), data.y.double()))
    torch.testing.assert_close(narrow.curvature.scale_tril, same.curvature.scale_tril)
    x, y = data.x.double(), data.y[:, 0].double()
    covariance = (scale * SIGMA) ** 2 * x @ x.T + NOISE**2 * torch.eye(N).double()
    exact = torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance).log_prob(y)
    torch.testing.assert_close(narrow.log_evidence, exact, rtol=1e-4, atol=1e-3)
    with pytest.raises(ValueError, match="prior_scale must be"):
        Laplace(prior_scale=0.0)


@pytest.mark.parametrize("by", ["gradient", "em"])
def test_laplace_goes_around_a_posterior_whose_prior_was_learned(by: str):
    _, data, *_ = linear()
    prior = priors.Learned(priors.Normal(), by=by)
    model = BayesianNetwork(nn.Linear(D, 1, bias=False), prior, likelihoods.Normal(NOISE), N)
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    learned = fit(model, MeanFieldNormal, whole, epochs=2, progress=None)
    _, scale = Laplace(structure="full").around(learned, data).chains[0][1].loc_and_scale()
    sigma = univariate(learned.model.prior_of("weight")).scale.detach().flatten()
    precision = data.x.T @ data.x / NOISE**2 + torch.eye(D) / sigma**2
    torch.testing.assert_close(
        scale["weight"][0], torch.linalg.inv(precision).diagonal().sqrt(), rtol=1e-4, atol=1e-6
    )
