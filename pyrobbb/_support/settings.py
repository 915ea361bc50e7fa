"""Settings as a tree of plain values: in which of them two differ."""

from collections.abc import Container, Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyrobbb._support.flat import strided

LONGEST = 16  # values of a list or a tensor that are kept one by one
PARTS = {"Prior", "Likelihood", "KLWeight"}  # base classes of what a user may write


class Change(NamedTuple):
    """A setting, `prior.sigma`, and its two values; one that is not there is "none"."""

    key: str
    before: Any
    now: Any


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A tree of mappings as one, `{"prior.sigma": 1.0}`."""
    if not isinstance(tree, Mapping):
        return {prefix.rstrip("."): tree}
    return {k: v for name, part in tree.items() for k, v in flat(part, f"{prefix}{name}.").items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The settings of two trees that differ, in the order of the second; NaN equals NaN."""
    there, here = flat(before), flat(now)
    every = (Change(key, there.get(key, "none"), here.get(key, "none")) for key in {**here, **there})
    return [change for change in every if change.before != change.now and not _both_nan(change)]


def _both_nan(change: Change) -> bool:
    return all(isinstance(value, float) and value != value for value in (change.before, change.now))


def clipped(value: Any) -> str:
    """Its text, short enough for a message."""
    words = str(value)
    return words if len(words) <= 400 else f"{words[:400]} ..."


def first_difference(one: str, other: str) -> tuple[str, str]:
    """The first lines in which two texts differ, such as two printed networks, short enough for a message."""
    pairs = zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing")
    differ = ((clipped(a.strip()), clipped(b.strip())) for a, b in pairs if a != b)
    return next(differ, (clipped(one), clipped(other)))


