"""The keys of a run and the types of its scalars; the components stay open, their constructors check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields, make_dataclass
from functools import cache
from typing import Any, get_type_hints

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from experiments._runner.build import DECLARATIONS
from pyrobbb.experiment import Run

SCALARS = (bool, int, float, str)
OF_THE_COMMAND: Sequence[tuple[str, Any, Any]] = (
    ("experiment", Any, None),
    ("name", str, MISSING),
    ("published", str, ""),
    ("folder", str, MISSING),
    ("figures", bool, True),
    ("report", bool, True),
)


@cache
def run_schema() -> type:
    """`Run`'s fields and what the command adds: unknown keys and words for numbers are refused by name."""
    types = get_type_hints(Run)
    scalars = {*SCALARS, *(kind | None for kind in SCALARS)}
    kinds = {name: kind if kind in scalars else Any for name, kind in types.items()}
    keys = [(f.name, kinds[f.name], MISSING) for f in fields(Run) if f.name != "rates"]
    rates: tuple[str, Any, Any] = ("rates", dict[str, float], field(default_factory=dict))
    callbacks: tuple[str, Any, Any] = ("callbacks", dict[str, Any], field(default_factory=dict))
    return make_dataclass("RunConfig", [*keys, rates, callbacks, *OF_THE_COMMAND])


@cache
def bandit_schema() -> type:
    """The keys of `paper/bandit.yaml`, each with the type of its value."""
    said = yaml.safe_load((DECLARATIONS / "paper" / "bandit.yaml").read_text(encoding="utf-8"))
    defaults = (entry for entry in said.pop("defaults") if isinstance(entry, dict))
    groups = {name.removeprefix("/") for entry in defaults for name in entry}
    rates = said.pop("lr")
    kinds = {name: _kind(value) for name, value in said.items()} | dict.fromkeys(groups, Any)
    lr: tuple[str, Any, Any] = ("lr", dict[str, float], field(default_factory=lambda: dict(rates)))
    return make_dataclass("BanditConfig", [*((name, kind, MISSING) for name, kind in kinds.items()), lr])


def _kind(value: Any) -> Any:
    return list[type(value[0])] if isinstance(value, list) else type(value)  # type: ignore[misc]


def register() -> None:
    """Make the schemas known to Hydra as `schema` and `bandit_schema`."""
    ConfigStore.instance().store(name="schema", node=run_schema())
    ConfigStore.instance().store(name="bandit_schema", node=bandit_schema())
