"""Checks of a value's domain, each with one message: the name, the value, what it must be."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature
from numbers import Integral, Real
from operator import index
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support.text import short

# a type as it is written, of a number and neither of a text nor of a list
NUMBER = re.compile(r"(<class '|(typing\.)?(Union|Optional)\[)?(float|int)\b(?!.*(\bstr\b|\w\[))")


def number(name: str, value: Any) -> float:
    """`value` as a finite float, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> float:
    """`value` if it is a number greater than 0."""
    if number(name, value) <= 0:
        raise ValueError(f"{name} must be greater than 0, got {value!r}")
    return float(value)


def between(name: str, value: Any, low: float, high: float) -> float:
    """`value` if it is a number in [`low`, `high`]."""
    if not low <= number(name, value) <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")
    return float(value)


def not_a_number(make: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """`lr must be a number, got 'fast'`, of `make`'s options by their types or defaults; else nothing.

    Text, a list or a mapping: what else may stand for a number, such as a tensor, is not judged here.
    """
    for name, option in signature(make).parameters.items():
        kind = type(option.default) if option.annotation is Parameter.empty else option.annotation
        if NUMBER.match(str(kind)) and isinstance(given.get(name), Sequence | Mapping):
            return f"{name} must be a number, got {given[name]!r}"
    return ""


def share(name: str, value: Any, *, zero: bool = False, one: bool = False) -> float:
    """`value` if it is a number between 0 and 1, which may be `zero` or `one` where these are true."""
    if not (0 < number(name, value) < 1 or (zero and value == 0) or (one and value == 1)):
        low, high = "at least" if zero else "greater than", "at most" if one else "less than"
        raise ValueError(f"{name} must be {low} 0 and {high} 1, got {value!r}")
    return float(value)


def count(name: str, value: Any, *, minimum: int = 1) -> int:
    """`value` if it is a whole number, at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)


def whole(name: str, value: Any) -> int:
    """`value` if it is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def seed(name: str, value: Any) -> int:
    """`value` if torch's generators take it: a whole number from 0 to 2^63 - 1."""
    if count(name, value, minimum=0) >= 2**63:
        raise ValueError(f"{name} must be less than 2^63, got {value!r}")
    return int(value)


def seeds(value: Any, runs: int) -> list[int]:
    """Seeds of as many runs: a list of whole numbers, or what becomes one, such as an array."""
    each = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(each, Sequence) or isinstance(each, str) or len(each) != runs:
        raise ValueError(f"seeds must be one for each of {runs} runs, got {value!r}")
    try:
        found = [index(one) for one in each]
    except TypeError as error:
        raise ValueError(f"seeds must be whole numbers, got {value!r}") from error
    if any(abs(one) >= 2**63 for one in found):
        raise ValueError(f"seeds must lie between -2^63 and 2^63, got {value!r}")
    return found


def counts(name: str, value: Any) -> tuple[int, ...]:
    """`value` if it is a list of whole numbers, each at least 1."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} must be a list of whole numbers, got {value!r}")
    return tuple(count(f"{name}[{i}]", item) for i, item in enumerate(value))


def keep(owner: object, **checked: Any) -> None:
    """Give a frozen dataclass the plain values that checks made of its fields, such as of numpy's numbers."""
    for name, value in checked.items():
        object.__setattr__(owner, name, value)


def one_of(name: str, value: Any, choices: Collection[str]) -> str:
    """`value` if it is one of `choices`."""
    if value not in tuple(choices):  # in a set or dict, looking up a list raises TypeError
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{meant(value, choices)}")
    return str(value)


def meant(word: Any, names: Iterable[str]) -> str:
    """`; did you mean 'laplace'?` where one of `names` is near."""
    lower = {name.lower(): name for name in names}
    near = [lower[name] for name in get_close_matches(str(word).lower(), list(lower), n=1)]
    return f"; did you mean {near[0]!r}?" if near else ""


def each_of(name: str, values: Iterable[Any], choices: Collection[str]) -> None:
    """Raise ValueError unless every value is one of `choices`."""
    for value in values:
        one_of(name, value, choices)


def dense(name: str, value: Tensor) -> Tensor:
    """`value` if it is neither sparse nor without values."""
    if value.layout != torch.strided or value.is_meta:
        kind = "has no values (device meta)" if value.is_meta else f"is sparse ({value.layout})"
        raise ValueError(f"{name} {kind}; it must be an ordinary tensor")
    return value


def shaped(name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """`value` if it is a tensor of this shape."""
    if not isinstance(value, Tensor) or value.shape != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else short(value)
        raise ValueError(f"{name} must be a tensor of shape {shape}, got {got}")
    return value


def check_kinds(**given: Any) -> None:
    """Raise ValueError unless each value is an instance of the type, or one of the types, given with it."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            alike = {base.__name__ for base in type(value).__mro__}  # torch has a Dataset, too
            every = [f"{k.__module__}.{k.__name__}" if k.__name__ in alike else k.__name__ for k in kinds]
            names = [f"{'an' if name[0] in 'AEIOU' else 'a'} {name}" for name in every]
            wanted = " or ".join(names).replace("a NoneType", "nothing")
            raise ValueError(f"{name} must be {wanted}, got {short(value)}")
