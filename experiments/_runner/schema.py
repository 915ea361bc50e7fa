"""What Hydra knows of a run: its keys, the types of its scalars, and what `${...}` may say in a declaration.

The components stay open, their constructors check them.
"""

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_type_hints

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf

from experiments._runner.build import DECLARATIONS, GROUPS, changes, declarations
from pyrobbb.experiment import Run

SCALARS = (bool, int, float, str)
OF_THE_COMMAND: Sequence[tuple[str, Any, Any]] = (
    ("experiment", Any, None),
    ("name", str, MISSING),
    ("published", Any, ""),
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


def _initial(*, _root_: DictConfig) -> str:
    """Where weights start, under `model=trained` or without."""
    makes = OmegaConf.select(_root_, "model._target_")
    return "from_network" if makes == "experiments._runner.trained_network.Trained" else "kaiming"


def _changes(*, _root_: DictConfig) -> str:
    """What the command line changed, for a folder's name."""
    if not HydraConfig.initialized():
        return "default"
    words = map(str, HydraConfig.get().overrides.task)
    return changes(words, str(OmegaConf.select(_root_, "data._target_"))) or "default"


def _components() -> str:
    """The names of every component, for the help."""
    lines = []
    for group in GROUPS:
        lines += [group, *(f"  {file.stem:<36}{_said(file)}".rstrip() for file in declarations(group))]
    return "\n".join(lines)


def _said(file: Path) -> str:
    """What a declaration is, in a line: its first comment, or the first sentence of what it names."""
    text = file.read_text(encoding="utf-8")
    comments = [line[2:] for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
    said = (yaml.safe_load(text) or {}).get("_target_", "")
    if comments:
        said = re.split(r"\. (?=[A-Z])", " ".join(comments[:2]))[0]  # "Fig. 5" ends no sentence
    elif said.startswith("pyrobbb."):
        doc = (resolve_name(said).__doc__ or "").strip().split("\n\n")[0]
        said = re.sub(r":math:`([^`]*)`|`", r"\1", doc)
        said = re.sub(r"\\[^a-zA-Z]", " ", re.sub(r"\\([a-zA-Z]+)", r"\1", said))  # TeX as words
    return textwrap.shorten(said, 100, placeholder=" ...")


SAYS: Mapping[str, Callable[..., Any]] = {
    "exp": lambda x: math.exp(float(x)),  # `${exp:-6}` is e^-6
    "part": lambda a, x: max(1, int(float(a) * int(x))),  # `${part:0.75,20}` is 15
    "initial": _initial,
    "changes": _changes,
    "components": _components,
}


def register() -> None:
    """Make the schemas known to Hydra, as `schema` and `bandit_schema`, and what `${...}` may say."""
    for name, says in SAYS.items():
        OmegaConf.register_new_resolver(name, says, replace=True)
    ConfigStore.instance().store(name="schema", node=run_schema())
    ConfigStore.instance().store(name="bandit_schema", node=bandit_schema())
