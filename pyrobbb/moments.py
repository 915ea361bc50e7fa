"""Location and scale of q for each weight: exact where the guide knows them."""

from collections.abc import Sequence

import torch
from pyro.infer.autoguide import AutoDelta
from pyro.ops.streaming import CountMeanVarianceStats, StatsOfDict
from torch import Tensor

from pyrobbb._support.distribution_parts import on_real_line
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import Weights
from pyrobbb.draws import FittedChain, fitted, lacking, refuse_sites, some_draws

DRAWS = 200
TOGETHER = 10  # draws that are in memory at once


def moments(chain: FittedChain, *, latents: bool = False) -> tuple[Weights, Weights]:
    """Location and scale of q for each weight, or for all latent sites: exact if the guide knows them.

    A guide's own `loc_and_scale()` is used if it has one; else its quantiles (Pyro's normal autoguides);
    a point (Pyro's AutoDelta) has scale 0; of other guides, and under priors that are not on the whole real
    line, mean and standard deviation of 200 draws.
    """
    model, guide = fitted(chain)
    names = model.latents if latents else model.sites
    with torch.no_grad(), isolated(device=model.device):
        if hasattr(guide, "loc_and_scale"):  # a normal's; under other priors its sites would not fit
            locs, scales = guide.loc_and_scale()  # type: ignore[operator]
            if set(names) <= set(locs):
                locs, scales = ({name: each[name].clone() for name in names} for each in (locs, scales))
                return locs, scales  # not the guide's own memory
        if isinstance(guide, AutoDelta):
            points = guide.median()
            refuse_sites(lacking(names, points))
            locs = {name: points[name].clone() for name in names}  # not the guide's own memory
            return locs, {name: torch.zeros_like(value) for name, value in locs.items()}
        if set(names) - set(model.sites) or not all(on_real_line(model.prior_of(name)) for name in names):
            return _moments_of_draws(chain, names)  # a median is not a mean there
        one_sd = torch.special.ndtr(torch.ones(())).item()
        try:
            both = guide.quantiles([0.5, one_sd])  # type: ignore[operator]
        except (AttributeError, NotImplementedError):  # a guide without quantiles, alone or in a list of them
            return _moments_of_draws(chain, names)
        refuse_sites(lacking(names, both))
        locs = {name: both[name][0] for name in names}
        return locs, {name: both[name][1] - both[name][0] for name in names}


def signal_to_noise(mu: Tensor, sigma: Tensor) -> Tensor:
    r""":math:`|\mu| / \sigma` of each weight: 0 for a constant zero, infinite for any other constant."""
    return torch.where(mu == 0, 0.0, mu.abs() / sigma)


def _moments_of_draws(chain: FittedChain, names: Sequence[str]) -> tuple[Weights, Weights]:
    """Mean and standard deviation of `DRAWS` draws, a few at a time."""
    stats = StatsOfDict(default=CountMeanVarianceStats)
    for s in range(0, DRAWS, TOGETHER):
        for weights in some_draws(chain, [(0, 0, t) for t in range(s, s + TOGETHER)]):
            stats.update({name: weights[name] for name in names})
    found = stats.get()
    locs = {name: found[name]["mean"] for name in names}
    return locs, {name: found[name]["variance"].sqrt() for name in names}
