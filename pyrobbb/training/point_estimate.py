"""A plain network, trained to a point by gradient descent: what a Bayesian one is measured against."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrobbb._support import checkpoint as checkpoints
from pyrobbb._support import checks
from pyrobbb._support.data_checks import made_optimizer, made_schedule
from pyrobbb._support.device import best_device
from pyrobbb._support.optim import MakeOptimizer, MakeSchedule
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb.data.dataset import Dataset, Split, Task
from pyrobbb.likelihoods import HeteroscedasticNormal
from pyrobbb.training import compatibility as made_with
from pyrobbb.training import history
from pyrobbb.training.history import Epoch, History
from pyrobbb.training.progress import Progress, Silent
from pyrobbb.training.trainer import NonFiniteLossError

LossName = Literal["nll", "mse", "gaussian"]


GAUSSIAN = HeteroscedasticNormal()


def gaussian_loss(output: Tensor, y: Tensor) -> Tensor:
    """Mean over the rows of -log N(y | f(x), s(x)^2), in nats: the conditional Gaussian loss."""
    GAUSSIAN.check(output, y)
    return -GAUSSIAN(output).log_prob(y).mean()


def _percent_wrong(logits: Tensor, y: Tensor) -> Tensor:
    return 100 * (logits.argmax(-1) != y).double().mean()


def _mse(values: Tensor, y: Tensor) -> Tensor:
    if values.shape != y.shape:  # torch would broadcast
        raise ValueError(f"the network gives {tuple(values.shape)} for targets of shape {tuple(y.shape)}")
    return F.mse_loss(values, y)


def _rmse(values: Tensor, y: Tensor) -> Tensor:
    return (values - y).square().mean().sqrt()


class _Loss(NamedTuple):
    """What is minimised, and the error that is shown beside it, both of `(output, y)`."""

    task: Task
    mean: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]


LOSSES = {
    "nll": _Loss("classification", F.cross_entropy, _percent_wrong),
    "mse": _Loss("regression", _mse, _rmse),
    "gaussian": _Loss("regression", gaussian_loss, lambda output, y: _rmse(GAUSSIAN(output).mean, y)),
}


@dataclass(frozen=True)
class PointEstimate:
    """A trained network, in evaluation mode (dropout off), and how it got there.

    In `history` the columns `nll` and `free_energy` are the training loss, mean over the data, and
    `kl` is 0: there is no posterior.
    """

    network: nn.Module
    history: History

    def predict(self, x: Tensor, rows: int = 1000) -> Tensor:
        """The network's output at `x` `(M, *features)`: logits or values, shape `(M, width)`."""
        return _output(self.network, x, rows)


def fit_plain(
    network: nn.Module,
    data: Dataset,
    *,
    epochs: int,
    optim: MakeOptimizer = partial(torch.optim.Adam, lr=1e-3),
    schedule: MakeSchedule | None = None,
    batch_size: int = 128,
    loss: LossName = "nll",
    seed: int = 0,
    device: str | None = None,
    record_every: int = 1,
    folder: Path | str | None = None,
    checkpoint_seconds: float = 30.0,
    progress: Progress | None = None,
) -> PointEstimate:
    """Minimise the mean loss of each minibatch; the network given is copied and left as it was.

    The loss is a mean over the minibatch, as is torch's custom: for the learning rate of a recipe that
    sums over B rows, multiply by B. Dropout layers act in training and not in prediction.

    Args:
        network: Maps `(B, *features)` to logits `(B, classes)` or values `(B, outputs)`, for `gaussian` to
            `(B, 2 outputs)`.
        data: Training data, and validation data if there are any.
        epochs: Passes over the training data.
        optim: Makes a torch optimiser from parameter groups (momentum and weight decay are its own).
        schedule: Makes a learning-rate schedule, stepped once per epoch.
        batch_size: Rows of a minibatch; N or more is full-batch descent.
        loss: `nll` (cross-entropy with integer labels), `mse` (mean squared error) or `gaussian` (the network
            gives the noise as well, as `HeteroscedasticNormal` has it).
        seed: Decides the order of the data and the dropout masks, not the initial weights.
        device: Where to train; by default CUDA if there is one.
        record_every: Epochs between two rows of the history, each with a validation; the last counts.
        folder: Where `plain.pt` and `history.csv` go; a checkpoint found there is gone on with.
        checkpoint_seconds: Least time between two checkpoints.
        progress: Who is told how it goes.

    Raises:
        ValueError: An option outside its domain, or a loss that does not fit the data's task.
        NonFiniteLossError: The loss became infinite or NaN.
        CheckpointError: The folder holds a training of another kind, or of other data.
    """
    training = _PlainTraining(
        network,
        data,
        checks.count("epochs", epochs),
        optim,
        schedule,
        checks.count("batch_size", batch_size),
        loss,
        checks.count("seed", seed, minimum=0),
        best_device(device),
        checks.count("record_every", record_every),
        None if folder is None else Path(folder),
        checks.number("checkpoint_seconds", checkpoint_seconds),
        progress or Silent(),
    )
    return training.run()


def _loss(name: str, data: Dataset) -> _Loss:
    checks.one_of("loss", name, tuple(LOSSES))
    fitting = [known for known, loss in LOSSES.items() if loss.task == data.spec.task]
    if name not in fitting:
        raise ValueError(
            f"loss {name!r} does not fit {data.name}, a {data.spec.task} data set; use {' or '.join(fitting)}"
        )
    return LOSSES[name]


