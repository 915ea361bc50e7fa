"""What the fast steps have in common: evaluate, then let the optimiser step."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb.accelerated.rng import Normals
from pyrobbb.svi import Step, Terms


class NotFastError(ValueError):
    """The fast path does not fit this model and guide; the message says why."""


class WrappedStep(Step):
    """A step that takes another's steps, and keeps of model and prior what that keeps."""

    def __init__(self, step: Any) -> None:
        self.step, self.optimizer = step, step.optimizer
        self.keeps_prior, self.recorded = step.keeps_prior, step.recorded

    def check_still(self, rows: Any, model: nn.Module) -> None:
        self.step.check_still(rows, model)


class FastStep(Step, ABC):
    """One step on F = share KL - log P(D_i | w): tensor operations alone, fit for a CUDA graph."""

    share: Tensor  # of the KL, without dimensions
    noise_shape: tuple[int, ...]
    normals: Normals
    ranks: ProcessGroup = SINGLE  # that take it together

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        """One step; `fraction` plays no part, since F is a sum over the minibatch."""
        self.share.fill_(share)
        return self.take(x, y, counts)

    def evaluate(
        self, x: Tensor, y: Tensor, share: float, noise: Tensor | None = None, counts: Tensor | None = None
    ) -> Terms:
        """The terms; leaves the gradients of F in every parameter's `grad`.

        `noise`, of shape `noise_shape`, takes the place of fresh draws; rows count `counts` times, `(B,)`.
        """
        self.share.fill_(share)
        return self.compute(x, y, noise, counts)

    @abstractmethod
    def compute(
        self, x: Tensor, y: Tensor, noise: Tensor | None = None, counts: Tensor | None = None
    ) -> Terms:
        """`evaluate` at the share that `self.share` holds."""

    def take(self, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Terms:
        """One step at the share that `self.share` holds."""
        terms = self.compute(x, y, counts=counts)
        self.optimise()
        return terms

    def take_all(self, xs: Tensor, ys: Tensor, shares: Tensor, counts: Tensor | None = None) -> Terms:
        """One step after another on K minibatches (K, B, ...) at K shares; the terms (K,) of each."""
        each = []
        for k, share in enumerate(shares):
            self.share.copy_(share)
            each.append(self.take(xs[k], ys[k], None if counts is None else counts[k]))
        return Terms(torch.stack([terms.kl for terms in each]), torch.stack([terms.nll for terms in each]))

    def reset(self) -> None:
        """The optimiser's state lies in other tensors now: of interest where a program holds them."""
