"""Whether two steps agree: the terms and gradients that each sees on the same noise."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyrobbb._support.optim import trained
from pyrobbb.accelerated.compile import near
from pyrobbb.accelerated.fast_step import FastStep, forget_gradients
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.data.dataset import Split
from pyrobbb.svi import ReferenceStep, Terms

Seen = tuple[Tensor, ...]  # KL, NLL and the gradient of each parameter, as `gradients` gives them


class Difference(NamedTuple):
    """A quantity on which two steps disagree, and each one's value."""

    name: str
    ours: Tensor
    theirs: Tensor


def difference(ours: Seen, theirs: Seen) -> Difference | None:
    """The first of KL, NLL and gradients in which two steps on the same noise disagree beyond rounding.

    Each parameter's gradient counts by itself: a prior's or a noise scale's is small beside the weights'.
    """
    slack = 1e-5 * float(torch.stack([part.norm() for part in theirs[2:]]).norm())  # rounding of large sums
    names = ["KL", "NLL", *["gradient"] * (len(theirs) - 2)]
    for name, a, b in zip(names, ours, theirs, strict=True):
        if not near(a, b, slack if name == "gradient" else 0.0):
            return Difference(name, a, b)
    return None


def gradients(
    step: FastStep | ReferenceStep,
    rows: Split,
    noise: Tensor | None = None,
    *,
    share: float = 1.0,
    N: int = 1,
) -> Seen:
    """KL, NLL and the gradients of F = share KL - log P(D_i | w) that a step sees, and does not take.

    `noise`, of the step's `noise_shape`, takes the place of draws from torch's random state; a
    `ReferenceStep` needs it, and N, the model's number of data.
    """
    forget_gradients(step.optimizer)
    if isinstance(step, ReferenceStep):
        assert noise is not None
        with Injected(noise.flatten()):
            terms = step.evaluate(rows.x, rows.y, share, len(rows) / N, rows.weights)
    else:
        terms = step.evaluate(rows.x, rows.y, share, noise, rows.weights)
    return seen(step.optimizer, terms)


def seen(optimizer: torch.optim.Optimizer, terms: Terms) -> Seen:
    """`terms`, and the gradients that lie in the parameters of `optimizer`, which forget them."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained(optimizer)]
    forget_gradients(optimizer)
    return terms.kl.clone(), terms.nll.clone(), *parts
