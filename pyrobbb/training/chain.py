"""One chain of a training: how it is set up, and what happens to it in each epoch."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import monotonic, perf_counter
from types import NoneType
from typing import Any

import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from pyrobbb._support import checks, optim
from pyrobbb._support.device import best_device, tf32_products, uses_tf32
from pyrobbb._support.files import locked, make_folder, remove_partial_files
from pyrobbb._support.model_inputs import NonFiniteOutputError, check_finite, check_targets, first_output
from pyrobbb._support.network_state import buffers_kept, says_replaced
from pyrobbb._support.optim import trained
from pyrobbb._support.process_group import SINGLE, ProcessGroup, noise_of
from pyrobbb._support.random_state import isolated, mixed_seed, random_state
from pyrobbb._support.settings import changes, constants, network_constants
from pyrobbb.accelerated import GraphStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.columns import Columns
from pyrobbb.data.dataset import Split
from pyrobbb.draws import NoWeights, has_density
from pyrobbb.evaluation.residuals import warn_of_noise
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.inference import MAP, SVI
from pyrobbb.inference.energy import check_density
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.inference.method import FunctionStep, OwnStep
from pyrobbb.posterior import Posterior
from pyrobbb.svi import Step, no_nan_warnings
from pyrobbb.training import compatibility, divergence, history
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.data_checks import check_data, reach, warn_of_data
from pyrobbb.training.divergence import NonFiniteLossError
from pyrobbb.training.end_checks import warn_of_falling, warn_of_no_update, warn_of_warm_up
from pyrobbb.training.history import Epoch, History
from pyrobbb.training.inputs import training_rows
from pyrobbb.training.options import Options
from pyrobbb.training.prior_changes import KeptPrior
from pyrobbb.training.progress import Guarded, Progress
from pyrobbb.training.site_checks import check_latents, check_made_for, check_sites, check_trainable
from pyrobbb.training.validation import validate

BATCH_SIZE = 128


def is_power_of_two(epochs: int) -> bool:
    """Whether so many epochs are 1, 2, 4, ...: when checks are due that would cost too much after each."""
    return epochs & (epochs - 1) == 0


def _check_surroundings() -> None:
    """ValueError in `torch.inference_mode()` or within one of Pyro's handlers."""
    if torch.is_inference_mode_enabled():
        raise ValueError("training needs gradients: leave torch.inference_mode() before it")
    with isolated():  # in turn: handlers belong to the whole process, and another thread may train
        wrapped = am_i_wrapped()
    if wrapped:
        raise ValueError(
            "training inside a handler of Pyro's, such as pyro.plate or poutine.scale, would be that of "
            "another model: leave the handler before it"
        )


