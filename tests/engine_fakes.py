"""Small data, networks and models for the tests of the engine, and how a law is checked on made inputs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import settings
from torch import Tensor, nn

from guides.mean_field import MeanFieldNormal
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split

# Without a deadline, for the first call of a torch function takes long; the same examples each time.
law = settings(deadline=None, max_examples=50, derandomize=True)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers from a generator of their own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def classes(
    N: int = 12, *, features: int = 3, outputs: int = 3, validation: int = 0, seed: int = 0
) -> Dataset:
    """Class labels that depend on the inputs."""
    x = normal(N + validation, features, seed=seed)
    y = (x @ normal(features, outputs, seed=seed + 1)).argmax(-1)
    part = Split(x[N:], y[N:]) if validation else None
    return Dataset("classes", Split(x[:N], y[:N]), Spec(N, (features,), outputs, "classification"), part)


def values(
    N: int = 12, *, features: int = 3, outputs: int = 2, binary: bool = False, seed: int = 0
) -> Dataset:
    """Real (or 0/1) targets that depend on the inputs."""
    x = normal(N, features, seed=seed)
    y = x @ normal(features, outputs, seed=seed + 1) + 0.1 * normal(N, outputs, seed=seed + 2)
    y = (y > 0).float() if binary else y
    return Dataset("values", Split(x, y), Spec(N, (features,), outputs, "regression"))


def network(features: int = 3, hidden: int = 4, width: int = 3, seed: int = 0) -> nn.Sequential:
    """A perceptron with one hidden layer, its weights from a seed of their own."""
    net = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, width))
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * normal(*parameter.shape, seed=seed * 100 + i))
    return net


def classifier(data: Dataset, **options: Any) -> tuple[BayesianNetwork, MeanFieldNormal]:
    """A small network's model of class labels, and our mean-field guide for it."""
    net = network(data.spec.features[0], width=data.spec.outputs)
    model = BayesianNetwork(
        net, options.pop("prior", priors.ScaleMixture()), likelihoods.Categorical(), data.spec.N
    )
    return model, MeanFieldNormal(model, **options)
