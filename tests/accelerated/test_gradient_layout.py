"""Gradients lie in memory as their parameters do: fused optimisers on the CPU do not look at strides."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, Posterior, fit, likelihoods, priors
from pyrobbb._support.optim import add_gradient, set_gradient
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays
from pyrobbb.inference import MAP, SVI, Inference, NaturalGradient

ADAM = partial(torch.optim.Adam, lr=0.01)


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,io->...o", x, self.weight).tanh()


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 2, 2, 1).permute(0, 3, 1, 2)
        features: Tensor = self.layer(image).flatten(-3).tanh()
        return features.repeat_interleave(2, -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(2, 1, bias=False, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.reshape(-1, 2, 2)
        features: Tensor = self.layer(pairs, pairs, pairs)[0].flatten(-2)
        return torch.cat([features, features[..., :2]], -1)


LAYERS = {
    "linear": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh()),
    "einsum": Einsum,
    "channels last": ChannelsLast,
    "attention": Attention,
}


def ended(layer: str, inference: Inference, chains: int, fused: bool) -> Posterior:
    """After a few steps, of which only the optimiser differs in its form."""

    def make() -> BayesianNetwork:
        network = nn.Sequential(LAYERS[layer](), nn.Linear(6, 1))
        prior = priors.PerParameter(default=priors.Deterministic(), where={"1.*": priors.Normal()})
        return BayesianNetwork(network, prior, likelihoods.Normal(0.3))

    with isolated(1):
        x = torch.randn(40, 4)
        data = from_arrays(x, x[:, :1] * x[:, 1:2], task="regression")
        guide = None if isinstance(inference, MAP) else MeanFieldNormal
        optim = ADAM if fused else partial(ADAM, fused=False)
        options = {} if isinstance(inference, NaturalGradient) else {"fast": "eager"}
        return fit(
            make, guide, data, inference=inference, epochs=8, batch_size=20, chains=chains, optim=optim,
            progress=None, seed=3, **options,
        )  # fmt: skip


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("inference", [SVI(), MAP(), NaturalGradient()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_fused_form_of_an_optimiser_takes_the_same_steps(
    layer: str, inference: Inference, chains: int
) -> None:
    one, other = (ended(layer, inference, chains, fused) for fused in (True, False))
    for (a, _), (b, _) in zip(one.chains, other.chains, strict=True):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_a_gradient_is_left_as_its_parameter_lies() -> None:
    parameter, transposed = nn.Parameter(torch.zeros(2, 3)), torch.arange(6.0).reshape(3, 2).t()
    set_gradient(parameter, transposed)
    assert parameter.grad is not None
    assert parameter.grad.stride() == parameter.stride()
    torch.testing.assert_close(parameter.grad, transposed)
    add_gradient(parameter, transposed)
    assert parameter.grad.stride() == parameter.stride()
    torch.testing.assert_close(parameter.grad, 2 * transposed)
    set_gradient(parameter, None)
    assert parameter.grad is None
