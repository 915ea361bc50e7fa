"""Stochastic variational inference: the training loop, with checkpoints and exact resumption."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from time import monotonic, perf_counter
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support import checkpoint as checkpoints
from pyrobbb._support import checks
from pyrobbb._support.data_checks import check_data, check_kinds, check_tensors, made_optimizer, made_schedule
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, make_folder
from pyrobbb._support.optim import (
    MakeOptimizer,
    MakeSchedule,
    fused,
    named_parameters,
    on_device,
    parameter_groups,
)
from pyrobbb._support.process_group import SINGLE, LostProcessError, ProcessGroup, noise_of
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb._support.signals import Interrupt
from pyrobbb._support.site_checks import check_sites, check_trainable
from pyrobbb.accelerated import FAST, make_step
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset
from pyrobbb.kl_weights import KLWeight, Uniform
from pyrobbb.posterior import Posterior
from pyrobbb.svi import Step, Terms, no_nan_warnings
from pyrobbb.training import compatibility as made_with
from pyrobbb.training import history, resumption
from pyrobbb.training.history import Epoch, History
from pyrobbb.training.progress import Progress, Silent
from pyrobbb.training.validation import validate


class NonFiniteLossError(ArithmeticError):
    """The free energy or a parameter became infinite or NaN; the last good checkpoint is kept."""


class Training:
    """One chain's training: its state, and how to go on with it.

    Args:
        model: The Pyro model; moved to `device`.
        guide: The Pyro guide, an `nn.Module` over the same sites; moved to `device`.
        data: Training data, and validation data if there are any.
        epochs: Passes over the data.
        batch_size: Rows of a minibatch, B; the last of an epoch may be shorter.
        optim: Makes a torch optimiser from parameter groups.
        schedule: Makes a torch learning-rate schedule, stepped once per epoch.
        kl: The share of the KL that each minibatch carries.
        samples: Weight draws per step.
        vectorize: Evaluate these draws as one batch in Pyro's own SVI; the fast path has its own way.
        fast: "auto": the fast path where it fits, compiled if that pays; "compiled", "eager": the fast path
            with or without compilation; "off": Pyro's own SVI. All minimise the same free energy.
        rates: Factors on the learning rate by part of a parameter's name.
        seed: Decides the initial values of the guide, the order of the data and the noise.
        device: Where to train; by default CUDA if there is one.
        validation_draws: Weight draws for the validation error; 0 uses the mean weights.
        folder: Where checkpoint and history go; None keeps nothing.
        checkpoint_seconds: Least time between two checkpoints.
        chain: Number of this restart.
        progress: Who is told how it goes.
        ranks: The processes that train it together (`pyrobbb._support.process_group.joined`); by default this
        one alone.
            All are given the same arguments; the first writes the files and tells the progress.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: nn.Module,
        data: Dataset,
        *,
        epochs: int,
        batch_size: int = 128,
        optim: MakeOptimizer = partial(torch.optim.Adam, lr=1e-3),
        schedule: MakeSchedule | None = None,
        kl: KLWeight | None = None,
        samples: int = 1,
        vectorize: bool = False,
        fast: str = "auto",
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
        device: str | None = None,
        validation_draws: int = 3,
        folder: Path | str | None = None,
        checkpoint_seconds: float = 30.0,
        chain: int = 0,
        progress: Progress | None = None,
        ranks: ProcessGroup = SINGLE,
    ) -> None:
        check_kinds(
            model=(model, BayesianNetwork), guide=(guide, nn.Module), data=(data, Dataset),
            kl=(kl, (KLWeight, NoneType)), rates=(rates, (Mapping, NoneType)), vectorize=(vectorize, bool),
            folder=(folder, (str, Path, NoneType)),
        )  # fmt: skip
        check_tensors(data)
        N = len(data.train)
        if N != model.N:
            raise ValueError(f"the model was made for N={model.N} data, the training set has {N}")
        if checks.count("batch_size", batch_size) > N:
            raise ValueError(f"batch_size {batch_size} is larger than the training set, N={N}")
        if batch_size < ranks.size:
            raise ValueError(f"batch_size {batch_size} is less than the number of processes, {ranks.size}")
        self.ranks = ranks
        self.epochs = checks.count("epochs", epochs)
        self.batch_size = batch_size
        self.M = math.ceil(N / batch_size)
        self.kl = kl or Uniform()
        self.device = best_device(device)
        self.validation_draws = checks.count("validation_draws", validation_draws, minimum=0)
        self.folder = None if folder is None else Path(folder)
        self.checkpoint_seconds = checks.between("checkpoint_seconds", checkpoint_seconds, 0, math.inf)
        self.chain = checks.count("chain", chain, minimum=0)
        self.seed = checks.seed("seed", seed)
        self.progress = progress if progress and ranks.is_main else Silent()
        self.model, self.guide = model.to(self.device), guide
        self.train, self.validation = data.train.to(self.device), data.validation
        if self.validation is not None:
            self.validation = self.validation.to(self.device)
        self.order = torch.Generator().manual_seed(self.seed)  # shuffles; apart from the weight noise
        checks.one_of("fast", fast, FAST)
        with isolated(self.seed, device=self.device), no_nan_warnings():
            self._set_up(checks.count("samples", samples), optim, schedule, rates or {}, vectorize, fast)
            self.noise = random_state(self.device)
        if ranks.size > 1:
            for parameter in self.named.values():
                ranks.broadcast_(parameter.data)
            self.noise = noise_of(ranks, self.device, self.seed, 0)
        self.epoch = 0  # epochs done
        self.batch = 0  # minibatches done of the epoch under way
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # KL, NLL of that epoch
        self.seen = torch.zeros(self.M, device=self.device)  # on CUDA: F of each step of that epoch
        self.spent = 0.0  # seconds of that epoch
        self.history = History()
        self.saved_at = monotonic()
        self.between_steps = True

    def _set_up(
        self,
        samples: int,
        optim: MakeOptimizer,
        schedule: Any,
        rates: Mapping[str, float],
        vectorize: bool,
        fast: str,
    ) -> None:
        check_data(self.model, self.train, self.validation)
        first = self.train.head(1)
        check_trainable(self.model, self.guide)
        try:
            self.guide(first.x, first.y)  # autoguides make their parameters at the first call
        except NotImplementedError as error:  # Pyro's, of a guide for other kinds of sites
            name = type(self.guide).__name__
            raise ValueError(f"guide {name} does not fit this model: {error}") from error
        self.guide.to(self.device)
        check_sites(self.model, self.guide, first)
        self.named = named_parameters(self.model, self.guide)
        groups = parameter_groups(self.named, optim, rates)
        self.optimizer = made_optimizer(fused(optim, self.device), groups)
        on_device(self.optimizer, self.device)
        self.schedule = made_schedule(schedule, self.optimizer, self.epochs) if schedule else None
        self.made_with = made_with.training(
            len(self.train),
            self.batch_size,
            self.seed,
            self.optimizer,
            self.schedule,
            network=made_with.component(self.model.network),
            samples=samples,
            prior=made_with.component(self.model.prior),
            kl=made_with.component(self.kl),
            likelihood=made_with.likelihood(self.model.likelihood),
        )
        self.step: Step = make_step(
            self.model,
            self.guide,
            self.optimizer,
            self.train.head(len(range(self.ranks.rank, self.batch_size, self.ranks.size))),
            samples=samples,
            vectorize=vectorize,
            fast=fast,
            steps=self.epochs * self.M,
            log=self.progress.log,
            ranks=self.ranks,
        )

    @cached_property
    def digest(self) -> str:
        """Which training data these are, for checkpoints: they are read for it once."""
        return self.train.digest()

    @property
    def checkpoint_path(self) -> Path | None:
        """The chain's checkpoint in the run folder."""
        return None if self.folder is None else self.folder / f"chain-{self.chain}.pt"

    @property
    def history_path(self) -> Path | None:
        """The history of all chains in the run folder, which the first process writes."""
        return self.folder / "history.csv" if self.folder is not None and self.ranks.is_main else None

    def run(self) -> History:
        """Train to the last epoch, or on from where a checkpoint or an interruption left off.

        Ctrl-C and SIGTERM end it after the step under way, with a checkpoint.

        Raises:
            NonFiniteLossError: If the free energy becomes infinite or NaN.
            LostProcessError: If another process that trains with this one ended.
            BlockingIOError: If another training writes to the same folder.
            OSError: If a checkpoint cannot be written; the ones before it stay.
        """
        with self._locked():
            return self._run()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone in writing this chain's files, while the body runs."""
        if self.folder is None or not self.ranks.is_main:
            yield
        else:
            make_folder(self.folder)
            with locked(self.folder, f".chain-{self.chain}.lock"):
                yield

    def _run(self) -> History:
        self._open_history()
        together = self.ranks.size > 1
        with (
            isolated(device=self.device),
            no_nan_warnings(),
            Interrupt(ignore_repeats=together) as self.interrupt,
        ):
            set_random_state(self.noise, self.device)
            try:
                self.progress.start(self.chain, self.epoch, self.epochs, self.M, self.batch)
                if together:
                    self._save()  # one to go on from, whenever a process is lost
                while self.epoch < self.epochs:
                    self._run_epoch()
                    self._pause(last=self.epoch == self.epochs)
                self._check_end()
            except KeyboardInterrupt:
                if self.between_steps:  # a second signal does not wait for the end of a step
                    self._save()
                raise
            except LostProcessError as error:
                raise LostProcessError(f"{error}; {self._kept()}") from error
            finally:
                self.noise = random_state(self.device)
                self.progress.stop()
        return self.history

    def _open_history(self) -> None:
        """Make the file say what this chain has done so far, beside the other chains."""
        if self.history_path is not None:
            others = [r for r in history.read_if_there(self.history_path) if r.chain != self.chain]
            history.write(self.history_path, others + self.history.rows)

    def _run_epoch(self) -> None:
        began = perf_counter() - self.spent
        batches = self._shuffled()
        for i in range(self.batch, self.M):
            self._run_step(batches[i], i)
            self.spent = perf_counter() - began
            if i + 1 < self.M:  # an epoch's last step is kept together with its end
                self._pause()
                began = perf_counter() - self.spent
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the steps were only launched; their work counts too
            self.spent = perf_counter() - began
        self._end_epoch()

    def _pause(self, *, last: bool = False) -> None:
        """Between two steps: end here if a signal has come, to whichever process; save if it is time."""
        stop, due = self.ranks.any(self.interrupt.noted, last or self._due())
        if stop:
            raise KeyboardInterrupt
        if due:
            self._save()

    def _shuffled(self) -> tuple[Tensor, ...]:
        """The rows of each minibatch of the epoch that begins.

        `order` moves on at the epoch's end: whoever goes on within the epoch needs the same order again.
        """
        generator = torch.Generator()
        generator.set_state(self.order.get_state())
        permutation = torch.randperm(len(self.train), generator=generator)
        self.next_order = generator.get_state()
        return permutation.to(self.train.x.device).split(self.batch_size)

    def _run_step(self, rows: Tensor, i: int) -> None:
        data, share = self._shares(rows, i)
        self.between_steps = False
        mine = self.ranks.shard(rows)
        part = len(mine) / len(rows)
        terms = self.step(self.train.x[mine], self.train.y[mine], share * part, data * part)
        self._accumulate(terms, i, data)
        self.between_steps = True
        self.progress.step()

    def _shares(self, rows: Tensor, i: int) -> tuple[float, float]:
        """The minibatch's share of the data, and of the KL."""
        data = len(rows) / len(self.train)
        return data, self.kl.share(i + 1, self.M, self.epoch + 1, data)

    def _accumulate(self, terms: Terms, i: int, data: float) -> None:
        """Count step i of the epoch, whose terms these were."""
        if self.device.type == "cuda":
            self.seen[i].copy_(terms.kl + terms.nll)  # looked at once per epoch: no waiting for the device
        elif not bool(torch.isfinite(terms.kl + terms.nll)):
            raise self._non_finite(terms, i)
        self.sums += torch.stack([terms.kl * data, terms.nll]).to(self.sums)
        self.batch = i + 1

    def _end_epoch(self) -> None:
        kl, nll = (self.sums / len(self.train)).tolist()
        if not math.isfinite(kl + nll):
            bad = (~self.seen.isfinite()).nonzero()
            raise self._non_finite(Terms(self.sums[0], self.sums[1]), int(bad[0]) if len(bad) else self.M - 1)
        error, validation_nll = math.nan, math.nan
        if self.validation is not None:
            draws, seed = self.validation_draws, self.epoch
            error, validation_nll = validate(
                self.model, self.guide, self.validation, draws=draws, seed=seed, ranks=self.ranks
            )
        lr = float(self.optimizer.param_groups[0]["lr"])
        self.between_steps = False
        if self.schedule is not None:
            self.schedule.step()
        self.order.set_state(self.next_order)
        self.epoch += 1
        row = Epoch(self.chain, self.epoch, kl + nll, kl, nll, error, validation_nll, lr, self.spent)
        self.batch, self.spent = 0, 0.0
        self.sums.zero_()
        self.history.rows.append(row)
        self.between_steps = True
        if self.history_path is not None:
            history.append(self.history_path, row)
        self.progress.epoch(row)

    def _non_finite(self, terms: Terms, i: int) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"the free energy is not finite in epoch {self.epoch + 1}, step {i + 1} of {self.M}: "
            f"KL {float(terms.kl):g}, NLL {float(terms.nll):g}. Usual causes: a learning rate too large for "
            f"the prior (plain SGD with a narrow spike sigma2, or with the KL shares 2^(M-i)), inputs that "
            f"are not scaled, or an initial rho that is too large. Try a lower lr, Adam, kl=uniform or a "
            f"wider sigma2{self._last_good()}."
        )

    def _last_good(self) -> str:
        kept = self.checkpoint_path
        return f"; the last good checkpoint is {kept}" if kept is not None and kept.exists() else ""

    def _kept(self) -> str:
        path = self.checkpoint_path
        if path is None:
            return "no folder was given, so nothing is kept"
        return f"the last checkpoint is {path}: the same command goes on from it, on any number of processes"

    def _due(self) -> bool:
        return monotonic() - self.saved_at >= self.checkpoint_seconds

    def _check_end(self) -> None:
        """NonFiniteLossError if the last step, whose result no other step has seen, left NaN or infinity."""
        if not self._finite():
            raise NonFiniteLossError(
                f"a parameter is not finite after the last step, in epoch {self.epoch}; the usual cause is a "
                f"learning rate that is too large. Try a lower one{self._last_good()}."
            )

    def _finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.named.values())

    def _save(self) -> None:
        path = self.checkpoint_path
        if path is None:
            return
        if not self._finite():
            return  # the next step will say so, or the end; the last good checkpoint stays
        self.noise = random_state(self.device)
        state = self.state()
        if self.ranks.is_main:
            checkpoints.save(path, state)
        self.saved_at = monotonic()

    def state(self) -> dict[str, Any]:
        """Everything needed to go on exactly from here, as tensors and plain values.

        Several processes must ask for it together, for it holds the noise of each.
        """
        return resumption.state(self)

    def restore(self, path: Path | str) -> None:
        """Take up the state that a checkpoint holds, made by however many processes.

        As many processes as made it go on exactly. On another number the parameters, the optimiser and the
        order of the data go on, and the noise comes from streams that were not used before. Only the first
        process reads the file.

        Raises:
            CheckpointError: If the file is damaged or belongs to another network or guide.
        """
        state = checkpoints.load(path, self._read_to) if self.ranks.is_main else None
        resumption.load_state_dict(self, self.ranks.from_main(state), path)

    def resume(self) -> bool:
        """Take up the newest whole checkpoint of the folder; False if there is none.

        A damaged one is kept under the name `chain-0.damaged.pt`, and the one before it taken instead.
        """
        path = self.checkpoint_path
        found = None
        if path is not None and self.ranks.is_main:
            found = checkpoints.load_newest(path, self._read_to, repair=True)
        found = self.ranks.from_main(found)
        if found is not None:
            resumption.load_state_dict(self, *found)
        return found is not None

    @property
    def _read_to(self) -> torch.device:
        """Where a checkpoint is read to: the CPU, if other processes are to have it."""
        return self.device if self.ranks.size == 1 else torch.device("cpu")


def fit(model: BayesianNetwork, guide: nn.Module, data: Dataset, **options: Any) -> Posterior:
    """Fit q(w) to p(w | data) and return the posterior; `options` are those of `Training`.

    With `folder=` it goes on from the checkpoint that lies there.

    >>> posterior = fit(model, MeanFieldNormal(model), data, epochs=10)

    Raises:
        CheckpointError: If the checkpoint belongs to another network, guide or data set.
    """
    training = Training(model, guide, data, **options)
    training.resume()
    training.run()
    return Posterior([(model, guide)])