class _PlainTraining:
    """The state of one plain training, and how to go on with it."""

    def __init__(
        self,
        network: nn.Module,
        data: Dataset,
        epochs: int,
        optim: MakeOptimizer,
        schedule: MakeSchedule | None,
        batch_size: int,
        loss: str,
        seed: int,
        device: torch.device,
        record_every: int,
        folder: Path | None,
        checkpoint_seconds: float,
        progress: Progress,
    ) -> None:
        self.network = deepcopy(network).to(device)
        if not any(p.requires_grad for p in self.network.parameters()):
            raise ValueError(f"the network has nothing to train: {type(network).__name__}")
        self.train = data.train.to(device)
        self.validation = None if data.validation is None else data.validation.to(device)
        self.epochs, self.batch_size, self.loss = epochs, batch_size, _loss(loss, data)
        self.device, self.record_every, self.progress = device, record_every, progress
        self.folder, self.checkpoint_seconds = folder, checkpoint_seconds
        groups = [{"params": list(self.network.parameters())}]
        self.optimizer = made_optimizer(optim, groups)
        self.schedule = made_schedule(schedule, self.optimizer, epochs) if schedule else None
        self.order = torch.Generator().manual_seed(seed)  # shuffles; apart from the dropout noise
        with isolated(seed, device=device):
            self.noise = random_state(device)
        self.M = math.ceil(len(self.train) / batch_size)
        self.made_with = made_with.training(
            len(self.train),
            batch_size,
            seed,
            self.optimizer,
            self.schedule,
            loss=loss,
            network=made_with.component(self.network),
        )
        if folder is not None:
            self.made_with["data"] = self.train.digest()
        self.epoch = 0
        self.history = History()
        self.saved_at = monotonic()

    def run(self) -> PointEstimate:
        path = None if self.folder is None else self.folder / "plain.pt"
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._resume(path)
            history.write(path.with_name("history.csv"), self.history.rows)
        self.progress.start(0, self.epoch, self.epochs, self.M)
        with isolated(device=self.device):
            set_random_state(self.noise, self.device)
            began = perf_counter()
            try:
                while self.epoch < self.epochs:
                    value = self._run_epoch()
                    if self.epoch % self.record_every and self.epoch != self.epochs:
                        continue
                    self._record(value, perf_counter() - began, path)
                    began = perf_counter()
            finally:
                self.progress.stop()
        return PointEstimate(self.network.eval(), self.history)

    def _run_epoch(self) -> Tensor:
        """One pass over the data; returns the mean training loss on the device, not waited for."""
        self.network.train()
        N = len(self.train)
        if self.M > 1:
            batches = torch.randperm(N, generator=self.order).to(self.device).split(self.batch_size)
        total = torch.zeros((), device=self.device)
        for i in range(self.M):
            part = self.train if self.M == 1 else Split(self.train.x[batches[i]], self.train.y[batches[i]])
            loss = self.loss.mean(self.network(part.x), part.y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * (len(part) / N)
            self.progress.step()
        if self.schedule is not None:
            self.schedule.step()
        self.epoch += 1
        return total

    def _record(self, total: Tensor, seconds: float, path: Path | None) -> None:
        value = float(total)
        if not math.isfinite(value):
            raise NonFiniteLossError(
                f"the training loss is {value} at epoch {self.epoch}; the usual cause is a learning rate "
                f"that is too large, or inputs that are not scaled"
            )
        lr = float(self.optimizer.param_groups[0]["lr"])
        row = Epoch(0, self.epoch, value, 0.0, value, *self._validate(), lr, seconds)
        self.history.rows.append(row)
        self.progress.epoch(row)
        if path is None:
            return
        history.append(path.with_name("history.csv"), row)
        if self.epoch == self.epochs or monotonic() - self.saved_at >= self.checkpoint_seconds:
            checkpoints.save(path, self._state())
            self.saved_at = monotonic()

    def _validate(self) -> tuple[float, float]:
        """Validation error (percent, or root mean squared) and loss."""
        if self.validation is None:
            return math.nan, math.nan
        output, y = _output(self.network.eval(), self.validation.x), self.validation.y
        return float(self.loss.error(output, y)), float(self.loss.mean(output, y))

    def _state(self) -> dict[str, object]:
        return {
            "made_with": self.made_with,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "noise": random_state(self.device),
            "order": self.order.get_state(),
            "epoch": self.epoch,
            "history": [asdict(row) for row in self.history.rows],
        }

    def _resume(self, path: Path) -> None:
        found = checkpoints.load_newest(path, self.device, repair=True)
        if found is None:
            return
        state, file = found
        made_with.check_same(self.made_with, state.get("made_with", {}), file)
        made_with.check_epochs(state["epoch"], self.epochs, file)
        checkpoints.load_module(self.network, state["network"], "network", file)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None and state["schedule"] is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.noise = {k: v.cpu() for k, v in state["noise"].items()}
        self.order.set_state(state["order"].cpu())
        self.epoch = state["epoch"]
        self.history.rows = [Epoch(**row) for row in state["history"]]


def _output(network: nn.Module, x: Tensor, rows: int = 1000) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(block) for block in x.split(rows)])
