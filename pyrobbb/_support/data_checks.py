"""What is looked at before a training or a prediction begins: one clear message for what cannot work."""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pyrobbb._support import checks
from pyrobbb._support.memory import out_of_memory
from pyrobbb._support.network_checks import check_rows_stay_apart
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, evaluating
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.data.mapped import Mapped
from pyrobbb.distributions import univariate
from pyrobbb.predictive import ValuePrediction

VALUES = 2**20  # looked at a time, so that data on disk need not fit into memory
SEEN = 1000  # rows at most whose scale is looked at
LARGE = 30.0  # a root mean square of a feature above which, or below whose inverse, it is surely not scaled
FAR = 50.0  # standard deviations of the noise between targets and an untrained network

logger = logging.getLogger(__name__)


def check_kinds(**given: tuple[Any, type | tuple[type, ...]]) -> None:
    """Raise ValueError unless each value is an instance of the kind beside it."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join("nothing" if k is type(None) else f"a {k.__name__}" for k in kinds)
            raise ValueError(f"{name} must be {wanted}, got {_short(value)}")


def _short(value: Any) -> str:
    return " ".join(repr(value).split())[:80]


def made(name: str, make: Callable[..., Any], *arguments: Any, kind: type) -> Any:
    """`make(*arguments)`, or a ValueError that names the option `make` came from."""
    if not callable(make):
        raise ValueError(
            f"{name} must be a function that makes the torch {kind.__name__}, got {_short(make)}"
        )
    try:
        result = make(*arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(result, kind):
        raise ValueError(f"{name} must make a {kind.__name__}, it made {_short(result)}")
    return result


def made_optimizer(make: Callable[..., Any], groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimiser that `make` makes, if it steps by gradients that are there."""
    optimizer: torch.optim.Optimizer = made("optim", make, groups, kind=torch.optim.Optimizer)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optim {type(optimizer).__name__} evaluates the loss by itself, several times a step; take one "
            f"that follows given gradients, such as Adam or SGD"
        )
    return optimizer


