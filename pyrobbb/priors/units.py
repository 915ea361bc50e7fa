"""Which weights of a layer share a scale."""

from torch import Tensor, nn

from pyrobbb._support.network_checks import EMBEDDINGS, is_vector

PER_UNIT = ("layer", "input", "output")


def unit_dim(per: str, parameter: Tensor, module: nn.Module) -> int | None:
    """The parameter's dimension that counts the units; None where all weights share one scale.

    The weights of an embedding or a transposed convolution have the inputs first, all others the outputs, as
    those of a module of one's own are taken to have.
    """
    swapped = isinstance(module, (*EMBEDDINGS, nn.modules.conv._ConvTransposeNd))
    return None if per == "layer" or is_vector(parameter, module) else int((per == "input") != swapped)


def unit_shape(per: str, parameter: Tensor, module: nn.Module) -> tuple[int, ...]:
    """The shape of one value for each unit, which broadcasts with the parameter's.

    Args:
        per: "layer": all weights of the parameter share one; "input" or "output": those of a unit (of a
            convolution, a channel), while biases and other vectors share one.
        parameter: Of shape (outputs, inputs, *kernel); of an embedding or a transposed convolution the
            first two are swapped.
        module: The layer that it belongs to.

    Raises:
        ValueError: Where a convolution in groups counts these units anew in each.
    """
    own = unit_dim(per, parameter, module)
    if own == 1 and isinstance(module, nn.modules.conv._ConvNd) and module.groups > 1:
        other = {"input": "output", "output": "input"}[per]
        raise ValueError(
            f"per={per!r} does not fit {module}, whose groups have {per} channels of their own under the "
            f"same numbers; take per={other!r} or 'layer'"
        )
    return tuple(size if dim == own else 1 for dim, size in enumerate(parameter.shape))