class Chain:
    """The state of one chain between two steps; the loop (`pyrobbb.training.loop`) advances it.

    Args:
        model: The Pyro model; moved to the device. An N of None becomes the number of training rows.
        guide: The Pyro guide, an `nn.Module` over the same sites, moved too; None for a model whose prior
            leaves every weight deterministic.
        data: A `Dataset`; or a torch `Dataset` or `DataLoader` of pairs (x, y), read at each batch.
        validation: Takes the place of the data's own validation rows: a `Split`, or of torch's.
        folder: Where checkpoint and history go; None keeps nothing.
        chain: Number of this chain.
        callbacks: Called after each step and epoch, in this order.
        progress: Progress callback; None shows nothing.
        ranks: The processes that train it together (`pyrobbb._support.process_group.joined`); by default this
            one alone. All are given the same arguments; the first writes the files and reports progress.
        options: See `Options`.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: nn.Module | None,
        data: Any,
        *,
        validation: Any = None,
        folder: Path | str | None = None,
        chain: int = 0,
        callbacks: Sequence[Callback] = (),
        progress: Progress | None = None,
        ranks: ProcessGroup = SINGLE,
        **options: Any,
    ) -> None:
        _check_surroundings()
        checks.check_kinds(
            model=(model, BayesianNetwork),
            guide=(guide, nn.Module if getattr(model, "sites", True) else (nn.Module, NoneType)),
            folder=(folder, (str, Path, NoneType)),
            **{f"callbacks[{i}]": (callback, Callback) for i, callback in enumerate(callbacks)},
        )
        if model.latents and not model.sites:
            raise ValueError(
                f"the prior leaves every weight deterministic, but {', '.join(model.latents)} would be "
                f"drawn: learn the noise as a number, or give a weight a prior"
            )
        if guide is not None and not model.sites and not isinstance(guide, NoWeights):
            raise ValueError("the prior leaves every weight deterministic, so there is no guide: pass None")
        self.options = Options.of(options)
        train, held = training_rows(data, validation)
        N, given = len(train), model.N
        self.batch_size, self.M = self._sizes(given, N, ranks, getattr(train, "batch_size", None))
        self.ranks = ranks
        self.inference = self.options.inference if model.sites else SVI()  # no weights, no posterior
        if not model.sites and type(self.options.inference) not in (SVI, MAP):
            name = type(self.options.inference).__name__
            raise ValueError(f"{name} needs weights with a prior, but the prior leaves all deterministic")
        self.epochs = self.options.epochs if self.inference.steps else 0
        self.kl, self.seed = self.options.kl, self.options.seed
        self.device = best_device(self.options.device)
        self.folder = None if folder is None else Path(folder)
        self.chain = checks.count("chain", chain, minimum=0)
        self.callbacks = tuple(callbacks)
        for callback in callbacks:
            callback.restart()
        self.kinds_of_callbacks = [(compatibility.callback(each), each) for each in callbacks]
        self.steppers = [c for c in callbacks if type(c).on_step is not Callback.on_step]
        self.progress = Guarded.of(progress if ranks.is_main else None)
        self.model, self.guide = model.to(self.device), NoWeights() if guide is None else guide
        self.train, self.validation = train.to(self.device), None if held is None else held.to(self.device)
        self.of_table = isinstance(getattr(data, "columns", None), Columns)
        self.order = torch.Generator().manual_seed(self.seed)  # shuffles; apart from the weight noise
        self.tf32 = self.options.tf32 and self.device.type == "cuda"
        quiet = no_nan_warnings()
        with isolated(self.seed, device=self.device), quiet, tf32_products(self.tf32), torch.enable_grad():
            try:
                model.N = N
                self._set_up()
            except BaseException:
                model.N = given  # it was not fitted to these data
                raise
            self.noise = random_state(self.device)
        if ranks.size > 1:
            for parameter in self.named.values():
                ranks.broadcast_(parameter.data)
            self.noise = noise_of(ranks, self.device, self.seed, 0)
        self.epoch = 0  # epochs done
        self.batch = 0  # minibatches done in the current epoch
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # KL, NLL of that epoch
        self.seen = torch.zeros(self.M, device=self.device)  # on CUDA: F of each step of that epoch
        self.spent = 0.0  # seconds since the last row of the history
        self.history = History()
        self.saved_at = monotonic()
        self.between_steps = True
        self.constants = self._constants()
        self.changed = False  # whether they did in the epoch that ended last, in whichever process

    def _sizes(self, given: int | None, N: int, ranks: ProcessGroup, loader: int | None) -> tuple[int, int]:
        """Rows B of a minibatch and minibatches M of an epoch; given the model's N and a loader's B."""
        if given not in (None, N):
            raise ValueError(
                f"the model was made for N={given} data, the training set has {N}; to train it on all of "
                f"these, the earlier rows among them, set model.N = None first"
            )
        asked = self.options.batch_size
        B = min(loader or BATCH_SIZE, N) if asked is None else asked
        if B > N:
            raise ValueError(f"batch_size {asked} is larger than the training set, N={N}")
        if ranks.size > B:
            raise ValueError(f"batch_size {B} is less than the number of processes, {ranks.size}")
        return B, math.ceil(N / B)

    def _set_up(self) -> None:
        """Check everything, and make what trains."""
        options, first = self.options, self.train.head(1)
        self.sample = self.train if isinstance(self.train, Split) else self.train.head(self.batch_size)
        check_data(self.model, self.sample, self.validation)
        check_trainable(self.model, self.guide)
        check_made_for(self.model, self.guide)
        check_latents(self.model, first)
        self.inference.check(self.model, self.guide, options, self.ranks)
        self.learned = [prior for prior in self.model.learned if prior.by == "em"]
        try:
            self.guide(first.x, first.y)  # autoguides make their parameters at the first call
        except NotImplementedError as error:  # Pyro's, of a guide for other kinds of sites
            name = type(self.guide).__name__
            raise ValueError(f"guide {name} does not fit this model: {error}") from error
        self.guide.to(self.device)
        check_sites(self.model, self.guide, first)
        if isinstance(self.inference, OwnStep):
            check_density(self.model, self.guide, first, type(self.inference).__name__)
        self.named = optim.named_parameters(self.model, self.guide)
        groups = optim.parameter_groups(self.named, options.optim, options.rates)
        self.optimizer = optim.made_optimizer(optim.fused(options.optim, self.device), groups)
        optim.on_device(self.optimizer, self.device)
        if options.clip_norm is not None:
            optim.clip_gradients(self.optimizer, options.clip_norm)
        self.schedule: LRScheduler | None = None
        if options.schedule:
            self.schedule = optim.made_schedule(options.schedule, self.optimizer, self.epochs)
        self.made_with = compatibility.training(self)
        self.held = compatibility.held(self.model)  # before training changes some
        if isinstance(self.guide, FlatGuide):
            self.guide.restart()
        self.step = self._made_step(options.fast)
        live = type(self.inference) is SVI
        self.prior = KeptPrior(self.model, live=live) if self.step.keeps_prior else None
        self.model.input_dtype = self.sample.x.dtype

    def _made_step(self, fast: str) -> Step:
        """The step of the method, as fast as the network lets it be."""
        options = self.options
        with buffers_kept(self.model) as replaced:
            made = self.inference.step(
                self.model, self.guide, self.optimizer,
                self.train.head(self.own_rows),
                samples=options.samples, estimator=options.estimator, vectorize=options.vectorize,
                elbo=options.elbo, fast=fast,
                steps=self.epochs * self.M, log=self.progress.log, ranks=self.ranks,
            )  # fmt: skip
        step = made if isinstance(made, Step) else FunctionStep(made)
        live = "off" if isinstance(step, GraphStep) else "eager"  # where each step calls the network
        if replaced and fast != "off":
            why, instead = says_replaced(replaced), "off"
        elif step.recorded and fast not in (live, "off") and (changed := self.changed_by_a_call()):
            why, instead = f"the network changes {changed} when it is called", live
        else:
            return step
        self.progress.log(f"training step by step, without a recording: {why}")
        return self._made_step(instead)

    def changed_by_a_call(self) -> str | None:
        """The name of an attribute that changes when the network is called, such as a count of its calls."""
        model, x = self.model, self.sample.head(self.batch_size).x
        seen = []
        with buffers_kept(model), torch.no_grad(), isolated(0, device=self.device):
            for _ in range(2):
                model.apply_network(model.initial(), x)
                seen.append(network_constants(model.network))
        return next((name for name, *_ in changes(*seen)), None)

    # What is known of it

    @property
    def done(self) -> bool:
        """Whether it has finished its last epoch, or a callback stopped it."""
        return self.epoch >= self.epochs or self.history.stopped is not None

    @property
    def own_rows(self) -> int:
        """Rows of this process in a minibatch of the usual size."""
        return len(range(self.ranks.rank, self.batch_size, self.ranks.size))

    @property
    def graph(self) -> GraphStep | None:
        """The step, if many of them can go with one launch on CUDA.

        Callbacks that observe steps, priors that are learned, other processes and data that are not on the
        device need them one by one.
        """
        step, data = self.step, self.train
        if not (isinstance(step, GraphStep) and isinstance(data, Split)):
            return None
        if self.steppers or self.learned or self.ranks.size > 1:
            return None
        return step if getattr(data.x, "device", None) == step.x.device else None

    @cached_property
    def has_bound(self) -> bool:
        """Whether the loss is a free energy, of finite KL."""
        return self.inference.bounds and has_density((self.model, self.guide))

    @cached_property
    def trivial(self) -> float | None:
        """The free energy of ignoring the inputs, in nats per datum, under the prior as it now stands."""
        return trivial_free_energy(self.model, self.train)

    @property
    def posterior(self) -> Posterior:
        """The posterior as it stands, of this chain alone."""
        return Posterior([(self.model, self.guide)], [self.history], reach=self.reach)

    @cached_property
    def reach(self) -> float | None:
        """The largest |x| of up to `SEEN` training rows; None for tokens."""
        return reach(self.sample)

    @property
    def writes(self) -> bool:
        """Whether this process, of several, is the one that writes files."""
        return self.ranks.is_main

    @property
    def checkpoint_path(self) -> Path | None:
        """The chain's checkpoint in the run folder."""
        return None if self.folder is None else self.folder / f"chain-{self.chain}.pt"

    def finite(self) -> bool:
        """Whether every parameter is finite."""
        return all(bool(p.isfinite().all()) for p in self.named.values())

    @property
    def history_path(self) -> Path | None:
        """The history of all chains in the run folder, which the first process writes."""
        return self.folder / "history.csv" if self.folder is not None and self.writes else None

    # What the loop asks of it

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this chain's files while the body runs; the history holds what was done so far."""
        path = self.history_path
        if path is None:
            yield
            return
        make_folder(path.parent)
        with locked(path.parent, f".chain-{self.chain}.lock"):
            remove_partial_files(path.parent, f"chain-{self.chain}.pt")
            others = [row for row in history.read_if_there(path) if row.chain != self.chain]
            history.write(path, others + self.history.rows)
            yield

    def warn(self) -> None:
        """Log likely mistakes in data and options, which chains share: the first says it for all."""
        if self.chain:
            return
        warn_of_data(self.model, self.guide, self.sample, table=self.of_table)
        if self.inference.steps:
            optim.warn_of_rounding(self.named)
        if self.inference.descends:
            optim.warn_of_decay(self.optimizer, self.guide)

    def begin_epoch(self) -> tuple[Tensor, ...]:
        """The rows of each minibatch of the epoch that begins.

        `order` advances at the epoch's end: resuming within the epoch needs the same order again.
        """
        generator = torch.Generator()
        generator.set_state(self.order.get_state())
        rows = torch.randperm(len(self.train), generator=generator).split(self.batch_size)
        self.next_order = generator.get_state()
        return rows

    def batches(self, rows: Sequence[Tensor]) -> Iterator[Split]:
        """The minibatches that are left of the epoch; each of several processes reads its own part."""
        mine = [self.ranks.shard(part) for part in rows[self.batch :]]
        found = self.train.batches(mine, mixed_seed(self.seed, self.epoch)) if mine else iter(())
        return found if isinstance(self.train, Split) or self.epoch else self._checked(mine, found)

    def _checked(self, rows: Sequence[Tensor], batches: Iterator[Split]) -> Iterator[Split]:
        """Of a torch `Dataset` the first epoch is the first to see every row."""
        output: Tensor | None = None
        for own, batch in zip(rows, batches, strict=True):
            if len(batch):
                check_finite("x", batch.x, own)
                output = first_output(self.model, "x", batch.x) if output is None else output
                check_targets(self.model, "y of a minibatch", output, batch.y)
            yield batch

    def kl_weight(self, i: int, fraction: float) -> float:
        """Pi of the epoch's step i, counted from 0, which holds `fraction` = B/N of the data."""
        weight = self.kl.weight(i + 1, self.M, self.epoch + 1, fraction)
        plain = weight.item() if isinstance(weight, Tensor) else weight
        return checks.number(f"kl: what {type(self.kl).__name__}.weight returns", plain)

    def learn_prior(self, i: int) -> None:
        """Update the priors that are learned in closed form, if it is time after step i, counted from 0."""
        steps = self.epoch * self.M + i + 1
        for prior in self.learned:
            if steps % prior.every == 0:  # the same draws in all processes, and when resumed
                with isolated(mixed_seed(self.seed, steps), device=self.device):
                    prior.update(self.model, self.guide)

    def end_epoch(self) -> None:
        """Measure the epoch if it is recorded, and advance to the next."""
        done = self.epoch + 1
        row = None
        if done % self.options.record_every == 0 or done == self.epochs:
            row = self._measured()
        self.between_steps = False
        if self.schedule is not None:
            self.schedule.step()
        self.order.set_state(self.next_order)
        self.epoch += 1
        self.batch = 0
        self.sums.zero_()
        if row is not None:
            self.spent = 0.0
            self.history.rows.append(row)
            self.tell("on_epoch", row)
        before, self.constants = self.constants, self._constants()
        self.changed = self.ranks.any(self.constants != before)[0]  # all check, or none: they may sum in it
        if self.changed or (done > 1 and is_power_of_two(done)):
            self._check_recording()
        self.between_steps = True
        if row is not None:
            if self.history_path is not None:
                history.append(self.history_path, row)
            self.progress.epoch(row)

    def _constants(self) -> str:
        """What callbacks may change of the modules besides tensors; a text, for lists may change in place."""
        modules = (*self.model.modules(), *self.guide.modules()) if self.callbacks else ()
        return repr([(module.training, constants(module)) for module in modules])

    def _check_recording(self) -> None:
        """ValueError if a step no longer computes what model and prior do."""
        if self.prior is not None:
            self.prior.check()
        if not uses_tf32(self.device):  # whose rounding looks like a change
            self.step.check_still(self.sample.head(self.own_rows), self.model)

    def _measured(self) -> Epoch:
        """The history row of the epoch that ends here."""
        kl, nll = (self.sums / len(self.train)).tolist()
        if not math.isfinite(kl + nll):
            bad = (~self.seen.isfinite()).nonzero()
            N = len(self.train)
            raise self.non_finite(N * kl, N * nll, int(bad[0]) if len(bad) else self.M - 1)
        error = validation_nll = math.nan
        if self.validation is not None:
            try:
                error, validation_nll = validate(
                    self.model, self.guide, self.validation,
                    draws=self.options.validation_draws, seed=self.epoch, ranks=self.ranks,
                )  # fmt: skip
            except NonFiniteOutputError as reason:
                raise divergence.in_validation(self.epoch + 1, reason, self.checkpoint_path) from reason
        lr = float(self.optimizer.param_groups[0]["lr"])
        return Epoch(self.chain, self.epoch + 1, kl + nll, kl, nll, error, validation_nll, lr, self.spent)

    def finish(self) -> bool:
        """Do what the method does after the last step; whether the guide has changed."""
        train = self.train
        rows = (lambda: train) if isinstance(train, Split) else train.whole
        began = perf_counter()
        with isolated(self.seed, device=self.device):
            changed = self.inference.finish(self.model, self.guide, rows, self.log)
        if changed:
            self.history.finishing = perf_counter() - began
        return changed

    def end(self) -> None:
        """The training ended; NonFiniteLossError if its last step, which no later one checked, left NaN."""
        if not self.finite():
            raise divergence.at_end("a parameter", self.epoch, self.checkpoint_path)
        self._check_recording()
        if self.writes:
            try:
                warn_of_noise(self.model, self.guide, self.train)
            except NonFiniteOutputError as reason:
                what = "the output for a training row, or its log-likelihood,"
                raise divergence.at_end(what, self.epoch, self.checkpoint_path) from reason
            steps = self.epoch * self.M + self.batch
            self.inference.warn(self.guide, len(self.train), steps)
            warn_of_no_update(self.learned, steps)
            warn_of_falling(self.history)
            warn_of_warm_up(self.kl, self.epoch + (self.batch > 0))
        self.tell("on_end")

    def log(self, message: str) -> None:
        """Log a line."""
        self.progress.log(message)

    def tell(self, event: str, *what: Any) -> None:
        """Call this method of the callbacks."""
        if self.callbacks:
            with isolated(device=self.device), torch.enable_grad():  # whatever a callback leaves behind
                for callback in self.callbacks:
                    getattr(callback, event)(self, *what)
            if not self.done and not all(p.requires_grad for p in trained(self.optimizer)):
                every = (*self.model.named_parameters(), *self.guide.named_parameters())
                name = next(name for name, p in every if not p.requires_grad)
                raise ValueError(
                    f"a callback froze the parameter {name!r}: to stop it, give it a group of its own by "
                    f"rates=, and let schedule= lower the rate of that group to 0"
                )

    def stop(self, reason: str) -> None:
        """End the training after the current step or epoch; `reason` is logged and kept in the history."""
        if self.history.stopped is None:
            self.history.stopped = reason
            epoch = max(1, self.epoch + (self.batch > 0))  # the current one, or the one that has just ended
            self.log(f"chain {self.chain} stops in epoch {epoch}: {reason}")

    def non_finite(self, kl: float, nll: float, i: int) -> NonFiniteLossError:
        """The error to raise for step i, counted from 0, of the current epoch."""
        where = f"epoch {self.epoch + 1}, step {i + 1} of {self.M}"
        first = self.epoch == 0 and i == 0
        return divergence.in_step(where, kl, nll, self.checkpoint_path, first)
