"""Which weights of a layer share a scale."""

from __future__ import annotations

from torch import Tensor, nn

from pyrobbb._support.network_checks import EMBEDDINGS

PER_UNIT = ("layer", "input", "output")


def unit_shape(per: str, parameter: Tensor, module: nn.Module) -> tuple[int, ...]:
    """The shape of one value for each unit, which broadcasts with the parameter's.

    Args:
        per: "layer": all weights of the parameter share one; "input" or "output": those of a unit (of a
            convolution, a channel), while biases and other vectors share one.
        parameter: Of shape (outputs, inputs, *kernel); of an embedding or a transposed convolution the
            first two are swapped.
        module: The layer that it belongs to.
    """
    swapped = isinstance(module, (*EMBEDDINGS, nn.modules.conv._ConvTransposeNd))
    own = None if per == "layer" or parameter.dim() < 2 else int((per == "input") != swapped)
    return tuple(size if dim == own else 1 for dim, size in enumerate(parameter.shape))
