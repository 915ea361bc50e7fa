"""What recording the step of a small network saves: a regression of 64 rows with 50 hidden units."""

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from torch import nn

from benchmarks.timing import Work
from pyrobbb import likelihoods, priors
from pyrobbb.accelerated.dispatch import make_step
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal

# how each step is made: `fast`, and the steps to come, which decide whether a recording pays
WAYS = {
    "Pyro's SVI": ("off", 0),
    "as it is": ("eager", 0),
    "replayed": ("auto", 5_000),
    "compiled": ("compiled", 0),
}
GUIDES: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "mean field": (MeanFieldNormal, ("Pyro's SVI", "as it is", "replayed", "compiled")),
    "AutoNormal": (AutoNormal, ("Pyro's SVI", "replayed")),
    "AutoLowRankMultivariateNormal": (AutoLowRankMultivariateNormal, ("Pyro's SVI", "replayed")),
}


def works(guide: str, samples: int) -> dict[str, Work]:
    """A step of this guide in each of its ways."""
    make, ways = GUIDES[guide]
    return {way: _step(make, samples, *WAYS[way]) for way in ways}


def _step(guide: Callable[..., nn.Module], samples: int, fast: str, steps: int) -> Work:
    draw = torch.Generator().manual_seed(0)
    rows = Split(torch.randn(64, 4, generator=draw), torch.randn(64, 1, generator=draw))
    network = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 1))
    model = BayesianNetwork(network, priors.FanInNormal(gain=1.0), likelihoods.Normal(), N=640)
    return step_of(model, guide, rows, samples=samples, fast=fast, steps=steps)


def step_of(model: BayesianNetwork, guide: Callable[..., nn.Module], rows: Split, **options: Any) -> Work:
    """A step with fused Adam on these rows; options are those of `make_step`."""
    q = guide(model)
    q(rows.x, rows.y)  # autoguides make their parameters at the first call
    adam = torch.optim.Adam([*model.parameters(), *q.parameters()], lr=1e-3, fused=True)
    step = make_step(model, q, adam, rows, **options)
    share = len(rows) / model.N
    return lambda: step(rows.x, rows.y, share, share)
