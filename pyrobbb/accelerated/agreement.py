"""Whether two steps agree: the terms and gradients that each sees on the same noise."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pyrobbb._support.network_state import buffers_kept
from pyrobbb._support.optim import forget_gradients, moments, trained
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.compile import near
from pyrobbb.accelerated.fast_step import FastStep
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.data.dataset import Split
from pyrobbb.svi import ReferenceStep, Step, Terms

Seen = tuple[Tensor, ...]  # KL, NLL and perhaps the gradient of each parameter, as `gradients` gives them


class Difference(NamedTuple):
    """A quantity on which two steps disagree, and each one's value."""

    name: str
    ours: Tensor
    theirs: Tensor


def difference(ours: Seen, theirs: Seen) -> Difference | None:
    """The first of KL, NLL and gradients in which two steps on the same noise disagree beyond rounding.

    Each parameter's gradient counts by itself: a prior's or a noise scale's is small beside the weights'.
    """
    slack = 1e-5 * math.hypot(*(float(part.norm()) for part in theirs[2:]))  # rounding of large sums
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


def check_taken(taken: Step, step: FastStep, rows: Split, model: nn.Module) -> None:
    """Raise ValueError if `taken`, which repeats recorded operations, sees other terms than `step` does.

    Neither steps: parameters, moments, buffers of `model` and random states stay as they are, that of the
    step's own generator among them.
    """
    own = step.normals.generator
    share, changing = float(step.share), (*trained(step.optimizer), *moments(step.optimizer))
    check_still(
        lambda: taken(rows.x, rows.y, share, 1.0, rows.weights),
        lambda: gradients(step, rows, share=share)[:2],
        rows,
        model,
        [value.detach() for value in changing],
        [] if own is None else [own],
    )


def check_still(
    kept: Callable[[], Sequence[Tensor]],
    now: Callable[[], Sequence[Tensor]],
    rows: Split,
    model: nn.Module,
    held: Sequence[Tensor] = (),
    generators: Sequence[torch.Generator] = (),
) -> None:
    """Raise ValueError if what a step sees on `rows`, `kept`, is not what model and prior compute `now`.

    Buffers of `model`, random states, those of `generators` too, and the tensors `held` stay as they are.
    """
    before, states = [value.clone() for value in held], [generator.get_state() for generator in generators]
    each = []
    for evaluate in (kept, now):
        with isolated(0, device=rows.x.device), buffers_kept(model):  # the same noise and masks
            each.append(tuple(part.clone() for part in evaluate()))
        for value, was in zip(held, before, strict=True):
            value.copy_(was)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
    if not all(bool(value.isfinite().all()) for value in each[1]):
        return
    if (found := difference(*each)) is not None:
        raise ValueError(
            f"the network changed in training, and its step did not see it: the {found.name} of a "
            f"minibatch differs from the step's, which keeps the first value of anything that is not a "
            f"tensor; train with fast='off', or keep what changes in a buffer"
        )
