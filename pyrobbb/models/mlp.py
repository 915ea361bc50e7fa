"""p(y, w | x) for a multilayer perceptron, the network of the paper's experiments."""

from collections.abc import Sequence

from torch import nn

from pyrobbb._support import checks
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Prior

ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "gelu": nn.GELU}


def perceptron(features: int, hidden: Sequence[int], width: int, activation: str = "relu") -> nn.Sequential:
    """The layers features -> hidden[0] -> ... -> width, with the activation between them."""
    checks.one_of("activation", activation, tuple(ACTIVATIONS))
    layers: list[nn.Module] = []
    for units in checks.counts("hidden", hidden):
        layers += [nn.Linear(features, units), ACTIVATIONS[activation]()]
        features = units
    return nn.Sequential(*layers, nn.Linear(features, width))


def mlp(
    spec: Spec,
    prior: Prior,
    likelihood: Likelihood,
    *,
    hidden: Sequence[int] = (400, 400),
    activation: str = "relu",
) -> BayesianNetwork:
    """The Pyro model of a perceptron with layers of `hidden` units, sized by the data's `spec`."""
    net = perceptron(spec.width, hidden, likelihood.width(spec.outputs), activation)
    if len(spec.features) > 1:
        net.insert(0, nn.Flatten())
    return BayesianNetwork(net, prior, likelihood, spec.N)
