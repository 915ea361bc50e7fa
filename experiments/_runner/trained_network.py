"""`model=trained`: a network that is trained already, some of whose weights become Bayesian.

It lies apart from `reopen`, which no `config.yaml` may call, since it can be told to trust a folder.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from experiments._runner.build import ConfigError
from experiments._runner.folder import read_config
from experiments._runner.reopen import reopen
from experiments._runner.trust import strangers
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.from_trained import with_prior
from pyrobbb.functional_network import network_with
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Prior
from pyrobbb.weight_sites import owner_of


class Trained:
    """Makes the model of a run from a trained network, as `pyrobbb.partly_bayesian` does, under any prior.

    Args:
        network: The network, or the folder of a finished run, whose network is taken with the mean weights
            of its first chain. Only parts of this library are called, as its `config.yaml` names them. The
            folder must stay where it is: the new run is opened with it.
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
    if strangers(read_config(run / "config.yaml")):
        raise ConfigError(
            f"{run} has parts of your own, which are not called from here: write a function that returns its "
            f"network, network_with(posterior.model, posterior.mean_weights()) of reopen({str(run)!r}, "
            f"trust=True).posterior, and name that: model.network={{_target_: my_parts.network}}"
        )
    opened = reopen(run)
    if not (run / "metrics.json").exists():
        raise ConfigError(f"{run} is not finished: it ended in epoch {opened.epoch} of {opened.run.epochs}")
    model = opened.posterior.model
    network = network_with(model, opened.posterior.mean_weights())
    for path, value in model.frozen.items():  # buffers there, and parameters to choose from here
        module, name = owner_of(network, path)
        delattr(module, name)
        module.register_parameter(name, nn.Parameter(value.clone(), requires_grad=False))
    return network.cpu()
