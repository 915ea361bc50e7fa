"""From YAML to a `Run`: composed and instantiated once, with one clear message for what is wrong."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import hydra.utils
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pyrobbb._support.checks import meant, one_line
from pyrobbb.experiment import Run
from pyrobbb.training.callbacks import Callback

NOT_OF_THE_RUN = ("experiment", "name", "published", "folder", "report", "callbacks")
# where and how fast a run is computed, what is said of it, and a bandit's arms, each with its own files
FREE_TO_CHANGE = (
    "folder", "published", "report", "callbacks", "device", "checkpoint_seconds", "record_every", "data.root",
    "together", "threads", "arms",
)  # fmt: skip
DECLARATIONS = Path(__file__).parent.parent
KNOWN = {field.name for field in fields(Run)}
REQUIRED = {f.name for f in fields(Run) if f.default is MISSING and f.default_factory is MISSING}


class ConfigError(ValueError):
    """A configuration that does not describe a run. Its message names the key; a command prints it alone."""


def first_cause(error: BaseException) -> BaseException:
    """The first exception of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def innermost(error: BaseException) -> str:
    """The first cause of an exception, on one line, with the name that was perhaps meant."""
    cause = first_cause(error)
    if isinstance(cause, MissingConfigException) and cause.missing_cfg_file:
        group, _, name = cause.missing_cfg_file.rpartition("/")
        options = cause.options or sorted(path.stem for path in (DECLARATIONS / group).glob("*.yaml"))
        if group and options:
            there = f"{group}: there is no {name!r}; there are {', '.join(options)}"
            return there + meant(name, options)
    words = one_line(cause)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        words += meant(str(cause.key), [str(key) for key in cause.parent_node])
    return words


def register_resolvers() -> None:
    """`${exp:-6}` is e^-6, `${part:0.75,20}` is 15.

    `${changes:}` is what the command line changed, for a folder's name; `${components:}` lists the names of
    every component, for the help.
    """
    OmegaConf.register_new_resolver("exp", lambda x: math.exp(float(x)), replace=True)
    OmegaConf.register_new_resolver("part", lambda a, x: max(1, int(float(a) * int(x))), replace=True)
    OmegaConf.register_new_resolver("changes", _changes, replace=True)
    OmegaConf.register_new_resolver("components", _components, replace=True)


def _changes() -> str:
    if not HydraConfig.initialized():
        return "default"
    return changes(str(o) for o in HydraConfig.get().overrides.task) or "default"


def _components() -> str:
    lines = []
    for group in sorted(KNOWN | {"experiment", "callbacks"}):
        files = sorted((DECLARATIONS / group).glob("*.yaml"))
        lines += [group] * bool(files) + [f"  {file.stem:<36}{_said(file)}".rstrip() for file in files]
    return "\n".join(lines)


