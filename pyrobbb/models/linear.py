"""p(y, w | x) for a linear map: with a normal prior and likelihood its posterior is known exactly."""

from torch import nn

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Prior


def linear(spec: Spec, prior: Prior, likelihood: Likelihood, *, bias: bool = True) -> BayesianNetwork:
    """The Pyro model y ~ likelihood(W x + b), the analytic oracle of the tests."""
    net: nn.Module = nn.Linear(spec.width, likelihood.width(spec.outputs), bias=bias)
    if len(spec.features) > 1:
        net = nn.Sequential(nn.Flatten(), net)
    return BayesianNetwork(net, prior, likelihood, spec.N)
