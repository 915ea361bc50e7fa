"""The matrix-normal guide: its density, its moments, and a posterior that it holds exactly."""

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from pyrobbb import BayesianNetwork, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bandits import MeanFieldLearner
from pyrobbb.initializers import FanInRho, Uniform
from pyrobbb.matrix_normal import MatrixNormal, RowsAndColumns
from pyrobbb.posterior import moments

N, FEATURES, OUTPUTS = 12, 3, 2


def model(network: nn.Module | None = None) -> BayesianNetwork:
    with isolated(1):
        network = network or nn.Linear(FEATURES, OUTPUTS, bias=False)
    return BayesianNetwork(network.double(), priors.Normal(sigma=0.7), likelihoods.Normal(0.3), N)


def moved(guide: MatrixNormal) -> MatrixNormal:
    """The guide with factors that are not those of its start."""
    with isolated(2), torch.no_grad():
        guide()
        for name in ("L", "K", "log_tau"):
            getattr(guide, name).normal_(std=0.5)
    return guide


def kronecker(A: Tensor, B: Tensor) -> Tensor:
    """The covariance of the numbers of W = M + A Z B^T, row after row."""
    return torch.kron(A @ A.mT, B @ B.mT)


def test_its_density_is_that_of_a_multivariate_normal() -> None:
    with isolated(0):
        M, W = torch.randn(2, 2, 3, dtype=torch.float64)
        A, B = (
            torch.randn(n, n).double().tril(-1) + torch.diag(torch.rand(n).double() + 0.5) for n in (2, 3)
        )
        found = dist.TransformedDistribution(
            dist.Normal(torch.zeros_like(M), 1.0).to_event(2), [RowsAndColumns(M, A, B)]
        )
        batch = found.rsample(torch.Size([4]))
    expected = dist.MultivariateNormal(M.flatten(), kronecker(A, B))
    torch.testing.assert_close(found.log_prob(W), expected.log_prob(W.flatten()))
    torch.testing.assert_close(found.log_prob(batch), expected.log_prob(batch.flatten(1)))
    again = batch.clone()  # not the draw itself: by the inverse
    torch.testing.assert_close(found.log_prob(again), expected.log_prob(batch.flatten(1)))


def test_it_starts_as_a_mean_field() -> None:
    network = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, OUTPUTS))
    guide = MatrixNormal(model(network), init_rho=FanInRho(0.5))
    guide()
    _, scales = guide.loc_and_scale()
    for name, expected in {"0.weight": 0.5 / FEATURES**0.5, "2.weight": 0.5 / 4**0.5}.items():
        torch.testing.assert_close(scales[name], torch.full_like(scales[name], expected))
    assert guide.sigma.shape == guide.loc.shape
    assert guide.loc.dtype == guide.K.dtype == torch.float64


def test_each_weights_moments_are_those_of_the_multivariate_normal() -> None:
    """Of a linear layer, of a convolution, whose other axes are columns, and of biases."""
    network = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(6, 1))
    made = model(network)
    guide = moved(MatrixNormal(made, init_rho=Uniform(-1.0, 1.0)))
    locs, scales = moments((made, guide))
    for name, (A, B) in guide._factors(guide._rows()).items():
        shape = made.initial()[name].shape
        assert locs[name].shape == shape
        torch.testing.assert_close(scales[name].flatten() ** 2, kronecker(A, B).diagonal())
    with isolated(3), torch.no_grad():
        draws = torch.stack([guide()["0.weight"] for _ in range(2000)])
    assert draws.shape[1:] == (3, 2, 2)
    centred = (draws - locs["0.weight"]).flatten(1)
    found, expected = (
        centred.T @ centred / len(draws),
        kronecker(*guide._factors(guide._rows())["0.weight"]).detach(),
    )
    sd = (expected.diagonal().outer(expected.diagonal()) + expected**2).div(len(draws)).sqrt()
    assert float(((found - expected) / sd).abs().max()) < 6  # of 144 numbers


def test_it_holds_the_posterior_of_a_linear_model_exactly() -> None:
    """Several outputs share the inputs: given it, log P(y, w) - log q(w) is the evidence at every draw."""
    made = model()
    with isolated(4):
        x, y = torch.randn(N, FEATURES).double(), torch.randn(N, OUTPUTS).double()
    noise, prior = 0.3**2, 0.7**2
    covariance = torch.linalg.inv(x.T @ x / noise + torch.eye(FEATURES).double() / prior)
    guide = MatrixNormal(made)
    guide()
    B = torch.linalg.cholesky(covariance)
    tau = B.diagonal()
    with torch.no_grad():
        guide.loc.copy_((covariance @ x.T @ y / noise).T.flatten())
        guide.rho.copy_(torch.ones(OUTPUTS).double().expm1().log())  # sigma = 1
        guide.log_tau.copy_(tau.log())
        guide.K.copy_((B / tau[:, None]).flatten())
    kernel = x @ x.T * prior + torch.eye(N).double() * noise
    evidence = dist.MultivariateNormal(torch.zeros(N).double(), kernel).log_prob(y.T).sum()
    with isolated(5):
        for _ in range(3):
            q = poutine.trace(guide).get_trace(x, y)
            p = poutine.trace(poutine.replay(made, q)).get_trace(x, y)
            torch.testing.assert_close(p.log_prob_sum() - q.log_prob_sum(), evidence)


def test_bandits_refuse_it() -> None:
    """Their updates are those of a mean field."""
    made = BayesianNetwork(nn.Linear(FEATURES, 1), priors.Normal(), likelihoods.Normal(0.3), N)
    with pytest.raises(ValueError, match="flat `loc` and `rho`, as MeanFieldNormal"):
        MeanFieldLearner(made, [MatrixNormal(made)], [0], width=FEATURES, compiled=False)
