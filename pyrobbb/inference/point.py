r"""The maximum a posteriori: one point, the default of which several make an ensemble.

.. math::
    \hat w = \arg\max_w \, \log P(D \mid w) + \log P(w)

by gradient descent on minibatches; restarts from several seeds, averaged as a mixture, are the deep ensembles
of Lakshminarayanan et al. 2017 (arXiv 1612.01474).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference.energy import Energy
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.inference.method import Inference, MakeGuide, refuse_guide, refuse_latents, refuse_options
from pyrobbb.initializers import Initial, network
from pyrobbb.svi import Step, Terms


@dataclass(frozen=True, kw_only=True)
class MAP(Inference):
    """The most probable weights.

    Args:
        init_loc: Where they start (`pyrobbb.initializers`).
    """

    init_loc: Initial = field(default=network, repr=False)

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        refuse_guide(self, guide, FlatGuide)
        refuse_options(self, model, options, ranks, "it descends the density at a point, without draws")
        refuse_latents(self, model)

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> FlatGuide:
        return FlatGuide(model, self.init_loc)

    def step(
        self,
        model: BayesianNetwork,
        guide: Any,
        optimizer: torch.optim.Optimizer,
        first: Split,
        **options: Any,
    ) -> Step:
        return DescentStep(model, guide, optimizer)


class DescentStep:
    """One step on F_i = -share log P(w) - log P(D_i | w) at the draw of a guide that has one parameter `loc`.

    Terms, gradients and update are those of `ReferenceStep` for a guide of point masses. `at` gives other
    coordinates than the guide's draw.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: FlatGuide,
        optimizer: torch.optim.Optimizer,
        at: Callable[[], Tensor] | None = None,
    ) -> None:
        self.at, self.optimizer = at or guide.draw, optimizer
        self.energy = Energy(model, guide, jacobian=False)

    def __call__(self, x: Tensor, y: Tensor, share: float, fraction: float) -> Terms:
        prior, nll = self.energy(self.at(), x, y)
        (share * prior + nll).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Terms(prior.detach(), nll.detach())
