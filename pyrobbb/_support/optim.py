"""One torch optimiser over everything that training changes, and its learning rates."""

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, TypeVar

import torch
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from pyrobbb._support import checks, text

logger = logging.getLogger(__name__)

UNCONSTRAINED = "_unconstrained"  # how Pyro ends the name of a parameter that it constrains
FORMS = ("fused", "foreach", "capturable", "differentiable")  # of an optimiser: how it is computed, by device
MakeOptimizer = Callable[[Iterable[dict[str, Any]]], Optimizer]
MakeSchedule = Callable[[Optimizer], LRScheduler]
PYRO = ("pyro.optim.optim", "pyro.optim.pytorch_optimizers")  # which make optimisers of Pyro's
T = TypeVar("T")


class JointOptimizer(PyroOptim):
    """One torch optimiser over all parameters behind Pyro's interface, which makes one for each."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def fused(optim: MakeOptimizer, device: torch.device | str = "cpu") -> MakeOptimizer:
    """`optim` in its one-kernel form, where torch has one and `optim` names no other form.

    On CUDA it also keeps its step count on the device, so that a CUDA graph can hold it.
    """
    if not isinstance(optim, partial) or not isinstance(optim.func, type) or optim.args:
        return optim
    kind: Any = optim.func
    known = signature(kind).parameters
    other = {"foreach", "differentiable"} & set(optim.keywords) or not optim.keywords.get("fused", True)
    if "fused" not in known or other:
        return optim
    if torch.device(device).type != "cuda":
        return partial(kind, **(optim.keywords | {"fused": True}))
    if issubclass(kind, torch.optim.Adagrad):  # fused on the CPU alone
        return optim
    capturable = {"capturable": True} if "capturable" in known else {}
    return partial(kind, **(capturable | {"fused": True} | optim.keywords))


def trained(optimizer: Optimizer) -> list[nn.Parameter]:
    """Everything that `optimizer` trains, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def forget_gradients(optimizer: Optimizer) -> None:
    """As `zero_grad`, in a tenth of its time."""
    for parameter in trained(optimizer):
        parameter.grad = None


def moments(optimizer: Optimizer) -> list[Tensor]:
    """The tensors of its state, such as Adam's averages and counts of steps."""
    values = (value for own in optimizer.state.values() for value in own.values())
    return [value for value in values if isinstance(value, Tensor)]


def set_gradient(parameter: Tensor, gradient: Tensor | None) -> None:
    """Leave `gradient` for the optimiser, in memory as the parameter lies there, as `backward` leaves it.

    The fused optimisers of the CPU do not look at strides: of a transposed gradient they would take each
    element for another's.
    """
    if gradient is not None and gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    parameter.grad = gradient


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """`set_gradient` of each; memory that holds the gradients of several, as of a and b in a + b, is copied.

    What scales gradients in place, such as `clip_grad_norm_`, would scale it as often.
    """
    given: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and gradient.untyped_storage().data_ptr() in given:
            gradient = gradient.clone()
        set_gradient(parameter, gradient)
        if gradient is not None:
            given.add(gradient.untyped_storage().data_ptr())


def add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Add to what is left for the optimiser; a copy, since `gradient` may be that of another as well."""
    set_gradient(parameter, gradient.clone() if parameter.grad is None else parameter.grad + gradient)


def clip_gradients(optimizer: Optimizer, norm: float) -> None:
    """Scale the gradient down to the Euclidean norm `norm` before each step, if it is longer."""

    def clip(taken: Optimizer, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_(trained(taken), norm)

    optimizer.register_step_pre_hook(clip)


def on_device(optimizer: Optimizer, device: torch.device | str) -> None:
    """On CUDA, keep a capturable optimiser's learning rates in tensors, which schedules fill in place."""
    if torch.device(device).type != "cuda":
        return
    for group in optimizer.param_groups:
        if on_the_device(optimizer, group):
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)


