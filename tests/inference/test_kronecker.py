"""The Kronecker factors against moments, and what they do not describe."""

import pytest
import torch
from torch import Tensor, nn

from engine_fakes import normal
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


class _Keywords(nn.Conv2d):
    """Names the arguments of the function that it calls."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(
            input=x, weight=self.weight, bias=self.bias, stride=2, padding=1, dilation=2
        )


@pytest.mark.parametrize("layer", [nn.Conv2d, _Keywords, nn.Linear])
def test_kronecker_factors_of_several_positions_are_sums_of_inputs_and_means_of_gradients(
    layer: type[nn.Module],
):
    """As Grosse and Martens 2016: of a convolution, and of a linear map along a sequence."""
    convolution = issubclass(layer, nn.Conv2d)
    if convolution:
        x, first = normal(6, 2, 4, 4), layer(2, 3, 2, stride=2, padding=1, dilation=2)
        padded = nn.functional.pad(x, (1, 1, 1, 1))
        a = [padded[:, :, i : i + 3 : 2, j : j + 3 : 2].flatten(1) for i in (0, 2) for j in (0, 2)]
    else:
        x, first = normal(6, 4, 5), layer(5, 3)
        a = [*x.unbind(1)]
    net = nn.Sequential(first, nn.Flatten(), nn.Linear(12, 1))
    net[2].weight.data.copy_(normal(1, 12, seed=1))
    model = BayesianNetwork(net, priors.Normal(sigma=0.8), likelihoods.Normal(NOISE), 6)
    guide = laplace(model, Split(x, normal(6, 1, seed=2)), structure="kronecker")
    back = net[2].weight.detach()
    g = back.view(3, 4).T if convolution else back.view(4, 3)  # of each position
    A = sum(part.T @ part for part in a) / 6
    B = 6 * g.T @ g / NOISE**2 / 4
    covariance = torch.linalg.inv(torch.kron(B, A) + torch.eye(3 * len(A)) / 0.8**2)
    of_bias = torch.linalg.inv(6 * torch.outer(g.sum(0), g.sum(0)) / NOISE**2 + torch.eye(3) / 0.8**2)
    _, scale = guide.loc_and_scale()
    torch.testing.assert_close(scale["0.weight"].flatten() ** 2, covariance.diagonal(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scale["0.bias"] ** 2, of_bias.diagonal(), rtol=1e-4, atol=1e-6)


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


class _Twice(nn.Linear):
    """A layer that is applied to its own output."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x))


class _Never(nn.Linear):
    """Its bias is left out."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (_Twice(D, D, bias=False), "each parameter used once, .* 'weight' is used 2 times so; take"),
        (_Never(D, D), "each parameter used once, .* 'bias' is used 0 times so; take"),
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
