"""The keys of a run and the types of its scalars; the components stay open, their constructors check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from pyrobbb.experiment import Run

SCALARS = (bool, int, float, str)
OF_THE_COMMAND: Sequence[tuple[str, Any, Any]] = (
    ("experiment", Any, None),
    ("name", str, MISSING),
    ("published", str, ""),
    ("folder", str, MISSING),
)


def run_schema() -> type:
    """`Run`'s fields and what the command adds: an unknown key or a word for a number is refused by name."""
    types = get_type_hints(Run)
    kinds = {name: kind if kind in SCALARS else Any for name, kind in types.items()}
    keys = [(f.name, kinds[f.name], MISSING) for f in fields(Run) if f.name != "rates"]
    rates: tuple[str, Any, Any] = ("rates", dict[str, float], field(default_factory=dict))
    return make_dataclass("RunConfig", [*keys, rates, *OF_THE_COMMAND])


@dataclass
class ArmRates:
    """Adam's rate for each arm of the bandit."""

    thompson: float = MISSING
    greedy: float = MISSING


@dataclass
class BanditConfig:
    """`experiments/paper/bandit.yaml`, typed as well."""

    prior: Any = MISSING
    likelihood: Any = MISSING
    guide: Any = MISSING
    name: str = MISSING
    folder: str = MISSING
    setting: str = MISSING
    swapped: bool = MISSING
    steps: int = MISSING
    seeds: list[int] = MISSING
    arms: list[str] = MISSING
    epsilons: list[float] = MISSING
    hidden: list[int] = MISSING
    heads: bool = MISSING
    lr: ArmRates = field(default_factory=ArmRates)
    draws: int = MISSING
    capacity: int = MISSING
    batch_size: int = MISSING
    updates: int = MISSING
    every: int = MISSING
    pulls: int = MISSING
    kl_over: str = MISSING
    compiled: bool = MISSING
    threads: int = MISSING
    checkpoint_seconds: float = MISSING


def register() -> None:
    """Make the schemas known to Hydra as `schema` and `bandit_schema`."""
    ConfigStore.instance().store(name="schema", node=run_schema())
    ConfigStore.instance().store(name="bandit_schema", node=BanditConfig)
