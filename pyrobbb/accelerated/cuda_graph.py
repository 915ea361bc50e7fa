"""A whole training step as one CUDA graph: noise, loss, gradients and optimiser with a single launch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pyrobbb._support.optim import forget_gradients, moments, on_the_device, trained
from pyrobbb._support.text import kind_and_reason
from pyrobbb.accelerated.agreement import check_taken
from pyrobbb.accelerated.fast_step import FastStep, WrappedStep
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms

ROOM = 2**28  # bytes of the minibatches that a launch gathers
PLAIN = (bool, int, float)  # numpy's numbers have precisions of their own


class GraphStep(WrappedStep):
    """Takes the steps of `step` by replaying a CUDA graph of it: one alone, or up to `MANY` with one launch.

    The first steps run as they are, on a side stream, as CUDA asks for; so does every batch of another
    shape or type than the usual one, such as the last of an epoch. A graph holds the optimiser's
    hyperparameters but the learning rate: when a schedule changes another one the graphs are dropped, and
    captured anew once they have stayed the same for as many steps; the first time this is logged. It reads
    buffers and frozen weights where they lay when it was captured: they may change in place only. The terms
    are overwritten by the next step.

    Args:
        step: A fast step on CUDA whose optimiser is capturable and holds its learning rate in a tensor.
        first: A batch of the usual size, for which the graph is made.
        log: Receives one line if the step cannot be captured; it then runs uncaptured.
    """

    WARM_UP = 3
    MANY = 30

    def __init__(
        self, step: FastStep, first: Split, log: Callable[[str], None] = lambda message: None
    ) -> None:
        super().__init__(step)
        self.recorded, self.log = True, log
        self.x, self.y = torch.empty_like(first.x), torch.empty_like(first.y)
        self.counts = None if first.weights is None else torch.empty_like(first.weights)
        self.batches: Batches | None = None
        self.steps_per_launch = self.MANY  # in the epoch that began
        with torch.cuda.device_of(first.x):
            self.stream = torch.cuda.Stream()  # of all captures: what cuBLAS works in belongs to a stream
        self.generator: torch.Generator | None = None
        self.failed = False  # to capture one step
        self.can_take_many = True  # until a capture of many fails
        self.told = False  # that a hyperparameter changed which a graph holds
        self.reset()

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Draw the noise from a generator, by default torch's global one; of a step that has `normals`."""
        self.generator = self.step.normals.generator = generator
        self.reset()

    def reset(self) -> None:
        """Capture again: the optimiser's state lies in other tensors now."""
        self.one: Captured | None = None
        self.many: Captured | None = None
        self.calls = 0
        self.held = hyperparameters(self.optimizer)
        self.step.reset()

    def check_still(self, rows: Split, model: nn.Module) -> None:
        """A graph keeps what any program reads besides tensors, recorded before or not.

        Where several processes sum, all enter the check of it, or none.
        """
        super().check_still(rows, model)
        if not self.step.ranks.any(self.one is None)[0]:
            check_taken(self, self.step, rows, model)

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        with torch.cuda.device_of(x):  # streams and graphs belong to the current device
            return self._step(x, y, share, fraction, counts)

    def _step(self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None) -> Terms:
        if self.failed or not (_alike(x, self.x) and _alike(y, self.y)):
            return self.step(x, y, share, fraction, counts)
        if (now := hyperparameters(self.optimizer)) != self.held:
            if now.values != self.held.values and not self.told:
                self.told = True
                self.log(
                    "training more slowly: hyperparameters other than the learning rate change, which CUDA "
                    "graphs and compiled steps hold fixed; OneCycleLR and CyclicLR leave them with "
                    "cycle_momentum=False"
                )
            self.reset()
        if self.calls < self.WARM_UP:
            self.calls += 1
            with side_by_side([self.stream]) as (own,), own:
                return self.step(x, y, share, fraction, counts)
        self.x.copy_(x)
        self.y.copy_(y)
        if counts is not None:
            assert self.counts is not None, "the first batch had no counts"
            self.counts.copy_(counts)
        self.step.share.fill_(share)
        if self.one is None:
            try:
                self.one = self._captured(lambda: self.step.take(self.x, self.y, self.counts))
            except RuntimeError as error:
                self.failed = True
                self.log(f"training without a CUDA graph, bound by launches: {error}")
                return self.step(x, y, share, fraction, counts)
        return self.one.replay()

    def begin_epoch(self, data: Split, order: Tensor, shares: Sequence[float]) -> None:
        """Say what `take_many` will take: minibatch i is the rows `order[i]` of `data`, at share i of the KL.

        Its `data` lies on the device; its minibatches are of the usual size.
        """
        if self.batches is None or self.batches.data is not data or len(self.batches.order) != len(order):
            self.batches, self.many = Batches(data, order, self.step.share.dtype), None
            self.steps_per_launch = self._launch(len(order))
        self.batches.order.copy_(order)
        self.batches.shares.copy_(torch.tensor(shares, dtype=torch.float64))

    def _launch(self, full: int) -> int:
        """How many of an epoch's steps go with a launch, so that few are left to be taken one by one."""
        most = max(1, min(self.MANY, full, ROOM // max(1, self.x.nbytes)))
        return min(range(most, min(self.MANY // 3, most // 2), -1), key=lambda count: full % count)

    @property
    def ready(self) -> bool:
        """Whether `take_many` can be called, as the step is captured and nothing has changed since."""
        return self.one is not None and self.can_take_many and hyperparameters(self.optimizer) == self.held

    def capture_many(self) -> bool:
        """Whether `take_many` can be called in the epoch that began; captures its steps if that is to do."""
        assert self.batches is not None
        batches = self.batches
        if self.many is None:
            batches.first.zero_()
            with torch.cuda.device_of(self.x):
                try:
                    self.many = self._captured(
                        lambda: self.step.take_all(*batches.read(self.steps_per_launch))
                    )
                except RuntimeError as error:
                    self.can_take_many = False
                    self.log(f"training with one launch per step: {error}")
        return self.many is not None

    def take_many(self, first: int) -> Terms:
        """Take the `steps_per_launch` steps of the epoch from step `first` on; their terms, one of each."""
        assert self.batches is not None
        assert self.many is not None
        with torch.cuda.device_of(self.x):
            self.batches.first.fill_(first)
            return self.many.replay()

    def _captured(self, work: Callable[[], Terms]) -> Captured:
        return Captured(work, self.optimizer, self.stream, self.generator)


class Batches:
    """The minibatches of an epoch, on the device: a graph finds its rows by the number of its first step."""

    def __init__(self, data: Split, order: Tensor, dtype: torch.dtype) -> None:
        device = data.x.device
        self.data = data
        self.order = torch.zeros(order.shape, dtype=torch.int64, device=device)
        self.shares = torch.zeros(len(order), dtype=dtype, device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)

    def read(self, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Inputs and targets (steps, B, ...), shares (steps,) and counts (steps, B) from step `first` on."""
        chosen = self.first + torch.arange(steps, device=self.first.device)
        rows = self.order.index_select(0, chosen)

        def part(whole: Tensor) -> Tensor:
            return whole.index_select(0, rows.flatten()).unflatten(0, rows.shape)

        data = self.data
        counts = None if data.weights is None else part(data.weights)
        return part(data.x), part(data.y), self.shares.index_select(0, chosen), counts


@contextmanager
def side_by_side(streams: Sequence[Any]) -> Iterator[list[AbstractContextManager[None]]]:
    """A context for each stream: its work comes after all that was launched before, and before the rest."""
    current = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(current)
    try:
        yield [torch.cuda.stream(stream) for stream in streams]
    finally:
        for stream in streams:
            current.wait_stream(stream)


class Captured:
    """A CUDA graph of `work`, which returns terms and changes what `optimizer` trains.

    `generator` is what it draws from besides torch's global one.

    Raises:
        RuntimeError: If it cannot be captured; everything is as it was then.
    """

    def __init__(
        self,
        work: Callable[[], Terms],
        optimizer: torch.optim.Optimizer,
        stream: Any,
        generator: torch.Generator | None,
    ) -> None:
        gc.collect()  # else memory from earlier work may be freed, which is forbidden, during the capture
        random = torch.cuda.get_rng_state()
        own = None if generator is None else (generator, generator.get_state())
        current = torch.cuda.current_stream()
        pool = torch.cuda.graph_pool_handle()
        self.graph = graph_of(generator)
        try:
            with torch.cuda.graph(self.graph, pool=pool, stream=stream), NumbersByKernels():
                self.terms = work()
        except RuntimeError as error:
            del self.graph  # releases the generator
            torch.cuda.set_stream(current)  # torch does not leave the stream of a capture that fails
            _end_failed_capture(pool, stream, trained(optimizer)[0], generator)
            torch.cuda.set_rng_state(random)
            if own is not None:
                own[0].set_state(own[1])
            forget_gradients(optimizer)  # which may lie in the graph's memory
            cause = error.__context__  # that of the work itself, where ending the capture failed as well
            raise RuntimeError(kind_and_reason(cause if isinstance(cause, Exception) else error)) from error

    def replay(self) -> Terms:
        """Do the work; the terms are overwritten by the next replay."""
        self.graph.replay()
        return self.terms


def graph_of(generator: torch.Generator | None) -> Any:
    """An empty graph, whose replays draw from `generator` too."""
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    return graph


def _end_failed_capture(pool: Any, stream: Any, some: Tensor, generator: torch.Generator | None) -> None:
    """What torch leaves undone: its memory pool stays open (before 2.12), its generators in the capture."""
    if torch.__version__ < "2.12":
        with suppress(RuntimeError):
            device = torch.cuda.current_device()
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
    with suppress(RuntimeError), torch.cuda.graph(graph_of(generator), stream=stream):
        some.detach().clone()  # the end of a whole capture ends it for the generators too


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


class Held(NamedTuple):
    """What a graph holds of an optimiser: its hyperparameters, and where its parameters and moments lie."""

    values: tuple[Hashable, ...]
    places: tuple[int, ...]


def hyperparameters(optimizer: torch.optim.Optimizer) -> Held:
    """Everything of the optimiser that a graph holds on to."""
    values = tuple(
        (key, value.data_ptr() if isinstance(value, Tensor) else repr(value))
        for group in optimizer.param_groups
        for key, value in group.items()
        if key not in ("params", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
    )
    changing = (*trained(optimizer), *moments(optimizer))
    return Held(values, tuple(value.data_ptr() for value in changing))


def capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every parameter group keeps its step count, if it has one, and learning rate on the device."""
    return all(isinstance(g["lr"], Tensor) and on_the_device(optimizer, g) for g in optimizer.param_groups)


def lost_by(step: FastStep, x: Tensor, y: Tensor) -> str | None:
    """Why the step cannot become a CUDA graph, from one evaluation that may not synchronise.

    Parameters and the random state stay as they are.
    """
    if not capturable(step.optimizer):
        return f"{type(step.optimizer).__name__} cannot be captured"
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        try:
            with no_synchronisation(), NumbersByKernels():
                step.compute(x, y)
        except RuntimeError as error:
            return kind_and_reason(error)
        finally:
            forget_gradients(step.optimizer)
    return None


class NumbersByKernels(TorchFunctionMode):
    """Inside, a kernel writes each number that becomes a tensor, as `torch.tensor(0.5, device="cuda")` does.

    Torch copies it from the host otherwise, which waits for the device, and which no graph can hold. Torch's
    own distributions do so: `StudentT`, `HalfCauchy`, and those that are given a number beside a tensor.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and args and type(args[0]) in PLAIN:
            return torch.full((), args[0], **kwargs)
        if func is Tensor.new_tensor and len(args) > 1 and type(args[1]) in PLAIN:
            return args[0].new_full((), args[1], **kwargs)
        return func(*args, **kwargs)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Raise a RuntimeError in the body wherever the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
