"""p(y, w | x) for a small convolutional network on images."""

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
    kernel: int = 3,
    padded: bool = True,
    hidden: int = 128,
) -> BayesianNetwork:
    """Convolutions, each followed by ReLU and 2x2 max-pooling, then one hidden layer.

    Args:
        spec: What the data are.
        prior: Over the weights.
        likelihood: Of the targets.
        channels: Of each convolution.
        kernel: Its height and width, an odd number.
        padded: With zeros around, so that a convolution keeps height and width.
        hidden: Units of the hidden layer.

    Raises:
        ValueError: If the data are not images `(channels, height, width)`, or too small to pool.
    """
    if len(spec.features) != 3:
        raise ValueError(
            f"convnet needs images of shape (channels, height, width), got features {spec.features}; "
            f"for MNIST set data.flatten=false"
        )
    depth, height, width = spec.features
    if checks.count("kernel", kernel) % 2 == 0:
        raise ValueError(f"kernel must be odd, got {kernel}")
    around = kernel // 2 if padded else 0
    layers: list[nn.Module] = []
    for count in checks.counts("channels", channels):
        layers += [nn.Conv2d(depth, count, kernel, padding=around), nn.ReLU(), nn.MaxPool2d(2)]
        depth = count
        height, width = ((side + 2 * around - kernel + 1) // 2 for side in (height, width))
    if min(height, width) < 1:
        raise ValueError(f"images of {spec.features[1:]} are too small for {len(channels)} convolutions")
    layers += [nn.Flatten(), nn.Linear(depth * height * width, checks.count("hidden", hidden)), nn.ReLU()]
    layers += [nn.Linear(hidden, likelihood.width(spec.outputs))]
    return BayesianNetwork(nn.Sequential(*layers), prior, likelihood, spec.N)
