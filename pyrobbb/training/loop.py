"""The one training loop: one step of each chain at a time, signals and checkpoints between two steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor

from pyrobbb._support.device import tf32_products
from pyrobbb._support.process_group import LostProcessError
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb._support.signals import Interrupt
from pyrobbb.accelerated import GraphStep
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms, no_nan_warnings
from pyrobbb.training.batched_chains import BatchedChains
from pyrobbb.training.chain import is_power_of_two
from pyrobbb.training.interleaved_chains import InterleavedChains
from pyrobbb.training.joint_chains import JointChains
from pyrobbb.training.resumption import Resumable


class Loop:
    """Takes one step of all active chains per iteration."""

    def __init__(self, chains: Sequence[Resumable], fast: str) -> None:
        self.chains, self.fast = list(chains), fast
        self.first = chains[0]
        self.ranks, self.device, self.progress = self.first.ranks, self.first.device, self.first.progress
        own = any(chain.callbacks for chain in chains)
        self.callbacks = self.ranks.any(own)[0]  # in whichever process: all then ask one another at each step
        self.active: list[Resumable] = []
        self.joint: JointChains | None = None
        if len(self._unfinished()) > 1:
            self._activate(self._unfinished())

    def _unfinished(self) -> list[Resumable]:
        return [chain for chain in self.chains if not chain.done]

    def _activate(self, chains: list[Resumable]) -> None:
        """Step these chains from here on: one with its own step, several with one joint step."""
        if self.joint is not None:
            self.joint.keep_noise()
            self.joint.release()
        self.active, self.joint = chains, None
        if len(chains) > 1:
            on_cuda = self.device.type == "cuda"
            self.joint = InterleavedChains(chains) if on_cuda else BatchedChains(chains, self.fast)

    def run(self) -> None:
        """Epoch by epoch to the end; Ctrl-C and SIGTERM end all chains after a step, with checkpoints."""
        first, together = self.first, self.ranks.size > 1
        with (
            isolated(device=self.device),
            no_nan_warnings(),
            tf32_products(first.tf32),
            Interrupt(ignore_repeats=together) as self.interrupt,
        ):
            self.progress.about(first.chain, first.has_bound, self._trivial)
            first.warn()
            set_random_state(first.noise, self.device)
            try:
                shown = next(iter(self._unfinished()), first)
                self.progress.start(shown.chain, shown.epoch, shown.epochs, shown.M, shown.batch)
                for chain in self.chains:
                    chain.tell("on_start")
                if together:
                    self._save()  # one to resume from, whenever a process is lost
                self._run_epochs()
                self._finish()
            except KeyboardInterrupt:
                if all(chain.between_steps for chain in self.chains):
                    self._save()  # a second signal does not wait for the end of a step
                raise
            except LostProcessError as error:
                raise LostProcessError(f"{error}; {self._kept()}") from error
            finally:
                self._keep_noise()
                if self.joint is not None:
                    self.joint.release()
                for chain in self.chains if together else ():
                    if isinstance(chain.step, GraphStep):
                        chain.step.reset()  # NCCL lets no process leave while a graph holds its sums
                self.progress.stop()

    def _run_epochs(self) -> None:
        """Epoch after epoch, until every chain is done."""
        while unfinished := self._unfinished():
            if unfinished != self.active:
                self._activate(unfinished)
                if self.joint is None:
                    set_random_state(unfinished[0].noise, self.device)
            self._run_epoch()
            self._pause(last=not self._unfinished())

    def _finish(self) -> None:
        """What is left after the last step: the method's own work, then the checks of what came out."""
        for chain in self.chains:
            self.interrupt.at_once = True  # a sampler does all of its work here, and starts again
            changed = chain.finish()
            self.interrupt.at_once = False
            if changed:
                self._keep_noise()
                chain.save()
            self.interrupt.check()
        for chain in self.chains:
            chain.end()

    def _run_epoch(self) -> None:
        """The rest of the current epoch, until one of the chains is stopped."""
        first = self.active[0]
        with self._timed():
            each = [chain.begin_epoch() for chain in self.active]
        rows = each[0]
        if self._run_many(each):
            return
        with self._timed():
            batches = [chain.batches(own) for chain, own in zip(self.active, each, strict=True)]
        sums = torch.stack([chain.sums for chain in self.active])
        for chain, own in zip(self.active, sums, strict=True):
            chain.sums = own
        for i in range(first.batch, first.M):
            with self._timed():
                self._run_step(i, len(rows[i]), batches, sums)
            if i + 1 < first.M:  # an epoch's last step is kept together with its end
                if self._stopped():
                    return
                self._pause()
        if self.device.type == "cuda":
            with self._timed():  # the steps were only launched; their work counts too
                torch.cuda.synchronize(self.device)
        for chain in self.active:
            chain.end_epoch()
        due = is_power_of_two(first.epoch) or any(chain.changed or chain.done for chain in self.active)
        if self.joint is not None and self.callbacks and due:
            self.joint.check_still()
        self._stopped()

    def _trivial(self) -> float | None:
        """What ignoring the inputs costs; None where training changes that, or there is no free energy."""
        first = self.first
        changes = bool(first.model.learned) or any(True for _ in first.model.network.parameters())
        return None if changes or first.done or not first.has_bound else first.trivial

    def _run_many(self, each: Sequence[tuple[Tensor, ...]]) -> bool:
        """On CUDA, as much of the epoch as goes with many steps per launch; whether a callback stopped it.

        The same steps as one by one. `each` has the rows of each chain's minibatches.
        """
        steps = [step for chain in self.active if (step := chain.graph) is not None and step.ready]
        if len(steps) < len(self.active):
            return False
        first, B = self.active[0], len(each[0][0])
        fraction, full = B / len(first.train), len(first.train) // B
        for chain, step, rows in zip(self.active, steps, each, strict=True):
            assert isinstance(chain.train, Split)  # as `Chain.graph` saw
            weights = [chain.kl_weight(i, fraction) for i in range(full)]
            step.begin_epoch(chain.train, torch.stack(rows[:full]), weights)
        many = steps[0].steps_per_launch
        while first.batch + many <= full and all(step.capture_many() for step in steps):
            for chain in self.active:
                chain.between_steps = False
            with self._timed():
                taken = self.joint.take_many() if self.joint else [steps[0].take_many(first.batch)]
                for chain, terms in zip(self.active, taken, strict=True):
                    chain.seen[chain.batch :][:many].copy_(terms.kl + terms.nll)
                    sums = torch.stack([terms.kl * fraction, terms.nll], dim=-1).to(chain.sums)
                    chain.sums += sums.sum(0)
            for chain in self.active:
                chain.batch += many
                chain.between_steps = True
            for _ in range(many):
                self.progress.step()
            if first.batch < first.M:
                if self._stopped():
                    return True
                self._pause()
        return False

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Divide the time of the body among the chains."""
        began = perf_counter()
        yield
        for chain in self.active:
            chain.spent += (perf_counter() - began) / len(self.active)

    def _run_step(self, i: int, B: int, batches: Sequence[Iterator[Split]], sums: Tensor) -> None:
        """Step i of the epoch, counted from 0, on minibatches of B rows."""
        parts = [next(batch) for batch in batches]
        fraction = B / len(self.first.train)
        weights = [chain.kl_weight(i, fraction) for chain in self.active]
        for chain in self.active:
            chain.between_steps = False
        if self.joint is None:
            [part], [weight] = parts, weights
            mine = len(part) / B  # this process's share of the minibatch
            terms = self.active[0].step(part.x, part.y, weight * mine, fraction * mine, part.weights)
        else:
            terms = self.joint(parts, weights)
        self._sum(terms, i, fraction, sums)
        for r, chain in enumerate(self.active):
            chain.learn_prior(i)
            chain.batch = i + 1
            if chain.steppers:
                own = terms if self.joint is None else Terms(terms.kl[r], terms.nll[r])
                chain.tell("on_step", own)
            chain.between_steps = True
        self.progress.step()

    def _sum(self, terms: Terms, i: int, fraction: float, sums: Tensor) -> None:
        """Add what the step saw to the epoch's sums, KL and NLL in the last dimension."""
        both = torch.stack([terms.kl * fraction, terms.nll], dim=-1)
        if self.device.type == "cuda":
            for chain, value in zip(self.active, (terms.kl + terms.nll).reshape(-1), strict=True):
                chain.seen[i].copy_(value)  # checked once per epoch, without waiting
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
        """A chain that steps alone draws from torch's generators, several from their own."""
        if self.joint is not None:
            self.joint.keep_noise()
            return
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
