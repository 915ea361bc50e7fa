"""Parts of distributions, of a user's own too."""

from typing import NamedTuple

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyrobbb._support.distribution_parts import draw_from, in_double, own_tensor
from pyrobbb.distributions import Affine


class Pair(NamedTuple):
    loc: Tensor
    scale: Tensor


class Own(dist.TorchDistribution):
    """Keeps what it is made of where it likes, and gives no draws."""

    def __init__(self, parts: object) -> None:
        self.parts = parts
        super().__init__(torch.Size([3]), validate_args=False)


def test_tensors_are_found_in_tuples_lists_and_dicts() -> None:
    one = torch.ones(3)
    for parts in ((one,), [one], {"loc": one}, Pair(one, one)):
        made = in_double(Own(parts))
        assert type(made.parts) is type(parts)
        assert own_tensor(made).dtype is torch.float64
        assert made.batch_shape == torch.Size([3])


def test_without_a_tensor_the_precision_is_the_default() -> None:
    assert own_tensor(Own(None)).dtype is torch.get_default_dtype()


def test_what_gives_no_draws_is_named() -> None:
    in_units = Affine(Own(None), torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="Own gives no draws: define sample"):
        draw_from(in_units.to_event(1))
