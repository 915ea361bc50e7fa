"""New paths of the parts that a `config.yaml` of version 0.1.0 names."""

from __future__ import annotations

from typing import Any

MOVED = {
    "experiments.controls": "experiments.reproductions.controls",
    "guides.initial": "pyrobbb.initializers",
    "guides.mean_field": "pyrobbb.mean_field",
    "models.gluon_as_printed": "experiments.reproductions.gluon_as_printed",
    "pyrobbb.kl": "pyrobbb.kl_weights",
}


def up_to_date(part: Any) -> Any:
    """`part` of a configuration with every `_target_` under its current name."""
    if isinstance(part, dict):
        return {k: _renamed(v) if k == "_target_" else up_to_date(v) for k, v in part.items()}
    return [up_to_date(value) for value in part] if isinstance(part, list) else part


def _renamed(target: Any) -> Any:
    module, _, name = str(target).rpartition(".")
    return f"{MOVED[module]}.{name}" if module in MOVED else target
