"""R networks of one shape as one batch: flat weights, their outputs, Adam, and a compiler if there is one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.compile import CannotCompileError, Program, compile, record
from pyrobbb.likelihoods import Likelihood

Call = Callable[[dict[str, Tensor], Tensor], Tensor]


def column_order(shapes: Mapping[str, torch.Size]) -> Tensor:
    """Where each entry of our flat vectors stands in the usual one, `(D,)`: matrices lie column by column.

    A linear layer's gradient comes out of the matrix product as (inputs, outputs); stored that way, weights
    and gradients meet element by element without a transposition, which took a third of an update.
    """
    flat = torch.arange(sum(shape.numel() for shape in shapes.values()))
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return torch.cat(
        [
            part.reshape(shape).mT.flatten() if len(shape) == 2 else part
            for part, shape in zip(parts, shapes.values(), strict=True)
        ]
    )


def leaves(flat: Tensor, shapes: Mapping[str, torch.Size]) -> list[Tensor]:
    """`flat` (R, D) in column order, parameter by parameter: (R, in, out) for a matrix, else (R, *shape)."""
    parts = flat.split([shape.numel() for shape in shapes.values()], dim=-1)
    return [
        part.reshape(part.shape[0], *(reversed(shape) if len(shape) == 2 else shape))
        for shape, part in zip(shapes.values(), parts, strict=True)
    ]


def named(parts: Sequence[Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """What `leaves` gave as the network's parameters, (R, *shape)."""
    return {
        name: part.mT if len(shape) == 2 else part
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def outputs(call: Call, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Each network's output (R, B, width) for its own weights (R, *shape) and its own rows x (R, B, ...)."""
    return torch.vmap(call)(dict(weights), x)


def nll_gradient(
    call: Call, likelihood: Likelihood, shapes: Mapping[str, torch.Size], w: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """Gradient (R, D) of each run's -log P(D_i | w), summed over its minibatch, in column order."""
    with torch.enable_grad():
        parts = [part.detach().requires_grad_() for part in leaves(w, shapes)]
        nll = -likelihood(outputs(call, named(parts, shapes), x)).log_prob(y).sum()
        gradients = torch.autograd.grad(nll, parts)
    return torch.cat([g.reshape(g.shape[0], -1) for g in gradients], dim=1)


def adam(p: Tensor, gradient: Tensor, m: Tensor, v: Tensor, rates: Tensor) -> None:
    """One Adam step in place (betas 0.9 and 0.999, epsilon 1e-8); `rates` comes from `adam_rates`."""
    m_new = m + 0.1 * (gradient - m)
    v_new = v + 0.001 * (gradient * gradient - v)
    m.copy_(m_new)
    v.copy_(v_new)
    p.sub_(rates[0] * m_new / (torch.sqrt(v_new) * rates[1] + 1e-8))


def adam_rates(lr: float, step: int) -> tuple[float, float]:
    """The factors of step `step` = 1, 2, ...: lr / (1 - 0.9^t) and 1 / sqrt(1 - 0.999^t)."""
    return lr / (1 - 0.9**step), 1 / math.sqrt(1 - 0.999**step)


def prepared(program: Callable[..., object], inputs: Sequence[Tensor], compiled: bool) -> Program:
    """`program` for inputs of these shapes: compiled, or else recorded, which saves Python's part of it.

    Raises:
        CannotRecordError: If a part of it looks at a tensor's value; `PyroLearner` runs such models.
    """

    def plainly(*given: Tensor) -> object:  # make_fx mistakes the `self` of a bound method for an input
        return program(*given)

    with torch.no_grad(), isolated():
        if compiled:
            try:
                return compile(record(program, inputs), inputs)
            except CannotCompileError as reason:
                warnings.warn(f"playing without compiled code, several times slower: {reason}", stacklevel=2)
        return make_fx(plainly, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
