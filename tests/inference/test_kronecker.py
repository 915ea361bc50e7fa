"""The Kronecker factors against moments, and what they do not describe."""

import pytest
import torch
from torch import Tensor, nn

from exact_models import NOISE, D, N, laplace, linear, softmax
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference import Laplace
from pyrobbb.inference.laplace import LaplaceGuide


def test_kronecker_factors_are_the_moments_of_inputs_and_gradients():
    model, data = softmax()
    guide = laplace(model, data, structure="kronecker", layers="last")
    w = model.initial()
    hidden = torch.tanh(nn.functional.linear(data.x, w["0.weight"], w["0.bias"]))
    logits = nn.functional.linear(hidden, w["2.weight"], w["2.bias"])
    p = logits.softmax(-1)
    B = (torch.diag_embed(p) - p[:, :, None] * p[:, None]).sum(0)
    A = hidden.T @ hidden / len(data)
    weight = torch.linalg.inv(torch.kron(B, A) + torch.eye(12) / 0.8**2)
    bias = torch.linalg.inv(B + torch.eye(3) / 0.8**2)
    expected = torch.cat([weight.diagonal(), bias.diagonal()])
    torch.testing.assert_close(guide.curvature.variance(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        guide.curvature.log_det(), -torch.logdet(weight) - torch.logdet(bias), rtol=1e-4, atol=1e-3
    )


def test_kronecker_factors_are_finite_where_most_units_are_dead():
    """Rows of zeros in between gave NaN for about one in fifteen of these in single precision."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(691, 50, generator=draw)
    for seed in range(60):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.ReLU(), nn.Linear(50, 1))
        model = BayesianNetwork(body, priors.Normal(), likelihoods.Normal(scale=0.1), N=len(x))
        alive = torch.rand(50, generator=draw) < 0.16
        guide = LaplaceGuide(Laplace(), model)
        guide.fit(model, Split(x * alive, x[:, :1]))
        assert guide.draw().isfinite().all(), seed
        assert guide.log_evidence.isfinite()


class _Tied(nn.Linear):
    """An autoencoder whose decoder is the encoder's transpose."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.weight


class _Inner(nn.Linear):
    """A layer for all places of all rows at once."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, 1)).reshape(len(x), -1)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (_Tied(D, 2, bias=False), "each parameter used once, .* 'weight' is used in matmul; take 'diagonal'"),
        (_Inner(1, 1), f"that of 'weight' is called on {N * D} instead of {N}; take 'diagonal'"),
    ],
)
def test_kronecker_factors_of_what_they_do_not_describe_are_refused(network: nn.Module, message: str):
    _, data, _, _ = linear()
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(NOISE), N)
    with pytest.raises(ValueError, match=message):
        laplace(model, Split(data.x, data.x), structure="kronecker")


def test_kronecker_counts_rows_that_no_weights_move():
    """Of one output the product is exact: a precision of sum x^2 / sigma^2 + 1, also where a row is 0."""
    model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.Normal(1.0))
    x = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    guide = Laplace(structure="kronecker").around(model, Split(x, torch.ones(4, 1))).chains[0][1]
    assert guide.loc_and_scale()[1]["weight"].item() == pytest.approx(0.5**0.5)
