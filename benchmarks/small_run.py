"""A small declared run, and what this process takes of the memory: for the benchmarks that train many."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pyrobbb import likelihoods, priors
from pyrobbb.data import Blobs
from pyrobbb.experiment import Run
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp


def small_run(hidden: Sequence[int], **options: Any) -> Run:
    """Three classes of 200 rows; `options` are those of `Run`."""
    return Run(
        data=Blobs(N=200),
        model=partial(mlp, hidden=hidden),
        prior=priors.ScaleMixture(),
        likelihood=likelihoods.Categorical(),
        guide=MeanFieldNormal,
        optim=partial(torch.optim.Adam, lr=1e-3),
        draws=3,
        device="cpu",
        **options,
    )


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not tell {name}")
