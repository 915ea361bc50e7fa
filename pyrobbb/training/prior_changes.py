"""A prior that changes while the steps keep it as it was at first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrobbb.accelerated.prior_segments import without_expansion
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.distributions import univariate


def prior_constants(model: BayesianNetwork, *, live: bool) -> dict[str, Tensor]:
    """The parameters of each weight's prior that a step keeps; none where some are drawn or trained.

    Args:
        model: The Pyro model.
        live: Whether a parameter that is a buffer of the prior's own is read at each step, and so left out.
    """
    if model.other_latents or model.prior_parameters:
        return {}
    buffers = [value for name, value in model.named_buffers() if name.startswith("prior")]
    read = {value.untyped_storage().data_ptr() for value in buffers if live and value.numel()}
    found = {}
    for name in model.sites:
        base = univariate(model.prior_of(name))
        for key in getattr(base, "arg_constraints", {}):
            value = getattr(base, key, None)
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in read:
                found[f"{name}.{key}"] = without_expansion(value.detach()).clone()
    return found


def check_same_prior(before: Mapping[str, Tensor], now: Mapping[str, Tensor], *, live: bool) -> None:
    """Raise ValueError if one of the constants has changed."""
    changed = [name for name, value in now.items() if name in before and not _same(before[name], value)]
    if changed:
        instead = "this method keeps the prior as it is at first"
        if live:
            instead = "train with fast='off', or pass a buffer of the prior directly to its distribution"
        raise ValueError(
            f"the prior changed in training, {changed[0]} of it, and the steps did not see it: {instead}"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.isclose(one, other, 0.0, 0.0, equal_nan=True).all())
