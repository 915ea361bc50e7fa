"""A multilayer perceptron for point estimates, with or without dropout: the paper's baselines."""

from collections.abc import Sequence

from torch import nn

from pyrobbb._support import checks
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.likelihoods import Likelihood
from pyrobbb.models.mlp import perceptron
from pyrobbb.priors import Prior


def plain_mlp(
    spec: Spec,
    prior: Prior,
    likelihood: Likelihood,
    *,
    hidden: Sequence[int] = (400, 400),
    activation: str = "relu",
    dropout: float = 0.0,
    input_dropout: float = 0.0,
) -> BayesianNetwork:
    """A perceptron for the data's `spec`, with dropout before every layer but the first.

    It starts where a Bayesian one with `pyrobbb.initializers.kaiming` does: weights from N(0, 2 / fan-in),
    biases 0, so that what differs in the end differs by the training.

    Args:
        spec: Of the data.
        prior: `priors.Deterministic()`, for point estimates of all weights.
        likelihood: What y is, given the network's output.
        hidden: Units of each hidden layer.
        activation: As for `pyrobbb.models.mlp`.
        dropout: Share of the hidden units dropped in training.
        input_dropout: Share of the inputs dropped in training.

    Raises:
        ValueError: A share outside [0, 1].
    """
    checks.between("dropout", dropout, 0, 1)
    checks.between("input_dropout", input_dropout, 0, 1)
    layers: list[nn.Module] = [nn.Flatten()] if len(spec.features) > 1 else []
    if input_dropout:
        layers.append(nn.Dropout(input_dropout))
    for layer in perceptron(spec.width, hidden, likelihood.width(spec.outputs), activation):
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        layers.append(layer)
        if dropout and not isinstance(layer, nn.Linear):
            layers.append(nn.Dropout(dropout))
    return BayesianNetwork(nn.Sequential(*layers), prior, likelihood, spec.N)
