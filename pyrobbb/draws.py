"""Draws of the weights from one chain, a model and its fitted guide."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoLaplaceApproximation
from torch import nn

from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights

Chain = tuple[BayesianNetwork, nn.Module]


def fitted(chain: Chain) -> Chain:
    """The chain, if its guide has parameters: guides create them when first called."""
    guide = chain[1]
    if isinstance(guide, AutoLaplaceApproximation):
        raise ValueError(
            "AutoLaplaceApproximation is only the mode until its curvature is computed: predict with "
            "Posterior([(model, guide.laplace_approximation(x, y))]), x and y being all training data"
        )
    if chain[0].sites and not any(True for _ in (*guide.parameters(), *guide.buffers())):
        raise ValueError(f"the guide {type(guide).__name__} has no parameters yet; fit it first")
    return chain


def one_draw(chain: Chain, key: tuple[int, int, int]) -> Weights:
    """A value of each latent site; `key` is the seed, the number of the chain and that of the draw.

    Of a guide that holds a sampler's draws, `stored_draw(number)` says which; the seed does not matter.
    """
    model, guide = fitted(chain)
    stored_draw = getattr(guide, "stored_draw", None)
    if stored_draw is not None:
        with torch.no_grad():
            return model.with_padding(stored_draw(key[2]))
    with isolated(mixed_seed(*key), device=model.device), torch.no_grad():
        trace = poutine.trace(guide).get_trace()
    return model.with_padding({name: trace.nodes[name]["value"] for name in model.latents})


def order(chain: Chain, draws: int) -> list[int] | None:
    """The first `draws` in the order in which a sampler drew them; None of a guide with independent draws."""
    place = getattr(chain[1], "place", None)
    return None if place is None else sorted(range(draws), key=place)


def stacked(draws: Sequence[Weights]) -> Weights:
    """Several draws as one, with a leading dimension."""
    if len(draws) == 1:
        return {name: value[None] for name, value in draws[0].items()}
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def mixed_seed(seed: int, chain: int, draw: int) -> int:
    """A seed for one draw of one chain."""
    return (seed * 1_000_003 + chain) * 1_000_003 + draw & 0x7FFF_FFFF_FFFF_FFFF
