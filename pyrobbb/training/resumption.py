"""What a checkpoint holds of a training, and how the training goes on from it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrobbb._support.checkpoint import CheckpointError, check_shapes, load_module
from pyrobbb._support.optim import load_state
from pyrobbb._support.process_group import noise_of
from pyrobbb.accelerated import GraphStep
from pyrobbb.training.compatibility import check_epochs, check_same
from pyrobbb.training.history import Epoch

if TYPE_CHECKING:
    from pyrobbb.training.trainer import Training


def state(training: Training) -> dict[str, Any]:
    """Everything needed to go on exactly, as tensors and plain values."""
    schedule = training.schedule
    return {
        "guide": training.guide.state_dict(),
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "schedule": None if schedule is None else schedule.state_dict(),
        "noise": training.ranks.gather(training.noise),
        "order": training.order.get_state(),
        "epoch": training.epoch,
        "batch": training.batch,
        "sums": training.sums,
        "spent": training.spent,
        "history": [asdict(row) for row in training.history.rows],
        "made_with": _made_with(training),
    }


def load_state_dict(training: Training, found: dict[str, Any], path: Path | str) -> None:
    """Bring `training` to where it was when `found` was its state; `path` is for messages.

    Raises:
        CheckpointError: If it belongs to another network or guide, or is no such state.
    """
    missing = sorted(state(training).keys() - found.keys())
    if missing:
        raise CheckpointError(f"{path} is no checkpoint of a training: it has no {', '.join(missing)}")
    try:
        _check(training, found, path)
        _load(training, found, path)
    except CheckpointError:
        raise
    except Exception as error:  # parts of another kind than `state` gives: a file of somebody else's
        raise CheckpointError(f"{path} does not hold what a training needs ({error!r:.120})") from error


def _made_with(training: Training) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on with, besides names and shapes."""
    return {
        **training.made_with,
        "data": training.digest,
        "sites": {name: list(value.shape) for name, value in training.model.initial().items()},
    }


def _check(training: Training, found: dict[str, Any], path: Path | str) -> None:
    theirs, mine = found["made_with"], _made_with(training)
    check_shapes(mine.pop("sites"), theirs["sites"], "network", path)
    check_same(mine, theirs, path)
    check_epochs(found["epoch"], training.epochs, path)


def _load(training: Training, found: dict[str, Any], path: Path | str) -> None:
    load_module(training.guide, found["guide"], "guide", path)
    load_module(training.model, found["model"], "model", path)
    load_state(training.optimizer, found["optimizer"])
    if isinstance(training.step, GraphStep):
        training.step.reset()
    if training.schedule is not None and found["schedule"] is not None:
        training.schedule.load_state_dict(found["schedule"])
    training.order.set_state(found["order"].cpu())
    training.epoch, training.batch, training.spent = found["epoch"], found["batch"], found["spent"]
    _take_up_noise(training, found["noise"], path)
    training.sums = found["sums"].to(training.device)
    training.history.rows = [Epoch(**row) for row in found["history"]]


def _take_up_noise(training: Training, noise: Any, path: Path | str) -> None:
    """As many processes as made it, on such a device, go on with theirs; others with unused noise."""
    ranks = training.ranks
    noise = noise if isinstance(noise, list) else [noise]  # version 0.1.0
    if len(noise) == ranks.size and noise[ranks.rank].keys() == training.noise.keys():
        training.noise = {k: v.cpu() for k, v in noise[ranks.rank].items()}
        return
    steps = training.epoch * training.M + training.batch
    training.noise = noise_of(ranks, training.device, training.seed, steps)
    if len(noise) != ranks.size:
        training.progress.log(f"{len(noise)} processes made {path}, {ranks.size} go on, with new noise")
    else:
        training.progress.log(f"{path} was made on another kind of device; it goes on with new noise")