def _said(file: Path) -> str:
    """What a declaration is, in a line: its first comment, or the first sentence of what it names."""
    text = file.read_text(encoding="utf-8")
    comments = [line[2:] for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
    said = (yaml.safe_load(text) or {}).get("_target_", "")
    if comments:
        said = re.split(r"\. (?=[A-Z])", " ".join(comments[:2]))[0]  # "Fig. 5" ends no sentence
    elif said.startswith(("pyrobbb.", "models.", "guides.")):
        doc = (resolve_name(said).__doc__ or "").strip().split("\n\n")[0]
        said = re.sub(r":math:`([^`]*)`|`", r"\1", doc)
    return textwrap.shorten(said, 100, placeholder=" ...")


def key_of(override: str) -> str:
    """`optim.lr` of `optim.lr=0.1`, with or without Hydra's `+` or `~`."""
    return override.lstrip("+~").partition("=")[0]


def free_to_change(key: str) -> bool:
    """Whether a flat key, or the part that it belongs to, changes no result."""
    return key in FREE_TO_CHANGE or key.partition(".")[0] in FREE_TO_CHANGE


def changes(overrides: Iterable[str]) -> str:
    """What `key=value` words change, as the name of a folder; nothing where they change no result."""
    kept = [
        o.lstrip("+") for o in overrides if key_of(o) not in NOT_OF_THE_RUN and not free_to_change(key_of(o))
    ]
    return ",".join(sorted(kept)).replace("/", "_").replace(" ", "")


def build(config: DictConfig) -> Run:
    """Instantiate every component and check that they fit together, before any data is loaded."""
    parts: dict[str, Any] = {}
    for key in config:
        if key in NOT_OF_THE_RUN or OmegaConf.is_missing(config, key):
            continue
        try:
            parts[str(key)] = component(str(key), config[key])
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key!s}: {innermost(error)}") from error
    strange, missing = sorted(parts.keys() - KNOWN), sorted(REQUIRED - parts.keys())
    if strange:
        there = f"{strange[0]}: a run has no such key; it has {', '.join(sorted(KNOWN))}"
        raise ConfigError(there + meant(strange[0], KNOWN))
    if missing:
        raise ConfigError(f"{missing[0]}: the configuration lacks this key; is `run` among its defaults?")
    try:
        return Run(**parts)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error


def loggers(config: DictConfig) -> list[Callback]:
    """The callbacks that a configuration names, which log each epoch."""
    parts = config.get("callbacks") or {}
    return [component(f"callbacks.{name}", part) for name, part in parts.items()]


def component(key: str, part: Any) -> Any:
    """What a part of a configuration names with `_target_`; without it, the plain values."""
    part = OmegaConf.to_container(part, resolve=True) if OmegaConf.is_config(part) else part
    if not isinstance(part, dict) or "_target_" not in part:
        return part
    part = _without_inherited(key, part)
    try:
        made = hydra.utils.instantiate(OmegaConf.create({key: part})[key], _convert_="all")
    except InstantiationException as error:
        raise ConfigError(_explain(key, error)) from error
    _check_partial(key, made)
    return made


def _without_inherited(group: str, part: Any) -> Any:
    """`part` without the options that came with the component which its `_target_` replaced.

    A user's `data: {_target_: mine.Data}` stands on the default's keys. One that `mine.Data` does not take,
    and that has the value of a declaration of ours, is not the user's.
    """
    try:
        taken = inspect.signature(hydra.utils.get_object(part["_target_"])).parameters.values()
    except Exception:  # instantiating it says what is wrong
        return part
    if any(p.kind == p.VAR_KEYWORD for p in taken):
        return part
    known = {"_target_", "_partial_", *(p.name for p in taken)}
    ours = [OmegaConf.load(path) for path in (DECLARATIONS / group).glob("*.yaml")]
    others = [o for o in ours if isinstance(o, DictConfig) and o.get("_target_") != part["_target_"]]
    return {
        key: value
        for key, value in part.items()
        if key in known or not any(key in o and o[key] == value for o in others)
    }


def _explain(key: str, error: Exception) -> str:
    full = next((line[10:].strip() for line in str(error).splitlines() if line.startswith("full_key:")), "")
    cause = first_cause(error)
    if isinstance(error.__cause__, ImportError) and "pip install" in str(error.__cause__):
        cause = error.__cause__  # which says what to install; its own cause only what is not there
    reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    where = f"{key}.{full}" if full and full != key else key
    return f"{where}: {reason}"


def _check_partial(key: str, part: Any) -> None:
    """A misspelt option of a factory shows only when it is called; look now, and say what it takes."""
    make, given = getattr(part, "func", None), getattr(part, "keywords", {})
    if make is None:
        return
    signature = inspect.signature(make)
    try:
        signature.bind_partial(**given)
    except TypeError as error:
        options = [p.name for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
        raise ConfigError(
            f"{key}: {getattr(make, '__name__', make)} {error}; it takes {', '.join(options)}"
        ) from error
