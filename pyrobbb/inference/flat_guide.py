"""Guides over one flat vector: all latents of a model, end to end, each on the whole real line."""

from typing import Any, ClassVar

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.distributions import biject_to

from pyrobbb._support.distribution_parts import on_real_line
from pyrobbb._support.flat import split
from pyrobbb._support.network_checks import check_one_precision
from pyrobbb._support.random_state import Named, isolated
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.draws import sample_points
from pyrobbb.initializers import Initial, from_network, off_the_edge


class FlatGuide(Named):
    """A point `loc` of shape `(D,)` in unconstrained coordinates; families derive from it.

    A positive latent, say, is the exponential of its coordinate; a weight is its own coordinate. `bounded`
    are the latents that are not, `gathers` names what a family holds that the weights of a single epoch do
    not tell.

    Args:
        model: Its latents are those of one run without data.
        init_loc: Where they start (`pyrobbb.initializers`); by default the network's own values.
    """

    gathers: ClassVar[str] = ""

    def __init__(self, model: BayesianNetwork, init_loc: Initial = from_network) -> None:
        super().__init__("flat_guide")
        if not model.latents:
            raise ValueError("the model has no Bayesian weights for a guide to hold")
        with torch.no_grad(), isolated(), poutine.block():
            nodes = poutine.trace(model).get_trace().nodes
        check_one_precision([nodes[name] for name in model.latents], type(self).__name__)
        self.transforms = {name: _coordinates(name, nodes[name]["fn"].support) for name in model.latents}
        self.bounded = tuple(name for name in model.latents if not on_real_line(nodes[name]["fn"]))
        with torch.no_grad():
            starts = {
                name: to.inv(off_the_edge(nodes[name], init_loc(nodes[name])))
                for name, to in self.transforms.items()
            }
        self.shapes = {name: start.shape for name, start in starts.items()}
        self.loc = nn.Parameter(torch.cat([start.flatten() for start in starts.values()]))

    @property
    def is_point(self) -> bool:
        """Whether every draw is the same."""
        return type(self).draw is FlatGuide.draw and type(self).forward is FlatGuide.forward

    @property
    def settings(self) -> dict[str, Any]:
        """What its draws and predictions depend on besides its tensors."""
        return {}

    @property
    def form(self) -> dict[str, Any]:
        """The method's options that decide which tensors it has."""
        return {}

    def restart(self) -> None:
        """Forget what earlier trainings gathered; called where one is made, before a checkpoint is loaded."""

    def split(self, flat: Tensor) -> Weights:
        """Coordinates `(*draws, D)` as `(*draws, *shape)` for each latent."""
        return split(flat, self.shapes)

    def values(self, flat: Tensor) -> Weights:
        """The latents' own values at these coordinates."""
        return {name: self.transforms[name](part) for name, part in self.split(flat).items()}

    def log_jacobian(self, coordinates: Weights) -> Any:
        """Log |d values / d coordinates|, in nats; a latent that is its own coordinate need not be there."""
        total: Any = 0.0
        for name in self.bounded:
            to, part = self.transforms[name], coordinates[name]
            total = total + to.log_abs_det_jacobian(part, to(part)).sum()
        return total

    def draw(self) -> Tensor:
        """Coordinates `(D,)` of one draw."""
        return self.loc

    def at(self) -> Tensor:
        """The coordinates `(D,)` at which a step of a descent takes its gradient."""
        return self.loc

    def forward(self, *args: Any, **kwargs: Any) -> Weights:
        """Sample every latent; arguments as the model's, which are not used."""
        return sample_points(self.values(self.draw()))

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of each latent."""
        values = self.values(self.loc.detach())
        return values, {name: torch.zeros_like(value) for name, value in values.items()}


def _coordinates(name: str, support: Any) -> Any:
    """The map from the real line to where a latent lives; ValueError if there is none."""
    try:
        return biject_to(support)
    except NotImplementedError as error:
        raise ValueError(
            f"the prior of {name!r} lives on {support}, which is not an image of the real line: use svi with "
            f"a guide of your own that draws {name!r} there"
        ) from error
