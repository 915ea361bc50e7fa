"""Which way a training steps: the fastest that fits model and guide, with one line on what was lost."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal

import torch
from pyro import poutine
from torch import Tensor, nn

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.elbo import ReferenceStep, Step
from pyrobbb.fast.inject import Injected
from pyrobbb.fast.kl import Law, NotElementwiseError, laws
from pyrobbb.fast.mean_field import MeanFieldStep
from pyrobbb.fast.record import CannotCompileError, CannotRecordError

Fast = Literal["auto", "compiled", "eager", "off"]
FAST = ("auto", "compiled", "eager", "off")

_GAIN = 40e-9  # seconds that compilation saves per weight, draw and step, on two cores
_COST = 20.0  # seconds that it takes at most the first time


class NotFastError(ValueError):
    """The fast path does not fit this model and guide; the message says why."""


def make_step(
    model: nn.Module,
    guide: nn.Module,
    optimizer: torch.optim.Optimizer,
    first: Split,
    *,
    samples: int = 1,
    vectorize: bool = False,
    fast: str = "auto",
    steps: int = 0,
    say: Callable[[str], None] = lambda message: None,
) -> Step:
    """The step that trains `guide`: fast and compiled, fast, or Pyro's own `ReferenceStep`.

    The choice depends on the arguments only, so that a resumed run makes the same one.

    Args:
        model: The Pyro model, on its device.
        guide: The Pyro guide, with its parameters made.
        optimizer: Over the parameters of both.
        first: A few rows of data, to try the step on.
        samples: Weight draws per step.
        vectorize: Let the reference path evaluate these draws as one batch.
        fast: "auto"; "compiled" or "eager" to decide about compilation; "off" for the reference path.
        steps: Steps that the whole training will take; a short one is not worth a compilation.
        say: Told in one line what was lost.
    """
    if fast == "off":
        return ReferenceStep(model, guide, optimizer, samples=samples, vectorize=vectorize)
    try:
        runs = _runs(model, guide, first)
        assert isinstance(model, BayesianNetwork)
        size = sum(law.length for law in runs)
        worth = fast == "compiled" or (fast == "auto" and size * samples * steps * _GAIN > _COST)
        step = _make(model, guide, optimizer, runs, samples, worth, say)
        _check(step, model, guide, first)
    except NotFastError as reason:
        say(f"training by Pyro's own SVI, several times slower than the fast path: {reason}")
        return ReferenceStep(model, guide, optimizer, samples=samples, vectorize=vectorize)
    return step


def _make(
    model: BayesianNetwork,
    guide: nn.Module,
    optimizer: torch.optim.Optimizer,
    runs: list[Law],
    samples: int,
    worth: bool,
    say: Callable[[str], None],
) -> MeanFieldStep:
    if worth:
        began = perf_counter()
        try:
            step = MeanFieldStep(model, guide, optimizer, runs, samples=samples, compiled=True)
        except (CannotCompileError, CannotRecordError) as reason:
            say(f"training without compiled code, about four times slower: {reason}")
        else:
            say(f"compiled the training step in {perf_counter() - began:.1f} s; the result is kept on disk")
            return step
    return MeanFieldStep(model, guide, optimizer, runs, samples=samples)


def _runs(model: nn.Module, guide: Any, first: Split) -> list[Law]:
    """The prior, weight by weight in the guide's order; NotFastError for another kind of guide."""
    if not isinstance(model, BayesianNetwork):
        raise NotFastError(f"the model is a {type(model).__name__}, not a BayesianNetwork")
    flat = {"loc", "rho"}
    if (
        not (hasattr(guide, "split") and hasattr(guide, "shapes"))
        or {name for name, p in guide.named_parameters() if p.dim() == 1} != flat
    ):
        raise NotFastError(
            f"the guide {type(guide).__name__} is not a mean-field normal with flat loc and rho"
        )
    if guide.loc.dtype not in (torch.float32, torch.float64):
        raise NotFastError(f"the weights are {guide.loc.dtype}")
    with torch.no_grad():
        trace: Any = poutine.trace(model).get_trace(first.x, first.y)
    try:
        return laws({name: trace.nodes[name]["fn"] for name in guide.shapes})
    except (NotElementwiseError, KeyError) as reason:
        raise NotFastError(str(reason)) from reason


def _check(step: MeanFieldStep, model: BayesianNetwork, guide: nn.Module, first: Split) -> None:
    """NotFastError unless the step and Pyro's see the same terms and gradients on the same noise."""
    reference = ReferenceStep(model, guide, step.optimizer, samples=step.samples)
    noise = torch.randn(step.samples, step.loc.numel(), dtype=step.loc.dtype).to(step.loc.device)
    with torch.random.fork_rng(_cuda(step.loc)):
        ours = gradients(step, first, noise)
    with torch.random.fork_rng(_cuda(step.loc)):
        theirs = gradients(reference, first, noise, N=model.N)
    for name, a, b in zip(("KL", "NLL", "gradient"), ours, theirs, strict=True):
        if not float((a - b).norm()) <= 2e-3 * float(b.norm()) + 1e-4:
            raise NotFastError(
                f"its {name} differs from Pyro's on the first rows ({float(a.norm()):g}, not "
                f"{float(b.norm()):g}); do model or guide do more than sample their weights?"
            )


def gradients(
    step: MeanFieldStep | ReferenceStep, rows: Split, noise: Tensor, *, share: float = 1.0, N: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """KL, NLL and the gradient of F = share KL - log P(D_i | w) that a step sees on given noise.

    `noise` has shape (samples, D), `N` is the model's number of data. No parameter changes.
    """
    parameters = [p for group in step.optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = None
    if isinstance(step, MeanFieldStep):
        terms = step.evaluate(rows.x, rows.y, share, noise)
    else:
        with Injected(noise.flatten()):
            terms = step.evaluate(rows.x, rows.y, share, len(rows) / N)
    parts = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return terms.kl.clone(), terms.nll.clone(), torch.cat([part.flatten() for part in parts])


def _cuda(tensor: Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.is_cuda else []
