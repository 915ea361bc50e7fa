"""What a training was made with, as plain values: only a matching checkpoint may be resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import copy
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.device import uses_tf32
from pyrobbb._support.distribution_parts import own_tensors
from pyrobbb._support.flat import without_expansion
from pyrobbb._support.optim import FORMS
from pyrobbb._support.random_state import isolated
from pyrobbb._support.settings import (
    alike,
    changes,
    clipped,
    component,
    constants,
    first_difference,
    is_plain,
    network_constants,
    network_tensors,
    own_constants,
    tensors_of_parts,
    values,
)
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import digest_of
from pyrobbb.weight_sites import owner_of

if TYPE_CHECKING:
    from pyrobbb.training.callbacks import Callback
    from pyrobbb.training.chain import Chain

EPOCHS = (0, 1, 2, 3, 5, 10, 20, 50, 100)
MOVING = ("last_epoch", "verbose", "base_lrs")  # of a schedule; the rates are the optimiser's


def likelihood(module: nn.Module) -> dict[str, Any]:
    """A likelihood's kind, its numbers and its fixed buffers; what is trained changes, and is left out."""
    fixed = {k: v.float().tolist() for k, v in module.named_buffers()}
    return {"kind": type(module).__name__, **constants(module), **fixed}


def optimizer(made: Optimizer) -> dict[str, Any]:
    """An optimiser's kind and options, with the learning rate of each of its groups."""
    options = {k: _plain(v) for k, v in made.defaults.items() if k not in FORMS and is_plain(_plain(v))}
    rates = [float(group.get("initial_lr", group["lr"])) for group in made.param_groups]
    return {**options, "lr": [float(f"{rate:.6g}") for rate in rates]}  # on CUDA they are 32 bits long


def groups(made: Optimizer, named: Mapping[str, nn.Parameter]) -> list[str]:
    """The options in which each group of an optimiser is its own; of several groups also its parameters."""
    names = {id(parameter): name for name, parameter in named.items()}
    found = []
    for group in made.param_groups:
        usual = {k: _plain(v) for k, v in made.defaults.items() if k not in (*FORMS, "lr")}
        own = [f"{k}={_plain(group[k])}" for k, v in usual.items() if k in group and _plain(group[k]) != v]
        whose = [names.get(id(p), "another") for p in group["params"]] if len(made.param_groups) > 1 else []
        found.append(" ".join([*whose, *own]))
    return found


def schedule(made: LRScheduler | None) -> dict[str, Any]:
    """A schedule's kind and the numbers that it was made with."""
    if made is None:
        return {"kind": "none"}
    found = {k: _plain(v) for k, v in vars(made).items() if k not in MOVING and not k.startswith("_")}
    plain = {"kind": type(made).__name__, **{k: v for k, v in found.items() if is_plain(v)}}
    inner = getattr(made, "_schedulers", ())  # one after another, or chained
    if inner:
        plain["of"] = [schedule(one) for one in inner]
        plain["milestones"] = list(getattr(made, "_milestones", ()))
    return plain


def factors(made: LRScheduler | None) -> list[float]:
    """A schedule's own functions of the epoch, by their values at the first few."""
    found = [one for inner in getattr(made, "_schedulers", ()) for one in factors(inner)]
    own = getattr(made, "lr_lambdas", ())
    return found + [float(f"{float(f(epoch)):.6g}") for f in own for epoch in EPOCHS]


def elbo(given: Any) -> str:
    """An ELBO's kind, and the numbers of an instance or a partial; None is `Trace_ELBO`."""
    if given is None or isinstance(given, type):
        return "Trace_ELBO" if given is None else given.__name__
    kind = given.func.__name__ if isinstance(given, partial) else type(given).__name__
    values = given.keywords if isinstance(given, partial) else vars(given)
    numbers = [f"{k}={v}" for k, v in sorted(values.items()) if is_plain(v)]
    return f"{kind}({', '.join(numbers)})" if numbers else str(kind)


def callback(made: Callback) -> str:
    """A callback's kind, and the options that it was made with, as far as they are its attributes."""
    options = {name: getattr(made, name, None) for name in signature(type(made)).parameters}
    said = [f"{name}={value!r}" for name, value in options.items() if value is not None and is_plain(value)]
    return f"{type(made).__name__}({', '.join(said)})"


def model(made: BayesianNetwork) -> dict[str, Any]:
    """What p(y, w | x) is made of."""
    found = {
        "network": component(made.network),
        "constants of the network": network_constants(made.network),
        "prior": component(made.prior),
        "likelihood": likelihood(made.likelihood),
        "value of the prior": values(made.prior),
        "value of the likelihood": values(made.likelihood),
    }
    if made.centres():
        found["trained weights"] = digest_of(*(value for _, value in made.network.named_buffers()))
    return found | ({"sizes of the weights' prior": sizes} if (sizes := _prior_sizes(made)) else {})


def _prior_sizes(made: BayesianNetwork) -> dict[str, str]:
    """What tells a user's own prior from another: a number for each tensor of the weights' distributions.

    The number is the root of the mean square of v_k + |v_k| cos(k) over the tensor's values v_k. It depends
    on their order and signs, nothing in it cancels, and its first three digits are the same on nearly every
    processor. There is none for our own priors, which their options identify, nor for one that draws, trains
    or keeps something in buffers.
    """
    kinds = {type(part).__module__.partition(".")[0] for part in (made.prior, *made.prior.parts())}
    changing = [*made.other_latents, *made.prior_parameters, *made.prior_buffers]
    if kinds == {"pyrobbb"} or changing:
        return {}
    found = []
    for seed in range(2):
        with isolated(seed, device=made.device), poutine.block(), torch.no_grad():
            given = {name: own_tensors(made.prior_of(name)) for name in made.sites}
            found.append({f"{name} {i}": _size(v) for name, of in given.items() for i, v in enumerate(of)})
    return found[0] if found[0] == found[1] else {}  # it draws some


