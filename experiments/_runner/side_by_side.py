"""Runs that differ in little but their seeds, side by side on CUDA; each ends as it would alone."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from omegaconf import DictConfig

from experiments._runner.build import build, loggers
from experiments._runner.folder import claimed
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.training.progress import Progress
from pyrobbb.training.trainer import train


def train_side_by_side(configs: Sequence[DictConfig], progress: Progress) -> None:
    """On CUDA, train those of the runs that have no metrics yet, each with a checkpoint in its folder.

    Whoever executes such a run afterwards resumes from there, with nothing left to train. Elsewhere, and
    where they must be trained one after the other, this does nothing.
    """
    unfinished = [config for config in configs if not (Path(config.folder) / "metrics.json").exists()]
    if len(unfinished) < 2 or not on_cuda(unfinished[0]):
        return
    with ExitStack() as stack:
        trainings = []
        for config in unfinished:
            run, folder = build(config), stack.enter_context(claimed(config))
            stack.enter_context(locked(folder))
            training = run.training(run.data.load(), 0, folder, progress, callbacks=loggers(config))
            training.resume()
            trainings.append(training)
        progress.log(f"training {len(trainings)} runs side by side")
        try:
            train(trainings)
        except NotBatchableError as reason:
            progress.log(f"training them one after the other: {reason}")


def on_cuda(config: DictConfig) -> bool:
    """Whether a run trains on CUDA."""
    return best_device(config.device).type == "cuda"
