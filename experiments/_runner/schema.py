"""The keys of a run and the types of its scalars; the components stay open, their constructors check them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class RunConfig:
    """`experiments/run.yaml`, typed: an unknown key or a word for a number is refused with its name."""

    data: Any = MISSING
    model: Any = MISSING
    prior: Any = MISSING
    likelihood: Any = MISSING
    guide: Any = MISSING
    kl: Any = MISSING
    optim: Any = MISSING
    schedule: Any = MISSING
    experiment: Any = None
    name: str = MISSING
    published: str = ""
    folder: str = MISSING
    epochs: int = MISSING
    batch_size: int = MISSING
    samples: int = MISSING
    vectorize: bool = MISSING
    fast: str = MISSING
    elbo: Any = None
    clip_norm: float | None = None
    record_every: int = 1
    chains: int = MISSING
    together: bool = MISSING
    seed: int = MISSING
    device: str = MISSING
    rates: dict[str, float] = field(default_factory=dict)
    validation_draws: int = MISSING
    draws: int = MISSING
    export_weights: Any = MISSING
    observations: int = MISSING
    checkpoint_seconds: float = MISSING


@dataclass
class ArmRates:
    """Adam's rate for each arm of the bandit."""

    thompson: float = MISSING
    greedy: float = MISSING


@dataclass
class BanditConfig:
    """`experiments/bandit.yaml`, typed as well."""

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
    ConfigStore.instance().store(name="schema", node=RunConfig)
    ConfigStore.instance().store(name="bandit_schema", node=BanditConfig)