def is_plain(value: Any) -> bool:
    """Whether it is a number, text, nothing, or a list of these."""
    if isinstance(value, list):
        return all(is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def constants(thing: Any) -> dict[str, Any]:
    """The plain values among an object's own public attributes."""
    found = {name: value for name, value in _public(thing).items() if is_plain(value) and name != "training"}
    return deepcopy(found)  # of a list that grows, what it is now


def _public(thing: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if not name.startswith("_")}


def own_constants(guide: Any) -> dict[str, Any]:
    """The `constants` of those parts of a guide that the user wrote, by path.

    Whole numbers are left out, as they may be counters. What Pyro's parts and ours were made with shows in
    the shapes of their parameters.
    """
    found: dict[str, Any] = {}
    for path, part in guide.named_modules():
        if type(part).__module__.partition(".")[0] not in ("pyro", "pyrobbb", "torch"):
            found |= {f"{path}.{name}".lstrip("."): value for name, value in constants(part).items()}
    return {name: value for name, value in found.items() if type(value) is not int}


def component(thing: Any) -> str:
    """A prior, a weight of the KL or a network as it prints itself, or else its kind and constants."""
    words = repr(thing)
    if " at 0x" not in words:
        return words
    values = ", ".join(f"{name}={value}" for name, value in constants(thing).items())
    return f"{type(thing).__name__}({values})" if values else type(thing).__name__


def values(thing: Any, around: tuple[int, ...] = ()) -> Any:
    """What identifies a prior, a likelihood or a weight of the KL, as a tree of plain values.

    Its kind and its public attributes, those of the modules, dataclasses and distributions that it holds, and
    the distributions of its `PyroSample`s; other objects by their kind, long lists by a digest. Tensors that
    lie in it are left out: they are trained, or among its `tensors`. `around` are the ids of what it lies in.
    """
    if isinstance(thing, Enum):
        return thing.name
    if thing is None or type(thing) in (bool, int, str):
        return thing
    if isinstance(thing, float):
        return repr(float(thing))  # so that NaN equals itself
    if id(thing) in around:
        return "itself"
    inside = (*around, id(thing))
    if isinstance(thing, Distribution):
        return _of_distribution(thing, inside)
    kind = getattr(thing, "__qualname__", type(thing).__name__)
    if isinstance(thing, partial):
        return {"kind": values(thing.func), **values({**thing.keywords, "arguments": thing.args}, inside)}
    if (parts := _parts(thing)) is None:
        return kind
    found = {name: values(part, inside) for name, part in parts.items() if not isinstance(part, Tensor)}
    if not isinstance(thing, list | tuple | Mapping):
        return {"kind": kind, **found}
    return found if len(found) <= LONGEST else f"{len(found)} values {_digest(found)}"


def tensors(thing: Any, path: str, around: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """The tensors, and arrays as tensors, that lie where `values` looks and are not trained, by path."""
    if isinstance(thing, np.ndarray) and thing.dtype.kind in "biuf":
        thing = torch.from_numpy(thing.astype(np.float64))
    if isinstance(thing, Tensor):
        return {} if thing.requires_grad else {path: thing}
    found: dict[str, Tensor] = {}
    for name, part in (_parts(thing) or {}).items() if id(thing) not in around else ():
        found |= tensors(part, f"{path}.{name}", (*around, id(thing)))
    return found


def tensors_of_parts(model: Any) -> dict[str, Tensor]:
    """The `tensors` of a model's prior and likelihood, by path."""
    return tensors(model.prior, "prior") | tensors(model.likelihood, "likelihood")


def _parts(thing: Any) -> dict[str, Any] | None:
    """What is looked into of a list, a mapping, a prior and the like; None of what its kind alone tells."""
    if isinstance(thing, list | tuple | Mapping):
        each = thing.items() if isinstance(thing, Mapping) else enumerate(thing)
        return {str(name): part for name, part in each}
    ours = PARTS & {base.__name__ for base in type(thing).__mro__}
    if isinstance(thing, type) or not (ours or isinstance(thing, nn.Module) or is_dataclass(thing)):
        return None
    public = _public(thing)
    if isinstance(thing, nn.Module):
        public |= dict(thing.named_children()) | getattr(thing, "_pyro_samples", {})
        public.pop("training", None)
    return public


def _of_distribution(given: Distribution, inside: tuple[int, ...]) -> dict[str, Any]:
    """Its kind and parameters, and those of what it transforms, repeats or mixes."""
    found: dict[str, Any] = {"kind": type(given).__name__}
    dense = "covariance_matrix" in given.arg_constraints  # which stands there in three forms
    for name in ("loc", "covariance_matrix") if dense else given.arg_constraints:
        found[name] = _of_parameter(getattr(given, name, None), inside)
    for name in ("base_dist", "mixture_distribution", "component_distribution"):
        if isinstance(part := getattr(given, f"_{name}", getattr(given, name, None)), Distribution):
            found[name] = _of_distribution(part, inside)
    for i, transform in enumerate(getattr(given, "transforms", ())):
        each = {name: _of_parameter(value, inside) for name, value in _public(transform).items()}
        found[f"transform {i}"] = {"kind": type(transform).__name__, **each}
    return found


def _of_parameter(value: Any, inside: tuple[int, ...]) -> Any:
    if not isinstance(value, Tensor):
        return values(value, inside)
    if value.numel() <= LONGEST:
        return values(value.tolist())
    return f"shape {tuple(value.shape)} {_digest(value.detach().cpu().double().numpy().tobytes())}"


def _digest(content: Any) -> str:
    return sha256(content if isinstance(content, bytes) else repr(content).encode()).hexdigest()[:16]


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same, tensors but for rounding, which differs between processors."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other) and bool(one == other)
    one, other = strided(one), strided(other)
    same = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same and torch.allclose(one, other, rtol=1e-5, atol=1e-7, equal_nan=True)


def network_constants(network: nn.Module) -> dict[str, Any]:
    """The plain values among the attributes of a network's own modules; torch's print theirs."""
    own = own_modules(network).items()
    return {f"{path or 'network'}.{key}": value for path, m in own for key, value in constants(m).items()}


def network_tensors(network: nn.Module, weights: Container[str]) -> dict[str, Tensor]:
    """The public tensors of a network's own modules that are in no `state_dict`, nor among `weights`."""
    found = {}
    for path, module in own_modules(network).items():
        buffers = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        for name, value in (vars(module) | buffers).items():
            full = f"{path}.{name}".lstrip(".")
            if isinstance(value, Tensor) and not name.startswith("_") and full not in weights:
                found[full] = value.detach().cpu()
    return found


def own_modules(network: nn.Module) -> dict[str, nn.Module]:
    """Those that are not torch's, by path."""
    every = network.named_modules()
    return {path: module for path, module in every if not type(module).__module__.startswith("torch.")}
