"""The network, likelihood, prior and guide of a table's fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyro.distributions as dist
import torch
from torch import nn

from pyrobbb._support import checks
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.likelihoods import (
    Categorical,
    HeteroscedasticNormal,
    Likelihood,
    Normal,
    NormalMixture,
    StudentT,
    in_units,
)
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.priors import FanInNormal, PerParameter, Prior

NOISES: Mapping[str, Callable[..., Likelihood]] = {
    "learned": Normal,
    "heteroscedastic": HeteroscedasticNormal,
    "student_t": StudentT,
    "mixture": partial(NormalMixture, 5, spread=1.0),
}


@dataclass(frozen=True)
class TableModel:
    """What `fit_table` chooses: all that makes its network, likelihood, prior and guide."""

    spec: Spec
    hidden: tuple[int, ...]
    noise: str
    gain: float = 8.0
    dtype: str = "float32"
    latent: bool = False  # whether the noise is drawn with the weights, as samplers need it

    @property
    def name(self) -> str:
        """What tells it from others that are tried, as the name of its folder."""
        units = "-".join(["hidden", *map(str, self.hidden)]) if self.hidden else "linear"
        other = f"gain-{self.gain:g}" if self.spec.task == "classification" else self.noise
        return f"{units}-{other}"

    def made(self, prior: Prior | None = None) -> BayesianNetwork:
        """A fresh model, under `prior` or `table_prior`."""
        likelihood = table_likelihood(self.spec, self.noise, self.latent)
        sizes = (*self.spec.features, *self.hidden)
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        network = nn.Sequential(*layers, nn.Linear(sizes[-1], likelihood.width(self.spec.outputs)))
        own = prior or table_prior(self.spec, f"{len(network) - 1}.*", self.gain)
        return BayesianNetwork(network.to(getattr(torch, self.dtype)), own, likelihood, N=self.spec.N)

    def guide(self, model: BayesianNetwork) -> MeanFieldNormal:
        """A fresh guide of a model."""
        return MeanFieldNormal(model, init_rho=-2.0 if self.spec.task == "classification" else -6.0)


def table_likelihood(spec: Spec, noise: str = "learned", latent: bool = False) -> Likelihood:
    """Class labels; or values in the units of the table, with noise that starts at their whole spread.

    Latent noise has the prior HalfNormal(1), in units of that spread.
    """
    checks.one_of("noise", noise, NOISES)
    if spec.task == "classification":
        return Categorical()
    one = torch.ones(spec.outputs if spec.outputs > 1 else ())  # for each target
    given: dict[str, Any] = {"scale": one, "learn_scale": True}
    if latent:
        given = {"scale": dist.HalfNormal(one).to_event(one.dim())}
    return in_units(NOISES[noise](**({} if noise == "heteroscedastic" else given)), spec)


def table_prior(spec: Spec, last: str, gain: float = 8.0) -> Prior:
    r""":math:`N(0, g^2 / \text{fan-in})`, so that the size of a layer's outputs does not depend on its width.

    For values g = 1, and 0.7 in the last layer, whose parameters match the pattern `last`: hidden units are
    as large as the standardised inputs, and the function has half the variance of the standardised targets,
    besides its bias. For classes g = 8 in the last layer, else `gain`: under narrower priors the mean field,
    whose every weight is noisy, cannot be as sure of a class as most tables allow
    (`python -m experiments.studies.own_tables`).
    """
    if spec.task == "classification":
        return PerParameter(default=FanInNormal(gain=gain), where={last: FanInNormal(gain=8.0)})
    return PerParameter(default=FanInNormal(gain=1.0), where={last: FanInNormal(gain=0.7)})
