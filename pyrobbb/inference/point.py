r"""The maximum a posteriori: one point; several restarts make a deep ensemble.

.. math::
    \hat w = \arg\max_w \, \log P(D \mid w) + \log P(w)

by gradient descent on minibatches. An ensemble averages restarts from several seeds as a mixture
(Lakshminarayanan et al. 2017, arXiv 1612.01474).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pyrobbb._support.distribution_parts import support_of
from pyrobbb._support.optim import trained
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb._support.text import short
from pyrobbb.accelerated.compilation_cost import POINT, Prepare, fastest, ways
from pyrobbb.accelerated.dispatch import as_graph
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference.energy import Energy
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.inference.method import Inference, MakeGuide, OwnStep
from pyrobbb.initializers import Initial, from_network
from pyrobbb.svi import Step


class DescentStep(ProgramStep):
    """One step on F_i = -share log P(w) - log P(D_i | w) at the `loc` of a guide that has no other parameter.

    Terms, gradients and update are those of `ReferenceStep` for a guide of point masses. There is no noise
    but what `guide.at` may draw.

    Args:
        method: Its options.
        model: The model.
        guide: A guide that holds the point.
        optimizer: Over the parameters of both.
        steps: How many will be taken in all.
        batch: A batch `(x, y)` of the usual size.
        prepare: What to do with the program for it; see `ProgramStep`.
    """

    replayable: ClassVar[bool] = True  # as a CUDA graph, which repeats nothing but operations on tensors

    def __init__(
        self,
        method: Any,
        model: BayesianNetwork,
        guide: Any,
        optimizer: Optimizer,
        steps: int,
        batch: tuple[Tensor, Tensor] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.method, self.guide, self.steps = method, guide, steps
        energy, parameters = Energy(model, guide, jacobian=False), trained(optimizer)

        def program(
            noise: Tensor | None, share: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
        ) -> list[Tensor]:
            with torch.enable_grad():
                prior, nll = energy(guide.at(), x, y, counts)
                found = torch.autograd.grad(share * prior + nll, parameters, materialize_grads=True)
            return [prior.detach(), nll.detach(), *found]

        super().__init__(program, optimizer, (1, 0), batch, prepare)


@dataclass(frozen=True, kw_only=True)
class Descent(OwnStep):
    """A method whose steps descend -log P(w) - log P(D | w); `takes` is its step. The base of several.

    Args:
        init_loc: Where the weights start (`pyrobbb.initializers`).
    """

    init_loc: Initial = field(default=from_network, repr=False)

    descends = True
    takes: ClassVar[type[DescentStep]] = DescentStep

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        refuse_latents(self, model)
        if model.prior_parameters:
            raise ValueError(
                f"{type(self).__name__} cannot train the prior's own parameters: at the mode a scale "
                f"collapses with its weights; use svi"
            )

    def step(
        self, model: BayesianNetwork, guide: Any, optimizer: Optimizer, first: Split, **options: Any
    ) -> Step:
        def make(prepare: Prepare | None) -> DescentStep:
            return self.takes(self, model, guide, optimizer, options["steps"], (first.x, first.y), prepare)

        size, steps = guide.loc.numel(), options["steps"]
        prepares = ways(options["fast"], size, steps, POINT, device=first.x.device)
        step = fastest(make, prepares, options["log"])
        return as_graph(step, model, first, options["log"]) if self.takes.replayable else step


@dataclass(frozen=True, kw_only=True)
class MAP(Descent):
    """The most probable weights.

    Args:
        init_loc: Where they start (`pyrobbb.initializers`).
    """

    holds = FlatGuide
    why = "it descends to a point estimate, without draws"

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> FlatGuide:
        return FlatGuide(model, self.init_loc)


def refuse_bounded(method: Inference, model: BayesianNetwork, guide: FlatGuide) -> None:
    """Raise ValueError for weights that are not their own coordinates, in which the method's formula is."""
    if guide.bounded:
        name = guide.bounded[0]
        raise ValueError(
            f"{type(method).__name__} is for weights on the whole real line, but the prior of {name!r} lives "
            f"on {short(support_of(model.prior_of(name)))}; use svi with an autoguide, sghmc or nuts"
        )


def refuse_latents(method: Inference, model: BayesianNetwork) -> None:
    """Raise ValueError for latent sites besides the weights: a joint mode with a scale is degenerate."""
    if more := model.other_latents:
        raise ValueError(
            f"{type(method).__name__} needs a density of the weights alone, but {', '.join(more)} "
            f"{'is' if len(more) == 1 else 'are'} latent too: at the joint mode a scale collapses with its "
            f"weights; use svi with an autoguide, sghmc or nuts"
        )
