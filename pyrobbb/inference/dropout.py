r"""Dropout at test time, read as variational inference (a baseline).

The guide keeps each input of a layer with probability 1 - p, one mask for a whole network (Gal and Ghahramani
2016, arXiv 1506.02142, section 3):

.. math::
    W = M \, \mathrm{diag}(z) / (1 - p), \qquad z_j \sim \mathrm{Bernoulli}(1 - p)

for every layer's weight matrix M, except those of the first layer that take the data. Training descends the
free energy at one mask for each minibatch; the entropy of q does not depend on M.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.network_checks import dropping, is_vector
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.inference.method import MakeGuide
from pyrobbb.inference.point import Descent, refuse_bounded
from pyrobbb.initializers import Initial, from_network
from pyrobbb.priors.units import unit_dim

logger = logging.getLogger(__name__)


class DropoutGuide(FlatGuide):
    """M with a random mask on the inputs of each layer's weight matrix, except those that take the data.

    These are the first, and in a bidirectional recurrent layer also that of the reverse direction.
    """

    def __init__(self, model: BayesianNetwork, p: float, init_loc: Initial = from_network) -> None:
        super().__init__(model, init_loc)
        self.p = p
        values = model.every_weight
        owners = {name: model.owner(name) for name in values}
        every = [name for name, value in values.items() if not is_vector(value, owners[name])]
        matrices = [name for name in every if _is_layer(owners[name])]
        self.masked = {  # the shape of each mask
            name: _mask_shape(values[name], owners[name])
            for name in matrices
            if name in self.shapes and name.removesuffix("_reverse") != matrices[0]
        }
        # what broadcasts over the rows, (1, length, width), is a token or a table of positions
        known = {*matrices, *(name for name in every if values[name].dim() > 2 and len(values[name]) == 1)}
        self.no_layers = [name for name in every if name in self.shapes and name not in known]

    @property
    def settings(self) -> dict[str, Any]:
        return {"p": self.p}

    def draw(self) -> Tensor:
        """M under one mask."""
        parts = []
        for name, value in self.split(self.loc).items():
            if name in self.masked:
                # in half precision uniform numbers are coarse
                uniform = torch.rand(self.masked[name], dtype=torch.float32, device=value.device)
                mask = uniform >= self.p
                value = value.unflatten(0, (len(mask), -1)) * (mask.to(value) / (1 - self.p)).unsqueeze(1)
            parts.append(value.flatten())
        return torch.cat(parts)

    def at(self) -> Tensor:
        """A mask of its own for each step."""
        return self.draw()

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        """M, and the standard deviation |M| sqrt(p / (1 - p)) of what has a mask."""
        locs = self.split(self.loc.detach())
        spread = (self.p / (1 - self.p)) ** 0.5
        return locs, {name: (name in self.masked) * spread * value.abs() for name, value in locs.items()}


def _is_layer(owner: nn.Module) -> bool:
    """Whether a module is one layer, and holds none.

    A parameter of a module that holds layers may be a token or a table of positions, of which nothing tells
    a layer's matrix.
    """
    inside = (t for child in owner.children() for t in (*child.parameters(), *child.buffers()))
    return isinstance(owner, nn.MultiheadAttention) or not any(tensor.dim() > 1 for tensor in inside)


def _mask_shape(weight: Tensor, layer: nn.Module) -> tuple[int, ...]:
    """One value for each input of `layer`, where those of each group of a convolution come apart."""
    shape = [1] * weight.dim()
    shape[0] = layer.groups if isinstance(layer, nn.modules.conv._ConvNd) else 1
    inputs = unit_dim("input", weight, layer)
    assert inputs is not None
    shape[inputs] = weight.shape[inputs]
    return tuple(shape)


@dataclass(frozen=True, kw_only=True)
class MCDropout(Descent):
    """Masks on the inputs of every layer's Bayesian weight matrix but the network's first.

    The first is that of the layer that was registered first; it should be the one that takes the data. A
    matrix of a module of your own is taken as (outputs, inputs), and has no mask if the module holds layers.

    Args:
        p: Probability that an input is dropped.
        init_loc: Where the weights start (`pyrobbb.initializers`).
    """

    p: float = 0.5

    holds = DropoutGuide
    why = "its step draws one mask"

    def __post_init__(self) -> None:
        checks.share("p", self.p)

    def check(self, model: BayesianNetwork, guide: Any, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        refuse_bounded(self, model, guide)
        made = [name for name in guide.shapes if "parametrizations." in name]
        if made:
            raise ValueError(
                f"MCDropout masks weight matrices, but {made[0]} is a part of which torch makes one; train "
                f"the network without its parametrisation"
            )
        for path, layer in dropping(model.network):
            raise ValueError(
                f"MCDropout draws masks of its own, in training and prediction, but layer {path!r} "
                f"({type(layer).__name__}) would drop more in training alone: make it without dropout"
            )
        left = ""
        if guide.no_layers:
            left = (
                f"MCDropout has no mask for {', '.join(guide.no_layers)}: in a module that holds layers they "
                f"may be tokens or positions; make a layer's matrix a layer, such as nn.Linear(bias=False)"
            )
        if not guide.masked:
            raise ValueError(
                left or "MCDropout drops the inputs of Bayesian layers after the first, and there are none"
            )
        if left:
            logger.warning("%s", left)

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> DropoutGuide:
        return DropoutGuide(model, self.p, self.init_loc)