def on_the_device(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether a parameter group is updated without the host: capturable, or fused SGD, which has no count."""
    fused_sgd = isinstance(optimizer, torch.optim.SGD) and bool(group.get("fused"))
    return fused_sgd or bool(group.get("capturable"))


def load_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load `state`, which an optimiser on another device may have left: forms and kind of rate stay ours.

    Its tensors keep their precision, such as the float32 of NAdam's `mu_product`, where torch would give them
    the parameter's.

    A rate in a tensor (CUDA) stays one and a number stays a number; so do fused and capturable forms, which
    a state dictionary would otherwise replace by those of the device it was made on.
    """
    ours = [dict(group) for group in optimizer.param_groups]
    saved = list(state["param_groups"])
    if len(saved) == len(ours):  # torch's own message is clear where they differ
        saved = [s | {k: o[k] for k in FORMS if k in o} for s, o in zip(saved, ours, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": saved})
    numbers = [number for group in saved for number in group["params"]]
    for parameter, number in zip(trained(optimizer), numbers, strict=True):
        own, kept = optimizer.state.get(parameter, {}), state["state"].get(number, {})
        for key in own.keys() & kept.keys():
            if isinstance(kept[key], Tensor):
                own[key] = kept[key].to(own[key].device)
    for group, own in zip(optimizer.param_groups, ours, strict=True):
        if isinstance(own["lr"], torch.Tensor):
            group["lr"] = torch.as_tensor(group["lr"]).to(own["lr"])
        else:
            group["lr"] = float(group["lr"])


def named_parameters(model: nn.Module, guide: nn.Module) -> dict[str, nn.Parameter]:
    """Everything that training changes: the guide's parameters, then the model's, in a fixed order."""
    named = {f"guide.{k}": v for k, v in guide.named_parameters()}
    return named | {f"model.{k}": v for k, v in model.named_parameters()}


def parameter_groups(
    named: Mapping[str, nn.Parameter], optim: MakeOptimizer, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Optimiser groups, one for each factor on the learning rate.

    `rates` maps parts of a parameter's name between dots (`rho`, say, or `network.0`) to the factor on its
    learning rate.

    Raises:
        ValueError: If a name in `rates` matches no parameter, or the optimiser has no `lr` to multiply.
    """
    rest = dict(named)
    groups = []
    for part, factor in rates.items():
        matching = [k for k in named if f".{part}." in f".{k.removesuffix(UNCONSTRAINED)}."]
        if not matching:
            raise ValueError(f"rates: {part!r} matches no parameter; the parameters are {', '.join(named)}")
        chosen = {k: rest.pop(k) for k in matching if k in rest}
        if not chosen:
            raise ValueError(
                f"rates: every parameter that {part!r} matches already has a factor from an earlier key"
            )
        lr = getattr(optim, "keywords", {}).get("lr")
        if lr is None:
            raise ValueError("rates multiply the optimiser's lr, so optim must state one")
        groups.append({"params": list(chosen.values()), "lr": lr * checks.positive(f"rates.{part}", factor)})
    return ([{"params": list(rest.values())}] if rest else []) + groups


def made(name: str, make: Callable[..., Any], *arguments: Any, kind: type[T]) -> T:
    """`make(*arguments)`, or a ValueError that names the option `make` came from."""
    if not callable(make):
        raise ValueError(
            f"{name} must be a function that makes the torch {kind.__name__}, got {text.short(make)}"
        )
    given = {}
    if isinstance(make, partial):
        given = make.keywords
        if wrong := checks.not_a_number(make.func, given):  # of which torch would name no option
            raise ValueError(f"{name}.{wrong}")
    try:
        result = make(*arguments)
    except (TypeError, ValueError) as error:
        options = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(f"{name}: {error}" + (f" (it was given {options})" if options else "")) from error
    if not isinstance(result, kind):
        raise ValueError(f"{name} must make a {kind.__name__}, it made {text.short(result)}")
    return result


def made_optimizer(make: Callable[..., Any], groups: list[dict[str, Any]]) -> Optimizer:
    """The optimiser that `make` makes, if it steps along given gradients."""
    if isinstance(make, PyroOptim) or getattr(make, "__module__", "") in PYRO:
        raise ValueError(
            "optim must make an optimiser of torch's, such as partial(torch.optim.Adam, lr=0.01), got one of "
            "Pyro's"
        )
    optimizer = made("optim", make, groups, kind=Optimizer)
    closure = signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise ValueError(
            f"optim {type(optimizer).__name__} evaluates the loss itself, several times a step; use one "
            f"that steps along given gradients, such as Adam or SGD"
        )
    return optimizer


def warn_of_decay(optimizer: Optimizer, guide: nn.Module) -> None:
    """Log a weight decay of the guide's parameters, which is a second prior, of sigmas as of means."""
    own = {id(parameter) for parameter in guide.parameters()}
    for group in optimizer.param_groups:
        if group.get("weight_decay") and any(id(parameter) in own for parameter in group["params"]):
            logger.warning(
                "optim %s has weight_decay=%g, which pulls the posterior's own parameters towards 0, in "
                "addition to the prior and without appearing in the free energy: pass weight_decay=0",
                type(optimizer).__name__,
                group["weight_decay"],
            )
            return


def warn_of_rounding(named: Mapping[str, nn.Parameter]) -> None:
    """Log that half precision is trained, in which the steps of a rho, far smaller than it, are lost."""
    for name, parameter in named.items():
        if parameter.dtype.itemsize < 4:
            kind = str(parameter.dtype).removeprefix("torch.")
            logger.warning(
                "%s is trained in %s, which rounds away steps of less than about %.2g times its value, so "
                "it may never leave its starting value; sigmas are affected most: train in float32, and "
                "convert the posterior's model and guide afterwards",
                name, kind, torch.finfo(parameter.dtype).eps / 2,
            )  # fmt: skip
            return


def made_schedule(make: Callable[..., Any], optimizer: Optimizer, epochs: int) -> LRScheduler:
    """The learning-rate schedule that `make` makes, tried over all epochs before the first of them.

    Raises:
        ValueError: If it does not follow the epoch alone, fails on the way, or leads to a rate below 0.
    """
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # filled in place, it would be another for the next training
            group["lr"] = group["lr"].clone()
    before = [{k: deepcopy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    trial = made("schedule", make, optimizer, kind=LRScheduler)
    name = type(trial).__name__
    if isinstance(trial, ReduceLROnPlateau):
        raise ValueError(
            f"schedule {name} follows a measured value, but rates here follow the epoch alone; use one such "
            f"as CosineAnnealingLR, StepLR, MultiStepLR or ExponentialLR"
        )
    milestones = list(getattr(trial, "milestones", ()))  # MultiStepLR's: one that is not an epoch never comes
    if not all(isinstance(epoch, Integral) for epoch in milestones):
        raise ValueError(f"schedule {name}: milestones must be whole numbers of epochs, got {milestones}")
    if isinstance(trial, OneCycleLR) and trial.total_steps > epochs:
        logger.warning(
            "schedule %s lasts %d steps, but takes one per epoch, of which there are %d: set total_steps to "
            "the number of epochs, not of batches", name, trial.total_steps, epochs,
        )  # fmt: skip
    rates = _tried_rates(trial, optimizer, epochs)
    if all(len({*each}) == 1 for each in rates) and len({float(kept["lr"]) for kept in before}) > 1:
        raise ValueError(
            f"schedule {name} gives all parameters one learning rate, and factors in rates would have no "
            f"effect: leave rates out, or take a schedule that multiplies, such as LambdaLR"
        )
    for group, kept in zip(optimizer.param_groups, before, strict=True):  # as if it had not been tried
        for key in group.keys() - kept.keys() - {"params"}:
            del group[key]
        group.update(kept)
    return made("schedule", make, optimizer, kind=LRScheduler)


def _tried_rates(schedule: LRScheduler, optimizer: Optimizer, epochs: int) -> list[list[float]]:
    """Step the schedule to its end: the rate of every group at first and after each epoch.

    Raises:
        ValueError: If a step fails, or a rate that a later epoch would take is negative or not finite.
    """
    name, found = type(schedule).__name__, [[float(group["lr"]) for group in optimizer.param_groups]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser has not stepped
        for epoch in range(1, epochs + 1):
            try:
                schedule.step()
            except Exception as error:
                raise ValueError(f"schedule {name} fails after epoch {epoch}: {error}") from error
            found.append([float(group["lr"]) for group in optimizer.param_groups])
            wrong = [rate for rate in found[-1] if not 0 <= rate < math.inf]
            if wrong and epoch < epochs:
                raise ValueError(
                    f"schedule {name} makes the learning rate {wrong[0]:g} after epoch {epoch}; it must be "
                    f"finite and not below 0"
                )
    return found
