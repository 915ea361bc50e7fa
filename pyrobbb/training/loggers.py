"""Callbacks that log each epoch to TensorBoard, MLflow or Weights & Biases; each needs an extra."""

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyrobbb._support import checks
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.history import Epoch

LOGGED = ("free_energy", "kl", "nll", "validation_error", "validation_nll", "lr")
MODES = ("offline", "online")


class Logger(Callback):
    """Logs each epoch elsewhere: `open`, `write` and `close` are called in the process that writes.

    A failure after it was opened is logged once, and training continues without it.
    """

    failed = False

    def on_start(self, view: View) -> None:
        self.failed = False
        if view.writes:
            self.open(view)

    def on_epoch(self, view: View, row: Epoch) -> None:
        self._attempt(view, self.write, row)

    def on_end(self, view: View) -> None:
        self._attempt(view, self.close)

    def _attempt(self, view: View, do: Callable[..., None], *what: Any) -> None:
        if self.failed or not view.writes:
            return
        try:
            do(*what)
        except Exception as error:  # a full disk, a server that is gone
            self.failed = True
            view.log(f"{type(self).__name__} failed and logs no more of chain {view.chain}: {error!r}")

    def open(self, view: View) -> None:
        """The training starts, or is resumed."""

    def write(self, row: Epoch) -> None:
        """An epoch is done."""

    def close(self) -> None:
        """The training ended."""


class TensorBoard(Logger):
    """Writes each epoch's free energy, KL, NLL, validation and learning rate for TensorBoard.

    Args:
        folder: Where the event files go; chain c has the subfolder `chain-c`.

    Raises:
        ImportError: The package `tensorboard` is not installed.
    """

    place = "folder"

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        _package("torch.utils.tensorboard", "tensorboard")
        self.writer: Any = None

    def open(self, view: View) -> None:
        make = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.writer = make(str(self.folder / f"chain-{view.chain}"))

    def write(self, row: Epoch) -> None:
        for name, value in _logged(row).items():
            self.writer.add_scalar(name, value, row.epoch)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
        self.writer = None


class MLflow(Logger):
    """Logs the same to an MLflow experiment, a run for each chain; a resumption continues it.

    MLflow's active run and tracking address are left as they are.

    Args:
        experiment: The experiment's name; it is made if there is none.
        uri: Where MLflow tracks, such as "sqlite:///mlflow.db" or a server; None asks MLflow.
        settings: What to note as the run's parameters.

    Raises:
        ImportError: The package `mlflow` is not installed.
    """

    keeps = ("run",)

    def __init__(
        self,
        experiment: str = "pyrobbb",
        *,
        uri: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        _package("mlflow", "mlflow")
        self.experiment, self.uri, self.settings = experiment, uri, dict(settings or {})
        self.run: str | None = None
        self.client: Any = None

    def open(self, view: View) -> None:
        self.client = _package("mlflow", "mlflow").MlflowClient(tracking_uri=self.uri)
        if self.run is not None:
            self.client.update_run(self.run, status="RUNNING")
            return
        found = self.client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.run = self.client.create_run(number, run_name=f"chain-{view.chain}").info.run_id
        for name, value in self.settings.items():
            self.client.log_param(self.run, name, value)

    def write(self, row: Epoch) -> None:
        for name, value in _logged(row).items():
            self.client.log_metric(self.run, name, value, step=row.epoch)

    def close(self) -> None:
        self.client.set_terminated(self.run)
        self.client = None


class WandB(Logger):
    """Logs the same to Weights & Biases, a run for each chain; a resumption continues it.

    Args:
        project: The project's name.
        folder: Where the files go, in its subfolder `wandb`.
        mode: "offline" keeps everything in files, which `wandb sync` uploads; "online" uploads at once.
        settings: What to note as the run's configuration.

    Raises:
        ImportError: The package `wandb` is not installed.
        ValueError: Another mode.
    """

    keeps = ("id",)

    def __init__(
        self,
        project: str = "pyrobbb",
        *,
        folder: Path | str = ".",
        mode: str = "offline",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        _package("wandb", "wandb")
        self.project, self.folder, self.settings = project, Path(folder), dict(settings or {})
        self.mode = checks.one_of("mode", mode, MODES)
        self.id: str | None = None
        self.run: Any = None

    def open(self, view: View) -> None:
        resumed, self.id = self.id is not None, self.id or uuid4().hex[:8]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = _package("wandb", "wandb").init(
            project=self.project,
            name=f"chain-{view.chain}",
            dir=str(self.folder),
            mode=self.mode,
            config=self.settings,
            id=self.id,
            resume="allow" if resumed and self.mode == "online" else None,
            reinit="create_new",  # beside a run of the caller's own
        )

    def write(self, row: Epoch) -> None:
        self.run.log(_logged(row), step=row.epoch)

    def close(self) -> None:
        self.run.finish()
        self.run = None


def _logged(row: Epoch) -> dict[str, float]:
    """What an epoch has measured, by name."""
    values = {name: float(getattr(row, name)) for name in LOGGED}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"this callback needs {extra}: pip install '.[{extra}]' in your clone") from error
