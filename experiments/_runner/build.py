"""From YAML to a `Run`: composed and instantiated once, with one clear message for what is wrong."""

import inspect
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from traceback import extract_tb
from typing import Any

import hydra.utils
import omegaconf
import pyro
import torch
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from torch import nn

from pyrobbb._support import text
from pyrobbb._support.checks import meant, not_a_number
from pyrobbb._support.settings import flat
from pyrobbb._support.text import one_line
from pyrobbb.experiment import Run
from pyrobbb.training.callbacks import Callback

NOT_OF_THE_RUN = ("experiment", "name", "published", "folder", "figures", "report", "callbacks")
LOGGERS = ("mlflow", "tensorboard", "wandb")  # callbacks that only watch
# where and how fast a run is computed, what is said of it, and a bandit's arms, each with its own files
FREE_TO_CHANGE = (
    "folder", "name", "published", "figures", "report", "device", "checkpoint_seconds", "record_every",
    "together", "threads", "arms", *(f"callbacks.{name}" for name in LOGGERS),
)  # fmt: skip
PACKAGES = ("pyrobbb", "experiments", "pyro", "torch")  # that a part may be named from
LONGEST = 200  # bytes of a folder's name; most file systems take 255
CHECKED = ("MNIST", "FashionMNIST", "KMNIST", "UCI")  # data sets that are the same wherever they lie
DECLARATIONS = Path(__file__).parent.parent
NOT_OWN = [Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib", "platlib")]
NOT_OWN += [Path(library.__path__[0]) for library in (hydra, omegaconf, pyro, torch)]  # wherever they lie
NOT_OWN += [DECLARATIONS.parent / name for name in PACKAGES]
KNOWN = {field.name for field in fields(Run)}
REQUIRED = {f.name for f in fields(Run) if f.default is MISSING and f.default_factory is MISSING}


class ConfigError(ValueError):
    """A configuration that does not describe a run. Its message names the key; a command prints it alone."""


def declarations(group: str = "") -> list[Path]:
    """The files of a group of components, or those in no group; none if there is no such group."""
    return sorted((DECLARATIONS / group).glob("*.yaml"))


GROUPS = [group for group in sorted({*KNOWN, *NOT_OF_THE_RUN}) if declarations(group)]  # of components


def causes(error: BaseException) -> list[BaseException]:
    """An exception, and what it was raised from, to the first of them."""
    return [error, *(causes(error.__cause__) if error.__cause__ is not None else ())]


def with_place(error: BaseException) -> str:
    """The message, and which line of the user's own files it comes from, if of any."""
    every = (line for cause in causes(error) for line in extract_tb(cause.__traceback__))
    lines = [line for line in every if line.filename.endswith(".py")]
    own = [line for line in lines if not any(Path(line.filename).is_relative_to(far) for far in NOT_OWN)]
    said = innermost(error) if isinstance(error, HydraException | OmegaConfBaseException) else f"{error}"
    return said + (f" ({own[-1].filename}, line {own[-1].lineno})" if own else "")


def innermost(error: BaseException) -> str:
    """What is wrong with a configuration, on one line: our own words, or those of the first cause, by key."""
    own: BaseException | None = error
    while own is not None and not isinstance(own, ConfigError):
        own = own.__cause__ or own.__context__  # OmegaConf names no cause of what an interpolation raised
    if own is not None:
        return one_line(own)
    cause = causes(error)[-1]
    if isinstance(cause, MissingConfigException) and cause.missing_cfg_file:
        group, _, name = cause.missing_cfg_file.rpartition("/")
        options = cause.options or [path.stem for path in declarations(group)]
        if group and options:
            there = f"{group}: there is no {name!r}; there are {', '.join(options)}"
            return there + meant(name, options)
        return _no_group(group) if group else f"defaults: there is no file {name}.yaml, beside yours or here"
    file, composed = "", cause.__context__  # of OmegaConf's error Hydra's message has the key at its end
    if isinstance(cause, ConfigCompositionException) and isinstance(composed, OmegaConfBaseException):
        file, cause = str(cause).partition(":")[0], composed  # In 'mine'
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        part, _, key = str(cause.full_key).rpartition(".")
        keys = [str(known) for known in cause.parent_node if not str(known).startswith(("_", "hydra"))]
        if not part:
            every = flat(OmegaConf.to_container(cause.parent_node))
            owned = [repr(full) for full in every if full.endswith(f".{key}")]
            return _no_key(key, keys, owned)
        said = meant(key, keys)
        if not said:
            said = f"; {part} has {', '.join(keys)}" * bool(keys) + f"; +{cause.full_key}=... adds it"
        return f"{cause.full_key}: there is no such key{said}"
    override = re.search(r"Could not override '([\w/]+)'", str(cause))
    if override:
        return _no_group(override[1])
    several = re.match("Ambiguous value for argument '(.*?=(.*))'", str(cause))
    if several:
        said, values = several.groups()
        return f"{said} are several values: -m runs a sweep over them; a list is written [{values}]"
    full = getattr(cause, "full_key", "") or file
    if isinstance(cause, MissingMandatoryValue):
        return f"{full} has no value; write {full}=..."
    if isinstance(cause, OmegaConfBaseException) and full and cause.msg:
        return f"{full}: {cause.msg.splitlines()[0]}"
    return one_line(cause)


def _no_key(key: str, there: Iterable[str], owned: Sequence[str] = ()) -> str:
    """That a configuration has no `key`, and what it has: of `owned` parts, or at its top."""
    near = f"; did you mean {' or '.join(owned)}?" if owned else meant(key, there)
    return f"{key}: there is no such key{near or '; there are ' + ', '.join(sorted(there))}"


def _no_group(name: str) -> str:
    near = meant(name, GROUPS) or f"; there are {', '.join(GROUPS)}"
    return f"{name}: there is no such group of components{near}"


def key_of(override: str) -> str:
    """`optim.lr` of `optim.lr=0.1`, with or without Hydra's `+` or `~`."""
    return override.lstrip("+~").partition("=")[0]


def free_to_change(key: str, data: str) -> bool:
    """Whether a flat key, or the part that it belongs to, changes no result; `data` names the data set."""
    if key == "data.root":
        return data.removeprefix("pyrobbb.data.") in CHECKED
    return any(key == free or key.startswith(f"{free}.") for free in FREE_TO_CHANGE)


def changes(overrides: Iterable[str], data: str = "pyrobbb.data.MNIST") -> str:
    """What `key=value` words change, as the name of a folder; nothing where they change no result.

    Of a key that is given twice the last value counts, as for Hydra. A name that is too long ends in a hash.
    """
    kept: dict[str, str] = {}
    for word in overrides:
        key, _, value = word.lstrip("+~").partition("=")
        only_watches = key == "callbacks" and set(value.strip("[]").replace(" ", "").split(",")) <= {*LOGGERS}
        of_the_run = key not in NOT_OF_THE_RUN or (key == "callbacks" and not only_watches)
        if of_the_run and not free_to_change(key, data):
            kept[key] = word.lstrip("+")
    name = ",".join(sorted(kept.values())).replace("/", "_").replace(" ", "")
    if len(name.encode()) <= LONGEST:
        return name
    digits = sha256(name.encode()).hexdigest()[:12]
    return f"{name.encode()[: LONGEST - 13].decode(errors='ignore')},{digits}"


def build(config: DictConfig) -> Run:
    """Instantiate every component and check that they fit together, before any data is loaded."""
    parts: dict[str, Any] = {}
    for key in config:
        if key in NOT_OF_THE_RUN or OmegaConf.is_missing(config, key):
            continue
        try:
            parts[str(key)] = component(str(key), config[key])
        except OmegaConfBaseException as error:
            said = innermost(error)
            raise ConfigError(said if said.startswith(str(key)) else f"{key!s}: {said}") from error
    strange, missing = sorted(parts.keys() - KNOWN), sorted(REQUIRED - parts.keys())
    if strange:
        raise ConfigError(_no_key(strange[0], {*KNOWN, *NOT_OF_THE_RUN}))
    if missing:
        raise ConfigError(
            f"{missing[0]}: the configuration lacks this key: either ~{missing[0]} took it out, or `run` is "
            f"not among its defaults"
        )
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
    if key == "model" and _is_network(part["_target_"]):
        part = {"_partial_": True, **part}  # each chain makes its own
    try:
        made = hydra.utils.instantiate(OmegaConf.create({key: part})[key], _convert_="all")
    except InstantiationException as error:
        raise ConfigError(_explain(key, error, part)) from error
    _check_partial(key, made)
    return made


def _is_network(target: Any) -> bool:
    """Whether a path names the class of a network."""
    try:
        kind = resolve_name(str(target))
    except Exception:  # instantiating it says what is wrong
        return False
    return isinstance(kind, type) and issubclass(kind, nn.Module)


def _explain(key: str, error: Exception, part: Mapping[str, Any]) -> str:
    full = next((line[10:].strip() for line in str(error).splitlines() if line.startswith("full_key:")), "")
    every = causes(error)  # what the part itself raised says more than what it led to
    cause = next((one for one in every if str(one) and not isinstance(one, HydraException)), every[-1])
    reason, taken = text.reason(cause), keywords(part["_target_"])
    target = re.match("Error locating target '(.*?)'", str(error))
    if isinstance(cause, TypeError) and "unexpected keyword" in reason and taken:
        reason = reason.partition(". Did you mean")[0]  # of Python's own, from 3.13 on
        reason += _takes(reason, sorted(taken))
    elif isinstance(cause, TypeError) and "required positional argument" in reason:
        reason += "; is it a function to be called later? Then write _partial_: true beside its _target_"
    elif isinstance(cause, TypeError) and (wrong := not_a_number(resolve_name(part["_target_"]), part)):
        return f"{key}.{wrong}"
    elif target:
        reason = _not_there(target[1]) or reason
    return f"{full or key}: {reason}"


def _takes(reason: str, options: Sequence[str]) -> str:
    """What may be given in place of the argument that `reason` quotes."""
    quoted = re.search("'(.+?)'", reason)
    return f"; it takes {', '.join(options)}{meant(quoted[1], options) if quoted else ''}"


def _not_there(target: str) -> str:
    """Which name of a dotted path is not there, with the one that was perhaps meant; nothing if all are."""
    if "/" in target or target[:1] in ("", "."):
        return (
            f"{target!r} is not a dotted path: a part of your own is named as in my_parts.MyPrior, which is "
            f"in the file my_parts.py in the working folder"
        )
    found: Any = None
    names = target.split(".")
    for i, name in enumerate(names):
        before, path = ".".join(names[:i]), ".".join(names[: i + 1])
        if hasattr(found, name):
            found = getattr(found, name)
            continue
        try:
            found = import_module(path)
        except ModuleNotFoundError as error:
            if not path.startswith(str(error.name)):
                return f"{path} imports {error.name!r}, which is not there"
            if not before:
                own = f"; a part of your own is a file {name}.py in the working folder"
                return f"there is no module {name!r}{meant(name, PACKAGES) or own}"
            there = [*dir(found), *(module.name for module in iter_modules(getattr(found, "__path__", [])))]
            if path == target:
                there = [each for each in there if callable(getattr(found, each, None))]
            return f"{before} has no {name!r}{meant(name, there)}"
        except Exception as error:  # of the user's own module
            return f"{path} cannot be imported: {error!r}"
    return ""


def keywords(target: Any) -> set[str] | None:
    """What a class or function takes by name; None if that is anything, or it does not exist."""
    try:
        parameters = inspect.signature(resolve_name(target)).parameters.values()
    except Exception:  # instantiating it says what is wrong
        return None
    return None if any(p.kind == p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}


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
            f"{key}: {getattr(make, '__name__', make)} {error}{_takes(str(error), options)}"
        ) from error
    for name, value in given.items():
        takes = signature.parameters.get(name)
        default = None if takes is None or takes.default is takes.empty else takes.default
        if isinstance(value, str) and callable(default):
            raise ConfigError(
                f"{key}.{name} must be a function, got the text {value!r}; name one by its path: "
                f"{{_target_: {value}, _partial_: true}}"
            )
