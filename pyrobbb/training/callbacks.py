"""Callbacks: measure, keep or stop a training after its steps and epochs; `loggers.py` has those that log."""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from pyrobbb._support import checkpoint, checks
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.posterior import Posterior
from pyrobbb.svi import Terms
from pyrobbb.training.compatibility import attributes, restore_attributes
from pyrobbb.training.history import Epoch, History

MEASURES = ("nll", "error")


class View(Protocol):
    """What a callback sees of its chain; `stop` is the only method that changes anything."""

    chain: int  # its number
    epoch: int  # epochs done
    batch: int  # minibatches done in the current epoch
    M: int  # minibatches of an epoch
    model: BayesianNetwork
    guide: Any
    history: History
    folder: Path | None

    @property
    def posterior(self) -> Posterior:
        """The posterior as it stands, of this chain alone."""

    @property
    def writes(self) -> bool:
        """Whether this process, of several, is the one that writes files."""

    def log(self, message: str) -> None:
        """Log a line."""

    def stop(self, reason: str) -> None:
        """End the training after the current step or epoch; `reason` is logged and kept in the history."""


class Callback:
    """Called by the loop; override the methods you need.

    Random numbers drawn in a callback change nothing in the training. An exception ends the training, and
    its last checkpoint stays. `keeps` names the attributes that must survive a resumption, which hold tensors
    and plain values; a callback that keeps anything else defines `state_dict` and `load_state_dict`. In
    another training the same object begins with what it kept before its first. `place` names the attribute
    that holds the path of a folder of its own, if it has one.
    """

    keeps: ClassVar[tuple[str, ...]] = ()
    place: ClassVar[str] = ""

    def on_start(self, view: View) -> None:
        """The training starts or resumes."""

    def on_step(self, view: View, terms: Terms) -> None:
        """A step is done; `terms` are the chain's."""

    def on_epoch(self, view: View, row: Epoch) -> None:
        """A recorded epoch is done; `row` is its row of the history."""

    def on_end(self, view: View) -> None:
        """The training ended without error."""

    def state_dict(self) -> dict[str, Any]:
        """What the checkpoint keeps."""
        return {name: getattr(self, name) for name in self.keeps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from what `state_dict` gave."""
        for name in self.keeps:
            setattr(self, name, state[name])

    def for_fit(self, name: str) -> Self:
        """A copy for one fit of several; if it writes to a folder of its own, then to `name` in that."""
        copied, own = deepcopy(self), vars(self).get(self.place)
        if own is not None:
            setattr(copied, self.place, Path(own) / name)
        return copied

    def adopt(self, copied: Self) -> None:
        """Take over the state of the copy whose fit was chosen, but not its folder."""
        vars(self).update({name: value for name, value in vars(copied).items() if name != self.place})

    def restart(self) -> None:
        """Forget other trainings; called where one is made, before a checkpoint is loaded."""
        first = vars(self).setdefault("_first", deepcopy(self.state_dict()))
        self.load_state_dict(deepcopy(first))


class EarlyStopping(Callback):
    """Stops when a validation measure has not improved for `patience` epochs of the history.

    The weights are those of the last epoch, not of the best; `BestCheckpoint` keeps the best. SGHMC and SWAG,
    which gather their posterior late, raise a ValueError if they are stopped before that.

    Args:
        patience: Epochs of the history (`record_every`) without improvement after which to stop.
        monitor: `nll` or `error`, of the validation data.
        min_delta: How much lower than the best counts as an improvement.

    Raises:
        ValueError: An argument outside its domain, or a training without validation data.
    """

    keeps = ("best", "best_epoch", "waited")

    def __init__(self, patience: int = 10, *, monitor: str = "nll", min_delta: float = 0.0) -> None:
        self.patience = checks.count("patience", patience)
        self.monitor = checks.one_of("monitor", monitor, MEASURES)
        self.min_delta = checks.between("min_delta", min_delta, 0, math.inf)
        self.best, self.best_epoch, self.waited = math.inf, 0, 0

    def on_epoch(self, view: View, row: Epoch) -> None:
        value = _measured(self, row, self.monitor)
        if value < self.best - self.min_delta:
            self.best, self.best_epoch, self.waited = value, row.epoch, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            view.stop(
                f"validation {self.monitor} has not improved for {row.epoch - self.best_epoch} epochs "
                f"(best {self.best:.4g} in epoch {self.best_epoch})"
            )


class BestCheckpoint(Callback):
    """Keeps guide and model of the best epoch by validation, in `chain-0.best.pt` of the folder.

    The posterior that `fit` returns is that of the last epoch; `best.restore(posterior)` loads the best,
    where its weights are all of a posterior: not of Laplace, SWAG and samplers.

    Args:
        monitor: `nll` or `error`, of the validation data.
        folder: Where the file goes; by default the folder of the training. To restore several chains name it
            here: each trains with a copy of the callback.

    Raises:
        ValueError: A training without validation data, or without any folder.
    """

    keeps = ("best", "best_epoch")
    place = "named"

    def __init__(self, *, monitor: str = "nll", folder: Path | str | None = None) -> None:
        self.monitor = checks.one_of("monitor", monitor, MEASURES)
        self.named = self.folder = None if folder is None else Path(folder)
        self.best, self.best_epoch = math.inf, 0

    def on_start(self, view: View) -> None:
        self.folder = self.named or view.folder
        if self.folder is None:
            raise ValueError("BestCheckpoint needs a folder: pass folder= here or to the training")

    def path(self, chain: int = 0) -> Path:
        """The file of a chain.

        Raises:
            ValueError: It has not been in a training, and no folder was named.
        """
        if self.folder is None:
            raise ValueError(
                "BestCheckpoint has no folder: it was in no training, or in one of several chains, each of "
                "which trains with a copy of it; pass folder= to BestCheckpoint"
            )
        return self.folder / f"chain-{chain}.best.pt"

    def on_epoch(self, view: View, row: Epoch) -> None:
        value = _measured(self, row, self.monitor)
        if value >= self.best:
            return
        self.best, self.best_epoch = value, row.epoch
        if view.writes:
            self.path(view.chain).parent.mkdir(parents=True, exist_ok=True)
            checkpoint.save(
                self.path(view.chain),
                {
                    "guide": view.guide.state_dict(),
                    "model": view.model.state_dict(),
                    "attributes": attributes(view.model),
                    "epoch": row.epoch,
                    "value": value,
                },
            )

    def restore(self, posterior: Posterior) -> None:
        """Put the best weights into the fitted posterior, chain by chain.

        Raises:
            CheckpointError: A chain has none, or it belongs to another network or guide.
            ValueError: Of several chains, if no folder was named; or the posterior is more than the weights
                of an epoch, as that of Laplace, SWAG or a sampler is.
        """
        for _, guide in posterior.chains:
            if gathers := getattr(guide, "gathers", ""):
                raise ValueError(
                    f"{type(guide).__name__} holds {gathers}, without which the best epoch's weights are a "
                    f"point: keep the posterior as it is, or restore a fit by MAP() and take "
                    f"Laplace().around(posterior, data.train)"
                )
        for chain, (model, guide) in enumerate(posterior.chains):
            path = self.path(chain)
            found = checkpoint.load(path)
            checkpoint.load_module(guide, found["guide"], "guide", path)
            checkpoint.load_module(model, found["model"], "model", path)
            restore_attributes(model, found.get("attributes", {}))


def _measured(callback: Callback, row: Epoch, monitor: str) -> float:
    """The validation measure of an epoch; ValueError if there is none."""
    value: float = getattr(row, f"validation_{monitor}")
    if math.isnan(value):
        raise ValueError(f"{type(callback).__name__} needs validation data: pass validation=")
    return value
