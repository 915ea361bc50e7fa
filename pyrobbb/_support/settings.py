"""Settings as a tree of plain values: in which of them two differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributions import Distribution


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
    """The settings of two trees that differ, in the order of the second."""
    there, here = flat(before), flat(now)
    every = (Change(key, there.get(key, "none"), here.get(key, "none")) for key in {**here, **there})
    return [change for change in every if change.before != change.now]


def is_plain(value: Any) -> bool:
    """Whether it is a number, text, nothing, or a list of these."""
    if isinstance(value, list):
        return all(is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def constants(thing: Any) -> dict[str, Any]:
    """The plain values among an object's own public attributes."""
    public = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if is_plain(value) and name != "training"}


def component(thing: Any) -> str:
    """A prior, a weight of the KL or a network as it prints itself, or else its kind and constants."""
    words = repr(thing)
    if " at 0x" not in words:
        return words
    values = ", ".join(f"{name}={value}" for name, value in constants(thing).items())
    return f"{type(thing).__name__}({values})" if values else type(thing).__name__


def values(thing: Any) -> Any:
    """What makes a prior, a likelihood or a weight of the KL what it is, as a tree of plain values.

    Its kind and its public attributes, those of the objects that it holds, and the distributions of its
    `PyroSample`s. Tensors, which may be trained, are left out.
    """
    if isinstance(thing, list | tuple):
        return {str(i): values(part) for i, part in enumerate(thing)} if not is_plain(thing) else thing
    if isinstance(thing, Mapping):
        return {str(name): values(part) for name, part in thing.items()}
    if is_plain(thing):
        return thing
    if isinstance(thing, Distribution):
        return _of_distribution(thing)
    if isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return getattr(thing, "__qualname__", type(thing).__name__)
    public = {
        name: part for name, part in vars(thing).items() if not name.startswith("_") and name != "training"
    }
    if isinstance(thing, nn.Module):
        public |= dict(thing.named_children()) | getattr(thing, "_pyro_samples", {})
    kept = {name: values(part) for name, part in public.items() if not isinstance(part, Tensor)}
    return {"kind": getattr(thing, "__qualname__", type(thing).__name__), **kept}


def _of_distribution(given: Distribution) -> dict[str, Any]:
    """Its kind and parameters, and those of what it transforms or repeats."""
    found: dict[str, Any] = {"kind": type(given).__name__}
    for name in given.arg_constraints:
        value = getattr(given, name, None)
        found[name] = value.tolist() if isinstance(value, Tensor) else value
    base = getattr(given, "base_dist", None)
    return found if base is None else found | {"of": _of_distribution(base)}


def network_constants(network: nn.Module) -> dict[str, Any]:
    """The plain values among the attributes of a network's own modules; torch's print theirs."""
    own = _own_modules(network).items()
    return {f"{path or 'network'}.{key}": value for path, m in own for key, value in constants(m).items()}


def network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The public tensors of a network's own modules that are in no `state_dict`, and are no weights."""
    weights, found = set(vars(network).get("_weight_buffers", ())), {}
    for path, module in _own_modules(network).items():
        buffers = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        for name, value in (vars(module) | buffers).items():
            full = f"{path}.{name}".lstrip(".")
            if isinstance(value, Tensor) and not name.startswith("_") and full not in weights:
                found[full] = value.detach().cpu()
    return found


def _own_modules(network: nn.Module) -> dict[str, nn.Module]:
    """Those that are not torch's, by path."""
    every = network.named_modules()
    return {path: module for path, module in every if not type(module).__module__.startswith("torch.")}
