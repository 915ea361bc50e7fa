"""A declared plain network, trained to a point in a folder of its own: what `Run` is for a Bayesian one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from experiments._runner.build import ConfigError, component
from experiments._runner.folder import claimed, read_metrics
from pyrobbb._support import checkpoint
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, write_text
from pyrobbb._support.optim import MakeOptimizer, MakeSchedule
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation.metrics import classification_metrics
from pyrobbb.experiment import Source
from pyrobbb.training.point_estimate import PointEstimate, fit_plain
from pyrobbb.training.progress import Progress, Silent


@dataclass(frozen=True, kw_only=True)
class PlainRun:
    """One plain classifier.

    Args:
        data: Has `.load()`.
        network: Makes the network from the data's spec.
        optim: Makes a torch optimiser from parameter groups; the loss is a mean over the minibatch.
        schedule: Makes a learning-rate schedule, stepped once per epoch.
        epochs: Passes over the data.
        batch_size: Rows of a minibatch.
        seed: Decides initial weights, order and dropout masks.
        device: `auto`, `cpu`, `cuda`, ...
        checkpoint_seconds: Least time between two checkpoints.
    """

    data: Source
    network: Callable[[Spec], nn.Module]
    optim: MakeOptimizer
    schedule: MakeSchedule | None = None
    epochs: int
    batch_size: int = 128
    seed: int = 1
    device: str = "auto"
    checkpoint_seconds: float = 30.0

    def fit(
        self, data: Dataset, folder: Path | None = None, progress: Progress | None = None
    ) -> PointEstimate:
        """Train, or go on from the checkpoint in `folder`."""
        with isolated(self.seed):
            network = self.network(data.spec)
        return fit_plain(
            network,
            data,
            epochs=self.epochs,
            optim=self.optim,
            schedule=self.schedule,
            batch_size=self.batch_size,
            seed=self.seed,
            device=self.device,
            folder=folder,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=progress,
        )


def build_plain(config: Mapping[str, Any]) -> PlainRun:
    """Instantiate the components of a plain run.

    Raises:
        ConfigError: With the key that is wrong, and why.
    """
    try:
        return PlainRun(**{key: component(key, part) for key, part in config.items()})
    except TypeError as error:
        raise ConfigError(str(error)) from error


def execute(config: Mapping[str, Any], folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Train what `config` says in `folder`, or go on with it, and return the metrics.

    The folder then holds `config.yaml`, `plain.pt`, `history.csv` and `metrics.json`, with the keys that
    a Bayesian run's metrics have.

    Raises:
        ConfigError: If the folder holds a run with another configuration.
    """
    run = build_plain(config)
    with claimed(OmegaConf.create({**config, "folder": str(folder)})):
        if (folder / "metrics.json").exists():
            return read_metrics(folder)
        data = run.data.load().to(best_device(run.device))
        with locked(folder):
            fit = run.fit(data, folder, progress or Silent())
            metrics: dict[str, Any] = {
                name: _metrics(fit, part)
                for name, part in (("test", data.test), ("validation", data.validation))
                if part is not None
            }
            metrics |= {
                "train_seconds": fit.history.train_seconds,
                "epochs": run.epochs,
                "parameters": sum(p.numel() for p in fit.network.parameters()),
                "seed": run.seed,
            }
            write_text(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    return metrics


def plain_weights(folder: Path) -> torch.Tensor:
    """All weights of a plain run as one vector, as they are at test time."""
    state = checkpoint.load(folder / "plain.pt")["network"]
    return torch.cat([value.flatten() for value in state.values()])


def _metrics(fit: PointEstimate, part: Split) -> dict[str, float]:
    return classification_metrics(F.softmax(fit.predict(part.x), -1), part.y)
