"""A whole training step as one CUDA graph: noise, loss, gradients and optimiser with a single launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor

from pyrobbb._support.optim import on_the_device
from pyrobbb.accelerated.compile import first_line
from pyrobbb.svi import Terms


class Capturable(Protocol):
    """A step whose work between the share and the terms is tensor operations alone."""

    optimizer: torch.optim.Optimizer
    share: Tensor

    def __call__(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        """One step, operation by operation."""
        ...

    def compute(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Terms:
        """The terms and, in the parameters' `grad`, the gradients."""
        ...

    def clear(self) -> None:
        """Forget gradients that would otherwise add up."""
        ...


class GraphStep:
    """Takes the steps of `step` by replaying a CUDA graph of it.

    The first steps run as they are, on a side stream, as CUDA asks for; so does every batch of another
    shape than the usual one, such as the last of an epoch. A graph holds the optimiser's hyperparameters but
    the learning rate: when a schedule changes another one the graph is dropped, and captured anew once they
    have stayed the same for as many steps. The terms are overwritten by the next step.

    Args:
        step: A fast step on CUDA whose optimiser is capturable and holds its learning rate in a tensor.
        x: Inputs of a batch of the usual size, for which the graph is made.
        y: Their targets.
        log: Receives one line if the step cannot be captured; it then runs uncaptured.
    """

    WARM_UP = 3

    def __init__(
        self, step: Capturable, x: Tensor, y: Tensor, log: Callable[[str], None] = lambda message: None
    ) -> None:
        self.step, self.log = step, log
        self.optimizer = step.optimizer
        self.x, self.y = torch.empty_like(x), torch.empty_like(y)
        self.failed = False
        self.reset()

    def reset(self) -> None:
        """Capture again: the optimiser's state lies in other tensors now."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0
        self.held = hyperparameters(self.optimizer)

    def __call__(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        with torch.cuda.device_of(x):  # streams and graphs belong to the current device
            return self._step(x, y, share, data)

    def _step(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        if self.failed or x.shape != self.x.shape or y.shape != self.y.shape:
            return self.step(x, y, share, data)
        if hyperparameters(self.optimizer) != self.held:
            self.reset()
        if self.calls < self.WARM_UP:
            self.calls += 1
            return self._on_the_side(x, y, share, data)
        self.x.copy_(x)
        self.y.copy_(y)
        self.step.share.fill_(share)
        if self.graph is None:
            try:
                self._capture()
            except RuntimeError as error:
                self.failed = True
                self.log(f"training without a CUDA graph, bound by launches: {first_line(error)}")
                return self.step(x, y, share, data)
        assert self.graph is not None
        self.graph.replay()
        return self.terms

    def _capture(self) -> None:
        """Make the graph, which computes nothing yet; after a failure everything is as it was."""
        gc.collect()  # else memory of before may be freed, which is forbidden, during the capture
        random = torch.cuda.get_rng_state()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                terms = self.step.compute(self.x, self.y)
                self.optimizer.step()
                self.step.clear()
        except RuntimeError:
            del graph  # releases the generator
            torch.cuda.set_rng_state(random)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None  # it may lie in the graph's memory
            raise
        self.graph, self.terms = graph, terms

    def _on_the_side(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            terms = self.step(x, y, share, data)
        current.wait_stream(stream)
        return terms


def hyperparameters(optimizer: torch.optim.Optimizer) -> Hashable:
    """Everything of the parameter groups that a graph holds on to: the values, and where tensors lie."""
    return tuple(
        (key, value.data_ptr() if isinstance(value, Tensor) else repr(value))
        for group in optimizer.param_groups
        for key, value in group.items()
        if key not in ("params", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
    )


def capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every parameter group keeps its step count, if it has one, and learning rate on the device."""
    return all(isinstance(g["lr"], Tensor) and on_the_device(optimizer, g) for g in optimizer.param_groups)


def lost_by(step: Capturable, x: Tensor, y: Tensor) -> str | None:
    """Why the step cannot become a CUDA graph, from one evaluation that may not synchronise.

    Parameters and the random state stay as they are.
    """
    if not capturable(step.optimizer):
        return f"{type(step.optimizer).__name__} cannot be captured"
    before = torch.cuda.get_sync_debug_mode()
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.cuda.set_sync_debug_mode("error")
        try:
            step.compute(x, y)
        except RuntimeError as error:
            return first_line(error)
        finally:
            torch.cuda.set_sync_debug_mode(before)
            for group in step.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
    return None
