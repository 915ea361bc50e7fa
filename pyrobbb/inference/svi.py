r"""Stochastic variational inference, the default: the guide that minimises the free energy.

.. math::
    F(\theta) = KL[q(w \mid \theta) \,\|\, P(w)] - E_q[\log P(D \mid w)]

by gradient descent (Blundell et al. 2015, eq. 1; on a minibatch eq. 9), with any guide of Pyro's or ours.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from pyrobbb.accelerated import make_step
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.inference.method import Inference, MakeGuide
from pyrobbb.svi import Step


@dataclass(frozen=True, kw_only=True)
class SVI(Inference):
    """Gradient descent on the free energy of the user's guide."""

    bounds = True
    descends = True

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> nn.Module:
        if make is None:
            raise ValueError("SVI needs a guide, such as MeanFieldNormal; got None")
        return make(model)

    def step(self, *args: Any, **kwargs: Any) -> Step:
        return make_step(*args, **kwargs)
