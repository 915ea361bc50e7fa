"""A negative control: the Gluon notebook's network as printed, whose second hidden layer is never applied."""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.likelihoods import Likelihood
from pyrobbb.models.mlp import perceptron
from pyrobbb.priors import Prior


class LastHiddenUnapplied(nn.Sequential):
    """A perceptron that skips its last hidden layer: the notebook's loop runs over `L // 2 - 2` layers.

    Its weights are there, counted and pulled to the prior, but no output depends on them. All hidden
    layers must have the same width, or the skip would not fit.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(B, width)` of inputs `(B, features)`."""
        *applied, _unapplied, _activation, last = self
        for layer in applied:
            x = layer(x)
        return last(x)


def gluon_as_printed(
    spec: Spec, prior: Prior, likelihood: Likelihood, *, hidden: Sequence[int] = (400, 400)
) -> BayesianNetwork:
    """784-400-10 in effect, with all 478,410 weights of 784-400-400-10; `pyrobbb.models.mlp` is correct."""
    if len(hidden) < 2 or len(set(hidden)) > 1:
        raise ValueError(f"hidden must be two or more layers of one width, got {list(hidden)}")
    net = perceptron(prod(spec.features), hidden, likelihood.width(spec.outputs))
    return BayesianNetwork(LastHiddenUnapplied(*net), prior, likelihood, spec.N)
