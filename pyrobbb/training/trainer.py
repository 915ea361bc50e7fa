"""Stochastic variational inference: the one training loop, over one chain or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.device import tf32_products
from pyrobbb._support.process_group import SINGLE, LostProcessError, ProcessGroup
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb._support.signals import Interrupt
from pyrobbb.accelerated import GraphStep
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.evaluation.trivial_bound import compared, trivial_free_energy
from pyrobbb.inference import SVI
from pyrobbb.posterior import Posterior
from pyrobbb.priors import Learned
from pyrobbb.svi import RowWeights, Terms, no_nan_warnings
from pyrobbb.training.batched_chains import BatchedChains
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.chain import Chain, NonFiniteLossError
from pyrobbb.training.history import History
from pyrobbb.training.progress import Printed, Progress

__all__ = ["NonFiniteLossError", "Training", "fit", "train", "train_all"]

MakeModel = Callable[[], BayesianNetwork]
MakeGuide = Callable[[BayesianNetwork], nn.Module]


class Training(Chain):
    """A chain that is trained by itself; the arguments are those of `Chain`."""

    @cached_property
    def trivial(self) -> float | None:
        """The free energy of ignoring the inputs, in nats per datum, under the prior as it now stands."""
        return trivial_free_energy(self.model, self.train)

    def run(self) -> History:
        """Train to the last epoch, from where a checkpoint or an interruption left off.

        Ctrl-C and SIGTERM end it after the current step, with a checkpoint.

        Raises:
            NonFiniteLossError: If the free energy becomes infinite or NaN.
            LostProcessError: If another process that trains with this one ended.
            BlockingIOError: If another training writes to the same folder.
            OSError: If a checkpoint cannot be written; earlier ones stay.
        """
        train([self])
        return self.history


def train(chains: Sequence[Chain], *, fast: str = "auto") -> None:
    """Train every chain to its end, one step of each at a time.

    Several chains take one batched step: on the CPU, of the same network, data, likelihood, epochs, batch
    size and draws per step, with mean-field guides or all by one method that descends to a point (`MAP`,
    `SWAG`, ...). Seeds, the priors' parameters, optimisers and weights of the KL may differ. Each ends as it
    would alone, up to rounding. Make them with `fast="eager"`: their own steps then serve for noise and
    comparison only.

    Args:
        chains: All at the same epoch and batch.
        fast: "auto", "compiled" or "eager": the batched step, as in `Options`.

    Raises:
        NotBatchableError: If several cannot be batched; nothing has been trained then.
        NonFiniteLossError: If the free energy of one of them becomes infinite or NaN.
    """
    if not chains:
        raise NotBatchableError("there is no training to run")
    loop = _Loop(chains, fast)
    with ExitStack() as stack:
        for chain in chains:
            stack.enter_context(chain.locked())
        loop.run()


class _Loop:
    """Takes one step of all active chains per iteration."""

    def __init__(self, chains: Sequence[Chain], fast: str) -> None:
        self.chains, self.fast = list(chains), fast
        self.first = chains[0]
        self.ranks, self.device, self.progress = self.first.ranks, self.first.device, self.first.progress
        own = any(chain.callbacks for chain in chains)
        self.callbacks = self.ranks.any(own)[0]  # in whichever process: all then ask one another at each step
        self.active: list[Chain] = []
        self.batched: BatchedChains | None = None
        if len(self._unfinished()) > 1:
            self._activate(self._unfinished())

    def _unfinished(self) -> list[Chain]:
        return [chain for chain in self.chains if not chain.done]

    def _activate(self, chains: list[Chain]) -> None:
        """Step these chains from here on: one with its own step, several with one joint step."""
        self.active = chains
        self.batched = BatchedChains(chains, self.fast) if len(chains) > 1 else None

    def run(self) -> None:
        """Epoch by epoch to the end; Ctrl-C and SIGTERM end all chains after a step, with checkpoints."""
        first, together = self.first, self.ranks.size > 1
        with (
            isolated(device=self.device),
            no_nan_warnings(),
            tf32_products(first.tf32),
            Interrupt(ignore_repeats=together) as self.interrupt,
        ):
            shown = self.progress
            if isinstance(shown, Printed) and (first.chain == 0 or shown.trivial is None):
                shown.trivial = self._trivial()  # of one chain: it is that of the others too
            set_random_state(first.noise, self.device)
            try:
                self.progress.start(first.chain, first.epoch, first.epochs, first.M, first.batch)
                for chain in self.chains:
                    chain.begin()
                if together:
                    self._save()  # one to resume from, whenever a process is lost
                while unfinished := self._unfinished():
                    if unfinished != self.active:
                        self._activate(unfinished)
                        if self.batched is None:
                            set_random_state(unfinished[0].noise, self.device)
                    self._run_epoch()
                    self._pause(last=not self._unfinished())
                changed = [chain.finish() for chain in self.chains]
                if any(changed):
                    self._save()
                for chain in self.chains:
                    chain.end()
            except KeyboardInterrupt:
                if all(chain.between_steps for chain in self.chains):
                    self._save()  # a second signal does not wait for the end of a step
                raise
            except LostProcessError as error:
                raise LostProcessError(f"{error}; {self._kept()}") from error
            finally:
                self._keep_noise()
                self.progress.stop()

    def _run_epoch(self) -> None:
        """The rest of the current epoch, until one of the chains is stopped."""
        first, R = self.active[0], len(self.active)
        began = perf_counter() - R * first.spent
        each = [chain.begin_epoch() for chain in self.active]
        rows, sums = each[0], first.sums
        if R == 1:
            first.spent = perf_counter() - began
            if self._run_many(rows):
                return
            began = perf_counter() - first.spent
        batches = [chain.batches(own) for chain, own in zip(self.active, each, strict=True)]
        if R > 1:
            sums = torch.stack([chain.sums for chain in self.active])
            for chain, own in zip(self.active, sums, strict=True):
                chain.sums = own
        for i in range(first.batch, first.M):
            self._run_step(i, len(rows[i]), batches, sums)
            for chain in self.active:
                chain.spent = (perf_counter() - began) / R
            if i + 1 < first.M:  # an epoch's last step is kept together with its end
                if self._stopped():
                    return
                self._pause()
                began = perf_counter() - R * first.spent
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the steps were only launched; their work counts too
            first.spent = perf_counter() - began
        for chain in self.active:
            chain.end_epoch()
        self._stopped()

    def _trivial(self) -> float | None:
        """What ignoring the inputs costs; None where training changes that, or there is no free energy."""
        first = self.first
        points = any(True for _ in first.model.network.parameters())
        changes = points or any(isinstance(module, Learned) for module in first.model.modules())
        if changes or first.done or not (isinstance(first, Training) and first.inference.bounds):
            return None
        return first.trivial

    def _run_many(self, rows: Sequence[Tensor]) -> bool:
        """On CUDA, as much of the epoch as goes with many steps per launch; whether a callback stopped it.

        The same steps as one by one. Callbacks that observe steps, priors that are learned, other processes
        and data that are not on the device need them one by one.
        """
        chain, B = self.active[0], len(rows[0])
        step, data = chain.step, chain.train
        if not (isinstance(step, GraphStep) and step.ready and isinstance(data, Split)):
            return False
        if chain.steppers or chain.learned or self.ranks.size > 1:
            return False
        if getattr(data.x, "device", None) != step.x.device:
            return False
        order = torch.stack([part for part in rows if len(part) == B])
        fraction = B / len(data)
        step.begin_epoch(data, order, [chain.kl_weight(i, fraction) for i in range(len(order))])
        began = perf_counter() - chain.spent
        while chain.batch + step.MANY <= len(order):
            chain.between_steps = False
            terms = step.take_many(chain.batch)
            if terms is not None:
                chain.seen[chain.batch :][: step.MANY].copy_(terms.kl + terms.nll)
                chain.sums += torch.stack([terms.kl * fraction, terms.nll], dim=-1).to(chain.sums).sum(0)
                chain.batch += step.MANY
            chain.between_steps = True
            if terms is None:
                break
            for _ in range(step.MANY):
                self.progress.step()
            chain.spent = perf_counter() - began
            if chain.batch < chain.M:
                if self._stopped():
                    return True
                self._pause()
                began = perf_counter() - chain.spent
        return False

    def _run_step(self, i: int, B: int, batches: Sequence[Iterator[Split]], sums: Tensor) -> None:
        """Step i of the epoch, counted from 0, on minibatches of B rows."""
        parts = [next(batch) for batch in batches]
        fraction = B / len(self.first.train)
        weights = [chain.kl_weight(i, fraction) for chain in self.active]
        for chain in self.active:
            chain.between_steps = False
        if self.batched is None:
            [part], [weight] = parts, weights
            mine = len(part) / B  # this process's share of the minibatch
            with RowWeights(part.weights):
                terms = self.active[0].step(part.x, part.y, weight * mine, fraction * mine)
        else:
            terms = self.batched(parts, weights)
        self._sum(terms, i, fraction, sums)
        for r, chain in enumerate(self.active):
            chain.learn_prior(i)
            chain.batch = i + 1
            if chain.steppers:
                chain.tell_step(terms if self.batched is None else Terms(terms.kl[r], terms.nll[r]))
            chain.between_steps = True
        self.progress.step()

    def _sum(self, terms: Terms, i: int, fraction: float, sums: Tensor) -> None:
        """Add what the step saw to the epoch's sums, KL and NLL in the last dimension."""
        both = torch.stack([terms.kl * fraction, terms.nll], dim=-1)
        if self.device.type == "cuda":
            self.active[0].seen[i].copy_(terms.kl + terms.nll)  # checked once per epoch, without waiting
        elif not bool(both.isfinite().all()):
            each = torch.stack([terms.kl, terms.nll], dim=-1).reshape(-1, 2)
            r = int((~each.isfinite().all(dim=1)).nonzero()[0])
            raise self.active[r].non_finite(float(each[r, 0]), float(each[r, 1]), i)
        sums += both.to(sums)

    def _pause(self, *, last: bool = False) -> None:
        """Between two steps: end here if a signal has come, to whichever process; save if it is time."""
        stop, due = self.ranks.any(self.interrupt.noted, last or self.active[0].due)
        if stop:
            raise KeyboardInterrupt
        if due:
            self._save()

    def _stopped(self) -> bool:
        """Whether a callback stopped one of the active chains, in whichever process."""
        if not self.callbacks:
            return False
        stopped = any(chain.history.stopped is not None for chain in self.active)
        if self.ranks.any(stopped)[0] and not stopped:
            self.active[0].stop("a callback in another process stopped it")
        return any(chain.done for chain in self.active)

    def _keep_noise(self) -> None:
        """A chain that steps alone draws from torch's generators; a batch keeps its chains' own streams."""
        if self.batched is None:
            chain = self.active[0] if self.active else self.first
            chain.noise = random_state(self.device)

    def _save(self) -> None:
        self._keep_noise()
        for chain in self.chains:
            chain.save()

    def _kept(self) -> str:
        path = self.first.checkpoint_path
        if path is None:
            return "no folder was given, so nothing is kept"
        return f"the last checkpoint is {path}: the same command resumes it, on any number of processes"


