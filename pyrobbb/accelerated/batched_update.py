r"""One update of R chains at once, in place: gradients of F and Adam as one program over matrices (R, D).

The gradients are those of `pyrobbb.accelerated.fused_kl` for one weight draw. Without `rho` every chain is a
point estimate: w is `loc`, and F is :math:`-\log P(D_i \mid w)`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.accelerated.batched_step import LogLikelihood, batched_gradients
from pyrobbb.accelerated.compile import prepared
from pyrobbb.accelerated.fused_kl import gradients
from pyrobbb.accelerated.prior_segments import PriorSegment, score_all
from pyrobbb.accelerated.record import Program
from pyrobbb.accelerated.updates import adam, adam_rates


class BatchedUpdate:
    """Trains the flat parameters of R chains.

    Args:
        log_likelihood: log p(y_i | x_i, w), shape (B,), of one chain's rows and named weights.
        shapes: Name and shape of each weight, in the flat order.
        loc: Shape (R, D); changed in place.
        rho: The same for a mean-field normal; None for point estimates.
        segments: The prior of the D weights, needed with `rho`.
        lr: Adam's learning rate at the start.
        lr_decay: How fast the rate falls: after t updates it is lr / (1 + t lr_decay).
        compiled: Compile the program; without a C++ compiler it runs uncompiled, several times slower.
    """

    def __init__(
        self,
        log_likelihood: LogLikelihood,
        shapes: Mapping[str, torch.Size],
        loc: Tensor,
        rho: Tensor | None = None,
        segments: Sequence[PriorSegment] = (),
        *,
        lr: float,
        lr_decay: float = 0.0,
        compiled: bool = True,
    ) -> None:
        self.log_likelihood, self.shapes, self.segments = log_likelihood, dict(shapes), list(segments)
        self.loc, self.rho, self.compiled, self.steps = loc, rho, compiled, 0
        self.rates = {"lr": checks.positive("lr", lr), "lr_decay": checks.between("lr_decay", lr_decay, 0, 1)}
        assert loc.shape[-1] == sum(shape.numel() for shape in self.shapes.values())
        trained = [loc] if rho is None else [loc, rho]
        self.moments = [torch.zeros_like(p) for p in trained for _ in range(2)]
        self.scalars = torch.zeros(3, device=loc.device)  # the KL's share and Adam's two rates
        self._programs: dict[torch.Size, Program] = {}  # by the shape of x

    def _point(self, scalars: Tensor, x: Tensor, y: Tensor, w: Tensor, m: Tensor, v: Tensor) -> None:
        _, gradient, _ = batched_gradients(self.log_likelihood, self.shapes, w, x, y)
        adam(w, gradient, m, v, scalars[1:])

    def _mean_field(
        self, scalars: Tensor, x: Tensor, y: Tensor, eps: Tensor, loc: Tensor, rho: Tensor,
        m: Tensor, v: Tensor, m_rho: Tensor, v_rho: Tensor,
    ) -> None:  # fmt: skip
        sigma, slope = F.softplus(rho), torch.sigmoid(rho)
        w = loc + sigma * eps
        _, G, _ = batched_gradients(self.log_likelihood, self.shapes, w, x, y)
        _, score = score_all(self.segments, w)
        to_loc, to_rho = gradients(G, score, eps, sigma, slope, scalars[0])
        adam(loc, to_loc, m, v, scalars[1:])
        adam(rho, to_rho, m_rho, v_rho, scalars[1:])

    def __call__(self, x: Tensor, y: Tensor, share: float = 0.0, eps: Tensor | None = None) -> None:
        """One update on rows x (R, B, ...) and y (R, B, ...); with `rho`, `eps` (R, D) is the noise."""
        lr = self.rates["lr"] / (1 + self.steps * self.rates["lr_decay"])
        self.steps += 1
        with torch.no_grad():
            self.scalars.copy_(torch.tensor([share, *adam_rates(lr, self.steps)]))
            if self.rho is None:
                inputs = [self.scalars, x, y, self.loc, *self.moments]
            else:
                assert eps is not None
                assert eps.shape == self.loc.shape
                inputs = [self.scalars, x, y, eps, self.loc, self.rho, *self.moments]
            if x.shape not in self._programs:
                program = self._point if self.rho is None else self._mean_field
                self._programs[x.shape] = prepared(program, inputs, compiled=self.compiled)
            self._programs[x.shape](*inputs)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, as tensors and plain values."""
        rho = None if self.rho is None else self.rho.clone()
        moments = [moment.clone() for moment in self.moments]
        return {"loc": self.loc.clone(), "rho": rho, "moments": moments, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave."""
        self.loc.copy_(state["loc"])
        if self.rho is not None:
            self.rho.copy_(state["rho"])
        for own, given in zip(self.moments, state["moments"], strict=True):
            own.copy_(given)
        self.steps = state["steps"]
