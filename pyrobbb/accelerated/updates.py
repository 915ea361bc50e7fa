r"""The steps of Adam and SGD as tensor operations, to be recorded within a program.

Adam (Kingma and Ba 2015) takes at its step t two rates, the same for all weights of a parameter,

.. math::
    r_1 = \frac{\eta}{1 - \beta_1^t}, \qquad r_2 = \frac{1}{\sqrt{1 - \beta_2^t}}, \qquad
    p \leftarrow p - r_1 \frac{m}{\sqrt{v}\, r_2 + \epsilon}

so that the program knows no t. SGD has :math:`r_1 = \eta` alone.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS, EPSILON = (0.9, 0.999), 1e-8
_UNSUPPORTED = ("amsgrad", "maximize", "nesterov", "dampening", "weight_decay", "decoupled_weight_decay")


def adam(
    p: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    rates: Tensor,
    betas: tuple[float, float] = BETAS,
    epsilon: float = EPSILON,
) -> None:
    """One step of Adam in place; `rates` comes from `adam_rates`."""
    m_new = m + (1 - betas[0]) * (gradient - m)
    v_new = v + (1 - betas[1]) * (gradient * gradient - v)
    m.copy_(m_new)
    v.copy_(v_new)
    p.sub_(rates[0] * m_new / (torch.sqrt(v_new) * rates[1] + epsilon))


def adam_rates(lr: float, step: int) -> tuple[float, float]:
    """The factors of step t = 1, 2, ...: lr / (1 - beta_1^t) and 1 / sqrt(1 - beta_2^t)."""
    return lr / (1 - BETAS[0] ** step), 1 / math.sqrt(1 - BETAS[1] ** step)


def sgd(
    p: Tensor, gradient: Tensor, rates: Tensor, momentum: float = 0.0, buffer: Tensor | None = None
) -> None:
    """One step of SGD in place, with momentum if there is a `buffer` for it."""
    if buffer is not None:
        gradient = momentum * buffer + gradient
        buffer.copy_(gradient)
    p.sub_(rates[0] * gradient)


class Update:
    """The step of a torch optimiser as part of a program; moments and step counts stay the optimiser's own.

    Args:
        optimizer: `Adam` or `SGD` that is `supported`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.adam = isinstance(optimizer, torch.optim.Adam)
        self.parameters = [p for p, _ in self._each()]

    @staticmethod
    def supported(optimizer: torch.optim.Optimizer) -> bool:
        """Whether its step is the plain formula: no decay, no hook that clips, no other variant."""
        plain = type(optimizer) in (torch.optim.Adam, torch.optim.SGD)
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return plain and not hooks and not any(g.get(k) for g in optimizer.param_groups for k in _UNSUPPORTED)

    def _each(self) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """Each parameter with its group."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                yield p, group

    def constants(self) -> list[Any]:
        """What a recorded step has fixed, besides being `supported`."""
        return [[g.get(k) for k in ("betas", "eps", "momentum")] for g in self.optimizer.param_groups]

    def state(self) -> list[Tensor]:
        """The moments of every parameter, in order; made as the first step would make them."""
        tensors = []
        for p, group in self._each():
            own = self.optimizer.state[p]
            if self.adam:
                own.setdefault("step", torch.zeros((), dtype=torch.float32, device=p.device))
            names = ["exp_avg", "exp_avg_sq"] if self.adam else ["momentum_buffer"] * bool(group["momentum"])
            for name in names:
                if own.get(name) is None:
                    own[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
                tensors.append(own[name])
        return tensors

    def rates(self, steps: int) -> Tensor:
        """The rates of the next `steps` steps, (steps, P, 2) for P parameters, computed on their device."""
        device, dtype = self.parameters[0].device, self.parameters[0].dtype
        lr = torch.stack([torch.as_tensor(g["lr"], device=device).double() for _, g in self._each()])
        if not self.adam:
            return torch.stack([lr, lr], dim=-1).to(dtype).expand(steps, -1, -1)
        done = torch.stack([self.optimizer.state[p]["step"] for p in self.parameters])
        t = (done.double() + 1) + torch.arange(steps, device=device)[:, None]
        left = [
            torch.stack(
                [1 - g["betas"][i] ** column for column, (_, g) in zip(t.T, self._each(), strict=True)]
            )
            for i in range(2)
        ]
        return torch.stack([lr / left[0].T, left[1].T.rsqrt()], dim=-1).to(dtype)

    def advance(self, steps: int) -> None:
        """Count `steps` steps."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # else a schedule warns that none was
        if self.adam:
            for p in self.parameters:
                self.optimizer.state[p]["step"] += steps

    def __call__(self, gradients: Sequence[Tensor], state: Sequence[Tensor], rates: Tensor) -> None:
        """One step in place: `state` as `state` gave it, `rates` of shape (P, 2)."""
        left = iter(state)
        for (p, group), gradient, own in zip(self._each(), gradients, rates, strict=True):
            if self.adam:
                adam(p, gradient, next(left), next(left), own, group["betas"], group["eps"])
            else:
                sgd(p, gradient, own, group["momentum"], next(left) if group["momentum"] else None)
