"""A whole training step as one CUDA graph: noise, loss, gradients and optimiser with a single launch."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

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
    shape than the usual one, such as the last of an epoch. The terms are overwritten by the next step.

    Args:
        step: A fast step on CUDA whose optimiser is capturable and holds its learning rate in a tensor.
        x: Inputs of a batch of the usual size, for which the graph is made.
        y: Their targets.
    """

    WARM_UP = 3

    def __init__(self, step: Capturable, x: Tensor, y: Tensor) -> None:
        self.step = step
        self.optimizer = step.optimizer
        self.x, self.y = torch.empty_like(x), torch.empty_like(y)
        self.reset()

    def reset(self) -> None:
        """Capture again: the optimiser's state lies in other tensors now."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def __call__(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        with torch.cuda.device_of(x):  # streams and graphs belong to the current device
            return self._step(x, y, share, data)

    def _step(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        if x.shape != self.x.shape or y.shape != self.y.shape:
            return self.step(x, y, share, data)
        if self.calls < self.WARM_UP:
            self.calls += 1
            return self._on_the_side(x, y, share, data)
        self.x.copy_(x)
        self.y.copy_(y)
        self.step.share.fill_(share)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.terms = self.step.compute(self.x, self.y)
                self.step.optimizer.step()
                self.step.clear()
        self.graph.replay()
        return self.terms

    def _on_the_side(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            terms = self.step(x, y, share, data)
        current.wait_stream(stream)
        return terms


def capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every parameter group keeps its step count and learning rate on the device."""
    return all(g.get("capturable", False) and isinstance(g["lr"], Tensor) for g in optimizer.param_groups)
