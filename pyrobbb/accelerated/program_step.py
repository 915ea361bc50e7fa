"""The fast step for small networks, and for any guide and model: one program for loss and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support.network_checks import buffers_kept
from pyrobbb._support.optim import set_gradients, trained
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.agreement import Seen, difference
from pyrobbb.accelerated.compilation_cost import Prepare
from pyrobbb.accelerated.compile import compiled_program
from pyrobbb.accelerated.fast_step import FastStep
from pyrobbb.accelerated.fixed_batch import FixedBatch
from pyrobbb.accelerated.programs import Program
from pyrobbb.accelerated.rng import Normals
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms


class ProgramStep(FastStep):
    """Takes steps with the terms and gradients that `program` gives.

    Args:
        program: See `pyrobbb.accelerated.programs`.
        optimizer: Over the parameters whose gradients the program gives, in the optimiser's order.
        noise_shape: Shape of the noise that the program takes.
        batch: A batch `(x, y)` of the usual size, to prepare the program for. A shorter one, such as the
            last of an epoch, is filled up with rows that do not count.
        prepare: `compiled_program` or `replay`; None leaves the program as it is.

    Raises:
        CannotRecordError: If the program looks at a tensor's value.
        CannotCompileError: If it cannot be compiled.
    """

    def __init__(
        self,
        program: Program,
        optimizer: torch.optim.Optimizer,
        noise_shape: tuple[int, ...],
        batch: tuple[Tensor, Tensor] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.program, self.optimizer, self.noise_shape = program, optimizer, noise_shape
        self.parameters = trained(optimizer)
        like = self.parameters[0].detach()
        size = torch.Size(noise_shape).numel()
        self.normals = Normals(size, like, compiled=prepare is compiled_program)
        self.share = torch.zeros((), dtype=like.dtype, device=like.device)
        self.fixed: FixedBatch | None = None
        if batch is not None and prepare is not None:
            self.fixed = FixedBatch(*batch, self.share.dtype)
            self.run = prepare(program, [self.noise, self.share, *self.fixed.example])

    @property
    def recorded(self) -> bool:  # type: ignore[override]
        return self.fixed is not None

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
        set_gradients(self.parameters, gradients)
        return Terms(kl, nll)

    def check_still(self, rows: Split, model: nn.Module) -> None:
        """Raise ValueError if the program computes something else by now than what was recorded of it.

        A recording keeps what the network reads besides tensors, such as a temperature that a callback
        changes, as it stood. `rows` are a minibatch, and the buffers of `model` stay as they are.
        """
        batch = None if self.fixed is None else self.fixed(rows.x, rows.y, rows.weights)
        if batch is None:
            return
        kept, now = (self._seen(program, batch, model) for program in (self.run, self.program))
        if not all(bool(value.isfinite().all()) for value in now):
            return
        if (found := difference(kept, now)) is not None:
            raise ValueError(
                f"the network changed in training, and its step did not see it: the {found.name} of a "
                f"minibatch is another than in the step, which keeps whatever is no tensor as it stood at "
                f"first; train with fast='off', or keep what changes in a buffer"
            )

    def _seen(self, program: Program, batch: tuple[Tensor, ...], model: nn.Module) -> Seen:
        """What a program gives on one noise, which is the same at each call, as are masks that it draws."""
        with isolated(0, device=self.share.device), torch.no_grad(), buffers_kept(model):
            return tuple(program(torch.randn_like(self.noise), self.share, *batch))
