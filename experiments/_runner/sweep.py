"""What `-m` adds to a run: a job that fails leaves its error in its folder, the others continue.

Hydra's launchers start the jobs, in this process or elsewhere. What became of each comes back as a file in
the sweep's own folder, `hydra.sweep.dir`, which a job can write wherever it can write its results.
"""

import math
import os
import platform
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import shorten
from time import perf_counter
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments._runner.build import ConfigError, with_place
from experiments._runner.folder import differences
from pyrobbb._support.files import locked, make_folder, read_json, write_json
from pyrobbb._support.text import one_line
from pyrobbb.training.trainer import NonFiniteLossError

ERROR = "error.json"
UNRANKED = "no measure, as there are no validation rows"
WORDS = 300  # letters of an error that are printed; the file has them all
EXPLAINED = (ConfigError, NonFiniteLossError, ValueError, OSError)  # their messages say all


def objective(metrics: dict[str, Any]) -> tuple[str, float]:
    """The measure of a run, to be minimised, and its name with the unit.

    The validation error in percent or root mean squared error; without a validation set the free energy, or
    the training loss of a point estimate; `UNRANKED` and nan for a sampler without one. Never the test set's:
    model selection must not see it.
    """
    for key, unit in (("error", "error (%)"), ("rmse", "rmse")):
        if key in metrics.get("validation", {}):
            return f"validation {unit}", float(metrics["validation"][key])
    for key, name in (("free_energy", "free energy"), ("train_loss", "training loss")):
        if key in metrics:
            return f"{name} (nats per datum)", float(metrics[key])
    return UNRANKED, math.nan


def in_sweep() -> bool:
    """Whether this process runs a job of `-m`."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def attempt(config: DictConfig, execute: Callable[[], dict[str, Any]]) -> float:
    """One job of a sweep: its objective, or infinity for one that failed, which searches then avoid.

    A failure is written to `error.json` in the run's folder (message, configuration, and the traceback where
    the message may not be enough).
    """
    hydra, began = HydraConfig.get(), perf_counter()
    job: dict[str, Any] = {"host": platform.node(), "process": os.getpid()}
    job["folder"], said, value = " ".join(hydra.overrides.task), "", math.inf
    try:
        job["folder"] = str(config.folder)
        name, value = objective(execute())
        said = f"{name if name == UNRANKED else f'{name} {value:.4g}'}, {perf_counter() - began:.1f} s"
    except Exception as error:  # whatever it is, the other jobs continue
        job["error"] = one_line(with_place(error)) or type(error).__name__
        said = f"failed: {shorten(job['error'], WORDS)}"
        with suppress(OSError, ValueError, OmegaConfBaseException):  # the last lines of the sweep still tell
            _leave_error(config, error, job["error"])
    print(f"{job['folder']}: {said}", flush=True)
    # an error here ends the sweep: a job that is not counted could have failed unseen
    write_json(Path(hydra.sweep.dir) / f"job-{hydra.job.num}.json", job, indent=None)
    return value


def _leave_error(config: DictConfig, error: Exception, message: str) -> None:
    """Write `error.json`, except into a folder that belongs to another run."""
    folder = Path(config.folder)
    if isinstance(error, BlockingIOError) or differences(config):
        return
    left: dict[str, Any] = {"error": message, "kind": type(error).__name__}
    with suppress(OmegaConfBaseException):  # values that refer to what is not there
        left["config"] = OmegaConf.to_container(config, resolve=True)
    if not isinstance(error, EXPLAINED):
        left["traceback"] = "".join(traceback.format_exception(error))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ERROR, left)


_LOCK = ExitStack()  # of this process's sweep: its folder, in which another sweep would count its own jobs


class Tally(Callback):
    """Ends a sweep with the number of its jobs and what failed; then the exit status is 1."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse `torchrun`, whose processes would each start the sweep; forget an earlier sweep's jobs."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            print(
                "error: -m under torchrun: each of its processes would sweep; use a launcher", file=sys.stderr
            )
            sys.exit(2)
        folder = Path(config.hydra.sweep.dir)
        try:
            make_folder(folder)
            _LOCK.enter_context(locked(folder, ".sweep.lock"))
        except OSError as error:  # which Hydra would only warn of
            busy = isinstance(error, BlockingIOError)
            said = f"another sweep is running in {folder}" if busy else error.strerror
            print(f"error: {said}; give this one another hydra.sweep.dir", file=sys.stderr)
            sys.exit(2)
        for earlier in folder.glob("job-*.json"):
            earlier.unlink()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Count what the jobs left in the sweep's folder."""
        with _LOCK:
            files = Path(config.hydra.sweep.dir).glob("job-*.json")
            jobs = [read_json(path) for path in files]
        failed = [job for job in jobs if "error" in job]
        print(f"{len(jobs)} jobs, {len(failed)} failed")
        for job in sorted(failed, key=lambda job: str(job["folder"])):
            print(f"  {job['folder']}: {shorten(job['error'], WORDS)}")
        if failed:
            sys.exit(1)