def made_schedule(make: Callable[..., Any], optimizer: torch.optim.Optimizer, epochs: int) -> LRScheduler:
    """The learning-rate schedule that `make` makes, tried over all epochs before the first of them.

    Raises:
        ValueError: If it does not follow the epoch alone, fails on the way, or leads to a rate below 0.
    """
    before = [{k: deepcopy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    trial: LRScheduler = made("schedule", make, optimizer, kind=LRScheduler)
    if isinstance(trial, ReduceLROnPlateau):
        raise ValueError(
            "schedule ReduceLROnPlateau follows a measured value, and rates here follow the epoch alone; "
            "take one such as CosineAnnealingLR, StepLR, MultiStepLR or ExponentialLR"
        )
    name = type(trial).__name__
    milestones = list(getattr(trial, "milestones", ()))  # MultiStepLR's: one that is no epoch never comes
    if not all(isinstance(epoch, int) for epoch in milestones):
        raise ValueError(f"schedule {name}: milestones must be whole numbers of epochs, got {milestones}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser has not stepped
        for epoch in range(1, epochs + 1):
            try:
                trial.step()
            except Exception as error:
                raise ValueError(f"schedule {name} fails after epoch {epoch}: {error}") from error
            for rate in (float(group["lr"]) for group in optimizer.param_groups):
                if not 0 <= rate < math.inf:
                    raise ValueError(
                        f"schedule {name} makes the learning rate {rate:g} after epoch {epoch}; it must be "
                        f"finite and not below 0"
                    )
    for group, kept in zip(optimizer.param_groups, before, strict=True):  # as if it had not been tried
        for key in group.keys() - kept.keys() - {"params"}:
            del group[key]
        group.update(kept)
    schedule: LRScheduler = made("schedule", make, optimizer, kind=LRScheduler)
    return schedule


def check_tensors(data: Dataset) -> None:
    """Raise ValueError unless every part of the data is made of tensors."""
    for part, split in (("", data.train), ("validation ", data.validation), ("test ", data.test)):
        for name in ("x", "y") if split is not None else ():
            value = getattr(split, name)
            if not isinstance(value, Tensor | Mapped):
                raise ValueError(
                    f"{part}{name} must be a tensor, got {_short(value)}; see pyrobbb.data.from_arrays"
                )
            if isinstance(value, Tensor):
                checks.dense(f"{part}{name}", value)
            if len(value) == 0:
                raise ValueError(f"{part}{name} is empty: its shape is {tuple(value.shape)}")


def check_data(model: BayesianNetwork, train: Split, validation: Split | None) -> None:
    """Raise ValueError if the model cannot be trained on the data: kinds, shapes, lengths and values."""
    check_rows_stay_apart(model.network)  # by its layers; _check_rows_alone asks the network itself
    for part, split in (("", train), ("validation ", validation)):
        if split is None:
            continue
        if len(split.x) != len(split.y):
            raise ValueError(f"{part}x and y differ in length: {len(split.x)} rows and {len(split.y)}")
        check_finite(f"{part}x", split.x)
        output = first_output(model, f"{part}x", split.x)
        check_targets(model, f"{part}y", output, split.y)
    _check_rows_alone(model, train.x[:4])
    _warn_of_scales(model, train.head(SEEN))


def _warn_of_scales(model: BayesianNetwork, first: Split) -> None:
    """Log what is likely a mistake: inputs, or targets beside their noise, on a scale far from 1."""
    x, y = first.x, first.y
    if x.is_floating_point() and x.dim() == 2:
        sizes = x.double().square().mean(0).sqrt()
        largest = int(sizes.argmax())
        if not 1 / LARGE <= float(sizes[largest]) <= LARGE:
            logger.warning(
                "x is not scaled: feature %d has a root mean square of %.3g, the largest of any; priors and "
                "initial values expect about 1: subtract the mean, divide by the standard deviation",
                largest,
                float(sizes[largest]),
            )
    if model.likelihood.prediction is not ValuePrediction:
        return
    with torch.no_grad(), evaluating(model), isolated(device=x.device):
        latents = model.prior_draw() if model.latents != model.sites else None
        law = model.observation(model.apply_network(model.initial(), x), latents)
        try:
            off = (model.encoded(law, y) - univariate(law).mean).square().mean().sqrt()
            ratio = float(off / univariate(law).variance.mean().sqrt())
        except NotImplementedError:  # a distribution without these moments
            return
    if ratio > FAR:
        logger.warning(
            "y is %.3g standard deviations of the likelihood's noise away from the untrained network: "
            "standardise y, or start from a larger noise scale",
            ratio,
        )


def check_targets(model: BayesianNetwork, name: str, output: Tensor, y: Tensor) -> None:
    """ValueError unless every target has a likelihood; `output` is the network's for one row."""
    law = model.observation(output, model.prior_draw() if model.latents != model.sites else None)
    model.encoded(law, y[:1])
    try:
        for begin, end in blocks(y):
            model.likelihood.check_domain(law, model.likelihood.encode(y[begin:end]))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_rows_alone(model: BayesianNetwork, x: Tensor) -> None:
    """ValueError if a row's output changes with the rows before it: no likelihood per datum then."""
    with torch.no_grad(), evaluating(model), isolated(device=x.device):
        alone, again = (model.apply_network(model.initial(), x[-1:])[0] for _ in range(2))
        beside = model.apply_network(model.initial(), x)[-1]
    random = not torch.equal(alone, again)  # a network that draws by itself cannot be asked
    if not random and not torch.allclose(alone, beside, rtol=1e-2, atol=1e-3 * float(alone.abs().max())):
        raise ValueError(
            "the network's output for a row depends on the other rows of the batch, so there is no "
            "likelihood per datum; is the batch its first dimension (batch_first=True for nn.LSTM)?"
        )


def blocks(rows: Tensor) -> Iterator[tuple[int, int]]:
    """Where blocks of about a million values begin and end."""
    size = max(1, VALUES // max(1, rows.shape[1:].numel()))
    return ((begin, begin + size) for begin in range(0, len(rows), size))


def check_finite(name: str, x: Tensor) -> None:
    """Raise ValueError if a value is NaN or infinite; the message names its row."""
    if isinstance(x, Mapped) and x.whole_numbers:
        return
    for begin, end in blocks(x):
        finite = x[begin:end].isfinite()
        if not bool(finite.all()):
            place = (~finite).nonzero()[0].tolist()
            value = float(x[begin:end][tuple(place)])
            raise ValueError(f"{name} holds {value} in row {begin + place[0]}; every input must be finite")


def first_output(model: BayesianNetwork, name: str, x: Tensor) -> Tensor:
    """The network's output for the first row at its initial weights, or a ValueError if it takes none."""
    with torch.no_grad(), evaluating(model):
        with torch.inference_mode(False):
            row = x[:1].clone()
        kept = row._version  # counts the writes into it
        try:
            output = model.apply_network(model.initial(), row)
        except (RuntimeError, TypeError, IndexError) as error:
            if out_of_memory(error):
                raise
            kind = f"{x.dtype} of shape {tuple(x.shape[1:])}"
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"the network cannot take a row of {name}, {kind}: {reason}") from error
    if row._version != kept:
        raise ValueError(
            "the network writes into its input, which would change the data; let its first layer not work in "
            "place (inplace=False, x * 2 for x.mul_(2))"
        )
    if not bool(output.isfinite().all()):
        raise ValueError(
            f"the network's output is not finite at its initial weights, for the first row of {name}"
        )
    return output
