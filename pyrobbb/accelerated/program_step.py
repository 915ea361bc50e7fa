"""The fast step for small networks, and for any guide and model: one program for loss and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrobbb._support.optim import set_gradient, trained
from pyrobbb.accelerated.compile import compiled_program
from pyrobbb.accelerated.fast_step import FastStep
from pyrobbb.accelerated.fixed_batch import FixedBatch
from pyrobbb.accelerated.programs import Program
from pyrobbb.accelerated.rng import Normals
from pyrobbb.svi import Terms


class ProgramStep(FastStep):
    """Takes steps with the terms and gradients that `program` gives.

    Args:
        program: See `pyrobbb.accelerated.programs`.
        optimizer: Over the parameters whose gradients the program gives, in the optimiser's order.
        noise_shape: Shape of the noise that the program takes.
        compiled: None, or a batch `(x, y)` to record and compile the program for. A shorter batch, such as
            the last of an epoch, is filled up with rows that do not count.

    Raises:
        CannotRecordError: If the program looks at a tensor's value.
        CannotCompileError: If it cannot be compiled.
    """

    def __init__(
        self,
        program: Program,
        optimizer: torch.optim.Optimizer,
        noise_shape: tuple[int, ...],
        compiled: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.program, self.optimizer, self.noise_shape = program, optimizer, noise_shape
        self.parameters = trained(optimizer)
        like = self.parameters[0].detach()
        size = torch.Size(noise_shape).numel()
        self.normals = Normals(size, like, compiled=compiled is not None)
        self.share = torch.zeros((), dtype=like.dtype, device=like.device)
        self.fixed: FixedBatch | None = None
        if compiled is not None:
            self.fixed = FixedBatch(*compiled, self.share.dtype)
            inputs = [self.noise, self.share, *compiled, self.fixed.once]
            self.run = compiled_program(program, inputs)

    @property
    def noise(self) -> Tensor:
        """What was drawn last."""
        return self.normals.values.reshape(self.noise_shape)

    def compute(
        self, x: Tensor, y: Tensor, noise: Tensor | None = None, counts: Tensor | None = None
    ) -> Terms:
        """The terms and gradients at the share that `self.share` holds."""
        if noise is None:
            self.normals.draw()
            noise = self.noise
        with torch.no_grad():
            batch = None if self.fixed is None else self.fixed(x, y, counts)
            given: Any
            if batch is None:
                given = self.program(noise, self.share, x, y, counts)
            else:
                given = self.run(noise, self.share, *batch)
        kl, nll, *gradients = given
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            set_gradient(parameter, gradient)
        return Terms(kl, nll)
