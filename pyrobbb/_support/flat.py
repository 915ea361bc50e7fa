"""Several tensors end to end as one flat vector, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor


def split(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """`flat` of shape `(*lead, D)` as one view `(*lead, *shape)` for each name."""
    parts = flat.split([shape.numel() for shape in shapes.values()], dim=-1)
    return {
        name: part.reshape(part.shape[:-1] + shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def without_expansion(value: Tensor) -> Tensor:
    """A view of `value` without the dimensions along which it only repeats itself: of size 1, or none."""
    value = value[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]
    return value.view(()) if value.numel() == 1 else value


def strided(value: Tensor) -> Tensor:
    """The places and numbers of a sparse tensor as one vector, to compare and digest; another as it is."""
    if value.layout is torch.strided:
        return value
    sparse = value.detach().to_sparse().coalesce()  # its dense form may not fit into memory
    return torch.cat([part.flatten().double() for part in (sparse.indices(), sparse.values())])


def identical(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN among them."""
    return one.shape == other.shape and bool(torch.isclose(one, other, 0.0, 0.0, equal_nan=True).all())
