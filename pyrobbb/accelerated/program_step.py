"""The fast step for small networks, and for any guide and model: one program for loss and gradients."""

import torch
from torch import Tensor, nn

from pyrobbb._support.optim import set_gradients, trained
from pyrobbb.accelerated.compilation_cost import Prepare
from pyrobbb.accelerated.compile import compiled_program
from pyrobbb.accelerated.fast_step import FastStep
from pyrobbb.accelerated.fixed_batch import FixedProgram
from pyrobbb.accelerated.programs import LossProgram
from pyrobbb.accelerated.rng import Normals
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms


class ProgramStep(FastStep):
    """Takes steps with the terms and gradients that `program` gives.

    Args:
        program: See `pyrobbb.accelerated.programs`; prepared as `FixedProgram` says, whose errors it raises.
        optimizer: Over the parameters whose gradients the program gives, in the optimiser's order.
        noise_shape: Shape of the noise that the program takes.
        batch: That of `FixedProgram`.
        prepare: That of `FixedProgram`.
    """

    def __init__(
        self,
        program: LossProgram,
        optimizer: torch.optim.Optimizer,
        noise_shape: tuple[int, ...],
        batch: tuple[Tensor, Tensor] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.optimizer, self.noise_shape = optimizer, noise_shape
        self.parameters = trained(optimizer)
        like = self.parameters[0].detach()
        size = torch.Size(noise_shape).numel()
        self.normals = Normals(size, like, compiled=prepare is compiled_program)
        self.share = torch.zeros((), dtype=like.dtype, device=like.device)
        self.run = FixedProgram(program, [self.noise, self.share], batch, prepare)
        self.recorded = self.run.recorded

    @property
    def noise(self) -> Tensor:
        """What was drawn last."""
        return self.normals.values.reshape(self.noise_shape)

    def compute(
        self, x: Tensor, y: Tensor, noise: Tensor | None = None, counts: Tensor | None = None
    ) -> Terms:
        if noise is None:
            self.normals.draw()
            noise = self.noise
        with torch.no_grad():
            kl, nll, *gradients = self.run(noise, self.share, x, y, counts)
        set_gradients(self.parameters, gradients)
        return Terms(kl, nll)

    def check_still(self, rows: Split, model: nn.Module) -> None:
        self.run.check_still([self.noise, self.share], rows, model)
