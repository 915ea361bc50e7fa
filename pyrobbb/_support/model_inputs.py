"""Checks of inputs and targets before a model sees them: one clear message for what cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrobbb._support import text
from pyrobbb._support.chunking import out_of_memory
from pyrobbb._support.distribution_parts import is_masked
from pyrobbb._support.network_checks import EMBEDDINGS
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated

if TYPE_CHECKING:
    from pyro.distributions import TorchDistribution

    from pyrobbb.bnn import BayesianNetwork

VALUES = 2**20  # checked at a time, so that data on disk need not fit into memory


def check_rows(model: BayesianNetwork, part: str, x: Tensor, y: Tensor) -> None:
    """ValueError unless the model takes every row of x and has a likelihood of its y; `part` names them."""
    if len(x) != len(y):
        raise ValueError(f"{part}x and y differ in length: {len(x)} rows and {len(y)}")
    check_finite(f"{part}x", x)
    check_targets(model, f"{part}y", first_output(model, f"{part}x", x), y)


def check_targets(model: BayesianNetwork, name: str, output: Tensor, y: Tensor) -> None:
    """ValueError unless every target has a likelihood; `output` is the network's for one row."""
    distribution = observed(model, output)
    model.encoded(distribution, y[:1])
    for begin, part in blocks(y):
        try:
            model.likelihood.check_domain(distribution, model.likelihood.encode(part))
        except ValueError as error:
            place = f", counted from row {begin}" if begin else ""
            raise ValueError(f"{name}{place}: {error}") from error


def observed(model: BayesianNetwork, output: Tensor) -> TorchDistribution:
    """p(y | f) at these outputs, the likelihood's own latents drawn from their prior."""
    return model.observation(output, model.prior_draw() if model.other_latents else None)


def masks_values(model: BayesianNetwork, x: Tensor) -> bool:
    """Whether the likelihood says that some values do not count, of the first row of x."""
    with isolated(device=model.device), evaluating(model):
        return is_masked(observed(model, first_output(model, "x", x)))


def blocks(rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Blocks of about a million values, each with the number of its first row."""
    size = max(1, VALUES // max(1, rows.shape[1:].numel()))
    return ((begin, rows[begin : begin + size]) for begin in range(0, len(rows), size))


def check_finite(name: str, x: Tensor, rows: Tensor | None = None) -> None:
    """Raise ValueError if a value is NaN or infinite; the message names its row, by its number in `rows`."""
    if getattr(x, "whole_numbers", False):
        return
    for begin, part in blocks(x):
        finite = part.isfinite()
        if not bool(finite.all()):
            place = (~finite).nonzero()[0].tolist()
            value = float(part[tuple(place)])
            row = begin + place[0] if rows is None else int(rows[begin + place[0]])
            raise ValueError(f"{name} holds {value} in row {row}; every input must be finite")


def _advice(model: BayesianNetwork, x: Tensor) -> str:
    """The type that the network seems to take, if `x` has another."""
    wanted = model.input_dtype or (torch.long if has_tokens(model) else model.dtype)
    if x.dtype != wanted:
        return f"; if the type is why, convert it to {wanted} (from_arrays has dtype=), a Dataset's too"
    known = has_tokens(model) and isinstance(x, Tensor)  # and not files on the disk
    return f"; its tokens are {int(x.min())} to {int(x.max())}" if known else ""


def has_tokens(model: BayesianNetwork) -> bool:
    """Whether the network has an embedding."""
    return any(isinstance(module, EMBEDDINGS) for module in model.network.modules())


class OutputShapeError(ValueError):
    """The network's output is not a tensor with a row for each row of x."""


class NonFiniteOutputError(ValueError):
    """The network's output is infinite or NaN."""


def first_output(model: BayesianNetwork, name: str, x: Tensor) -> Tensor:
    """The network's output for the first row at its initial weights, or a ValueError if it takes none."""
    with torch.no_grad(), evaluating(model):
        with torch.inference_mode(False):
            row = x[:1].clone()
        kept = row._version  # counts the writes into it
        try:
            output = model.apply_network(model.initial(), row)
            if has_tokens(model) and isinstance(x, Tensor) and x.dim() > 1 and not x.is_floating_point():
                ends = torch.stack([x.flatten(1).amax(1).argmax(), x.flatten(1).amin(1).argmin()])
                model.apply_network(model.initial(), x[ends])  # of the largest token and of the least
        except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if out_of_memory(error) or isinstance(error, OutputShapeError):
                raise
            kind = f"{x.dtype} of shape {tuple(x.shape[1:])}"
            alone = "; a single row is x[None]" if len(x.shape) == 1 else ""
            reason = text.reason(error) + alone + _advice(model, x)
            raise ValueError(f"the network cannot take a row of {name}, {kind}: {reason}") from error
    if row._version != kept:
        raise ValueError(
            "the network modifies its input, which would change the data; its first layer must not work in "
            "place (inplace=False, x * 2 for x.mul_(2))"
        )
    if not bool(output.isfinite().all()):
        raise NonFiniteOutputError(
            f"the network's output is not finite for the first row of {name}, with its weights as they are"
        )
    return output