def _size(value: Tensor) -> str:
    v = without_expansion(value).flatten().cpu().double()
    k = torch.arange(1, len(v) + 1, dtype=torch.double)
    return f"{float((v + v.abs() * k.cos()).square().mean().sqrt()):.3g}"


def plain_network(network: nn.Module) -> dict[str, Any]:
    """What a network is besides its parameters: its parts, its plain values, its buffers by a digest."""
    return {
        "network": component(network),
        "constants of the network": network_constants(network),
        "buffers": {name: digest_of(value) for name, value in network.named_buffers()},
    }


def held(made: BayesianNetwork) -> dict[str, Any]:
    """What a model holds besides weights and parameters, such as a mean to subtract.

    The tensors of its state, and its `attributes`.
    """
    kept, weights = made.state_dict(), {f"network.{name}" for name in made.frozen}
    found = {name: value for name, value in made.named_buffers() if name in kept and name not in weights}
    return {name: value.detach().cpu().clone() for name, value in found.items()} | attributes(made)


def attributes(made: BayesianNetwork) -> dict[str, Any]:
    """What no `state_dict` has: tensors; of the network plain values, and which modules are in training."""
    own = network_tensors(made.network, made.every_weight)
    every = {f"network.{name}": value for name, value in own.items()} | tensors_of_parts(made)
    found: dict[str, Any] = {name: value.detach().cpu().clone() for name, value in every.items()}
    for path, module in made.network.named_modules(prefix="network"):
        plain = {**constants(module), "training": module.training}
        found |= {f"{path}.{name}": value for name, value in plain.items()}
    return found


def changed_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a checkpoint's `attributes` that training has changed."""
    constant = state["constant buffers"]
    return {name: value for name, value in state["attributes"].items() if name not in constant}


def unchanged(made: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What training has left as it was made: not running statistics, nor learned priors."""
    return [name for name, value in now.items() if name in made and alike(made[name], value)]


def check_held(mine: Mapping[str, Any], state: Mapping[str, Any], path: Any) -> None:
    """Raise CheckpointError if a tensor that is constant in a checkpoint was made with other values here."""
    theirs = {**state["model"], **state["attributes"]}
    for name in state["constant buffers"]:
        there, here = theirs[name], mine.get(name)
        if not isinstance(here, Tensor) or (name in state["model"] and here.shape != there.shape):
            continue  # `check_same` says so of plain values, `load_module` of shapes
        if not alike(there.cpu(), here):
            raise CheckpointError(
                f"{path} was made with other values of the tensor {name}; give another folder"
            )


def restore_attributes(made: BayesianNetwork, kept: Mapping[str, Any]) -> None:
    """Put back what `attributes` gave.

    Other tensors take the places of the network's, which may be parts of the data.
    """
    of_parts = tensors_of_parts(made)
    for name, value in kept.items():
        if name in of_parts:  # perhaps in a list or mapping
            of_parts[name].copy_(value)
        else:
            own = value.to(made.device) if isinstance(value, Tensor) else copy(value)
            setattr(*owner_of(made, name), own)


def data(train: Any, validation: Any = None) -> dict[str, str]:
    """Digests of the rows: of all targets and of 64 inputs, and of all inputs that are in memory."""
    x = getattr(train, "x", None)
    found = {"data": train.digest(), **({"inputs": digest_of(x)} if isinstance(x, Tensor) else {})}
    return found if validation is None else found | {"validation": rows(validation)}


def rows(part: Any) -> str:
    """One digest of validation or test rows."""
    return ":".join(data(part).values())


def training(chain: Chain) -> dict[str, Any]:
    """Everything that determines a training's result, except the data and the initial values."""
    options = chain.options
    found = {
        **model(chain.model),
        "N": len(chain.train),
        "batch_size": chain.batch_size,
        "seed": options.seed,
        "samples": options.samples,
        "estimator": options.estimator,
        "elbo": elbo(options.elbo),
        "clip_norm": options.clip_norm,
        "kl": component(options.kl),
        "value of the kl": values(options.kl),
        "optimizer": type(chain.optimizer).__name__,
        "optim": optimizer(chain.optimizer),
        "parameter groups": groups(chain.optimizer, chain.named),
        "schedule": schedule(chain.schedule),
        "factors": factors(chain.schedule),
        "inference": component(options.inference),
        "prior_scale": getattr(options.inference, "prior_scale", None),
        "guide": type(chain.guide).__name__,
        "constants of the guide": own_constants(chain.guide),
        "tf32": uses_tf32(chain.device),
    }
    return found | {"epochs": chain.epochs} if chain.inference.planned else found


def check_same(mine: Mapping[str, Any], theirs: Mapping[str, Any], path: Any) -> None:
    """Raise CheckpointError with the first of `mine` that is there and differs."""
    known = {name: value for name, value in theirs.items() if name in mine}
    for key, before, now in changes(known, {name: mine[name] for name in known}):
        if key in ("data", "inputs"):
            raise CheckpointError(f"{path} was made with other training data of the same shape")
        if key in ("validation", "test"):
            raise CheckpointError(f"{path} was made with other {key} data")
        if key == "network":
            there, here = first_difference(before, now)
            raise CheckpointError(f"{path} was made with another network: {there} there, {here} here")
        name = key.replace(".", " ", 1)
        here = f"this is {clipped(now)}; give another folder"
        raise CheckpointError(f"{path} was made with {name} {clipped(before)}, {here}")


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Counter):  # MultiStepLR's milestones
        return sorted(value.elements())
    return list(value) if isinstance(value, tuple) else value