def train_all(
    make: Callable[[int, str], Training], chains: int, *, fast: str = "auto", together: bool = False
) -> list[Training]:
    """Train chains 0, 1, ... to their ends, as one batch if asked and possible, or one after the other.

    Args:
        make: Makes the training of a chain, from its number and `fast`; a checkpoint of it is resumed.
        chains: How many.
        fast: As in `Options`.
        together: Batch them.
    """

    def made(fast: str) -> list[Training]:
        found = [make(chain, fast) for chain in range(chains)]
        for training in found:
            if training.resume():
                where = f"epoch {training.epoch} of {training.epochs} ({training.folder})"
                training.log(f"chain {training.chain}: resuming at {where}")
        return found

    if together and chains > 1 and fast != "off":
        trainings = made("eager")
        try:
            train(trainings, fast=fast)
            return trainings
        except NotBatchableError as reason:
            trainings[0].log(f"training one chain after the other: {reason}")
    trainings = made(fast)
    for training in trainings:
        training.run()
    return trainings


def fit(
    model: BayesianNetwork | MakeModel,
    guide: nn.Module | MakeGuide | None,
    data: Any,
    *,
    validation: Any = None,
    chains: int = 1,
    together: bool = True,
    seed: int = 0,
    fast: str = "auto",
    folder: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | bool | None = True,
    ranks: ProcessGroup = SINGLE,
    **options: Any,
) -> Posterior:
    """Fit q(w) to p(w | data) and return the posterior, with the `history` of the fit.

    >>> posterior = fit(model, MeanFieldNormal, data, epochs=10)
    >>> posterior = fit(lambda: make_model(), MeanFieldNormal, data, chains=4)

    With `folder=` it resumes from the checkpoint found there.

    Args:
        model: The Pyro model, or a function without arguments that makes it: each chain then has a network
            of its own, initialised from the chain's seed. Of a model, chains 1, 2, ... train copies.
        guide: The Pyro guide, or a factory of it, such as `MeanFieldNormal`, called with the model; several
            chains need a factory. None if the prior leaves every weight deterministic.
        data: A `Dataset`; or a torch `Dataset` or `DataLoader` of pairs (x, y), read at each batch, with
            its transforms. N is their number of rows.
        validation: Takes the place of the data's own validation rows: a `Split`, or of torch's.
        chains: Independent restarts, from seeds seed, seed + 1, ...
        together: Train several chains of a small network as one batch, where that can be done.
        seed: See `Options`.
        fast: See `Options`.
        folder: Where checkpoints and history go; None keeps nothing.
        callbacks: Called after each step and epoch; of several chains each has copies of its own.
        progress: Progress callback; True shows a bar on a terminal and lines elsewhere, None nothing.
        ranks: The processes that train together.
        options: See `Options`: epochs, batch_size, optim, ...

    Returns:
        The posterior; `posterior.history` is a `History`, of several chains a list of them.

    Raises:
        CheckpointError: If the checkpoint belongs to another network, guide or data set.
        NonFiniteLossError: If the free energy becomes infinite or NaN.
    """
    if checks.count("chains", chains) > 1 and isinstance(guide, nn.Module):
        raise ValueError(
            f"chains={chains} need one guide each: pass a factory, such as {type(guide).__name__} itself"
        )
    checks.seed("seed", seed)
    show = progress if not isinstance(progress, bool) else Printed() if progress else None

    def make(chain: int, fast: str) -> Training:
        with isolated(seed + chain):
            own: Any = model
            if not isinstance(model, nn.Module):
                own = model()
            elif chain:
                own = deepcopy(model)
            q: Any = guide
            if not isinstance(guide, nn.Module) and own.sites:
                q = (options.get("inference") or SVI()).guide(own, guide)
            elif not isinstance(guide, nn.Module) and guide is not None:
                q = guide(own)
        return Training(
            own, q, data, validation=validation, folder=folder, chain=chain, progress=show, ranks=ranks,
            callbacks=callbacks if chains == 1 else deepcopy(callbacks), seed=seed + chain, fast=fast,
            **options,
        )  # fmt: skip

    trained = train_all(make, chains, fast=fast, together=together)
    posterior = Posterior([(training.model, training.guide) for training in trained])
    if show and ranks.is_main and posterior.model.sites and trained[0].inference.bounds:
        energy = fmean(training.history.rows[-1].free_energy for training in trained)
        show.log(compared(energy, trained[0].trivial))
    posterior.history = trained[0].history if chains == 1 else [training.history for training in trained]
    return posterior
