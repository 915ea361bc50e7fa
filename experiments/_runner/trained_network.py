"""`model=trained`: a network that is trained already, some of whose weights become Bayesian.

It lies apart from `reopen`, whose functions no `config.yaml` may call: they may be told to trust.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from experiments._runner.build import ConfigError
from experiments._runner.reopen import reopen
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.from_trained import with_prior
from pyrobbb.functional_network import network_with
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Prior


class Trained:
    """Makes the model of a run from a trained network, as `pyrobbb.partly_bayesian` does, under any prior.

    Args:
        network: The network, or the folder of a finished run, for its network with the mean weights of its
            first chain. Only parts of this library are called, as the folder's `config.yaml` names them.
        where: Shell patterns of the names of the parameters that become Bayesian; by default all.
        rest: `frozen`: the other parameters stay as they are; `trained`: they are trained further, as points.

    Raises:
        ConfigError: As for `reopen`, or if the run has not finished.
        CheckpointError: As for `reopen`.
        ValueError: When called, as for `pyrobbb.partly_bayesian`.
    """

    def __init__(
        self, network: nn.Module | str, where: str | Sequence[str] = "*", rest: str = "frozen"
    ) -> None:
        self.network = network_of(Path(network)) if isinstance(network, str) else network
        self.where, self.rest = where, rest

    def __call__(self, spec: Spec, prior: Prior, likelihood: Likelihood) -> BayesianNetwork:
        return with_prior(self.network, self.where, prior, likelihood, rest=self.rest, N=spec.N)


def network_of(run: Path) -> nn.Module:
    """The network that a finished run has trained, with its mean weights."""
    opened = reopen(run)
    if not (run / "metrics.json").exists():
        raise ConfigError(f"{run} is not finished: it ended in epoch {opened.epoch} of {opened.run.epochs}")
    return network_with(opened.posterior.model, opened.posterior.mean_weights()).cpu()
