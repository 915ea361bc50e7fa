"""p(y, w | x) for a small convolutional network on images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from pyrobbb._support import checks
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Prior


def convnet(
    spec: Spec,
    prior: Prior,
    likelihood: Likelihood,
    *,
    channels: Sequence[int] = (16, 32),
    hidden: int = 128,
) -> BayesianNetwork:
    """3x3 convolutions, each followed by ReLU and 2x2 max-pooling, then one hidden layer.

    Raises:
        ValueError: If the data are not images `(channels, height, width)`, or too small to pool.
    """
    if len(spec.features) != 3:
        raise ValueError(
            f"convnet needs images of shape (channels, height, width), got features {spec.features}; "
            f"for MNIST set data.flatten=false"
        )
    depth, height, width = spec.features
    layers: list[nn.Module] = []
    for count in checks.counts("channels", channels):
        layers += [nn.Conv2d(depth, count, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        depth, height, width = count, height // 2, width // 2
    if min(height, width) < 1:
        raise ValueError(f"images of {spec.features[1:]} are too small for {len(channels)} poolings")
    layers += [nn.Flatten(), nn.Linear(depth * height * width, checks.count("hidden", hidden)), nn.ReLU()]
    layers += [nn.Linear(hidden, likelihood.width(spec.outputs))]
    return BayesianNetwork(nn.Sequential(*layers), prior, likelihood, spec.N)
