"""One folder per run: its configuration, and whether what lies there may be resumed."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from experiments._runner.build import ConfigError, free_to_change
from pyrobbb._support import files
from pyrobbb._support.files import locked, make_folder, write_text
from pyrobbb._support.settings import changes, flat
from pyrobbb._support.text import one_line
from pyrobbb.experiment import Run

DEFAULTS = {f.name: f.default for f in fields(Run) if f.default is not MISSING}  # of keys newer than a folder
DEFAULTS |= {"inference._target_": "pyrobbb.inference.SVI", "inference.prior_scale": 1.0}
DEFAULTS |= {"model.kernel": 3, "model.padded": True}  # of convnet
DEFAULTS |= {"likelihood.spread": 0.0}  # of normal_mixture
MOVED = {
    "experiments.controls": "experiments.reproductions.controls",
    "guides.initial": "pyrobbb.initializers",
    "guides.mean_field": "pyrobbb.mean_field",
    "guides.non_centred": "pyrobbb.non_centred",
    "models.convnet": "pyrobbb.models.convnet",
    "models.gluon_as_printed": "experiments.reproductions.gluon_as_printed",
    "models.linear": "pyrobbb.models.linear",
    "models.mlp": "pyrobbb.models.mlp",
    "models.plain_mlp": "pyrobbb.models.plain_mlp",
    "pyrobbb.kl": "pyrobbb.kl_weights",
}  # since version 0.1.0: modules that a config.yaml may name
RENAMED = {"pyrobbb.initializers.network": "pyrobbb.initializers.from_network"}  # what they hold, likewise
CLAIMING = ".config.lock"  # held while the configuration of a new folder is written
NUMBERS = (  # of metrics.json, which commands show
    "test", "validation", "epochs", "parameters", "train_seconds", "free_energy", "trivial_free_energy",
    "train_loss",
)  # fmt: skip
RESULTS = ("metrics.json", "result.json", "history.csv", "posterior.nc", "*.pt")


def claim(config: DictConfig) -> tuple[Path, bool]:
    """Make the run's folder and write `config.yaml`, or check that the one there is the same.

    Returns:
        The folder, and whether it was this run that wrote `config.yaml`.

    Raises:
        ConfigError: If the folder holds a run with another configuration, or cannot be written.
    """
    if not config.folder:
        raise ConfigError("folder: must name a folder, got nothing")
    name = str(config.get("name", "run"))
    if not name or ".." in Path(name).parts:
        raise ConfigError(f"name: must name a folder in runs/, got {name!r}; folder=... is for another place")
    folder = Path(config.folder)
    path = folder / "config.yaml"
    try:
        changed = differences(config)
        if changed:
            raise ConfigError(
                f"folder: {folder} holds a run with another configuration ({'; '.join(changed[:4])}); "
                f"give this one another folder=..., or remove that one"
            )
        if path.exists():
            return folder, False
        left = sorted(found.name for pattern in RESULTS for found in folder.glob(pattern))
        if left:
            raise ConfigError(
                f"folder: {folder} holds {left[0]} without the config.yaml that says which run it is from; "
                f"give this one another folder=..., or remove that one"
            )
        make_folder(folder)
        with locked(folder, CLAIMING, wait=30):
            try:
                first = not path.exists()
                if first:
                    write_text(path, yaml.safe_dump(_content(config), sort_keys=False))
            finally:  # while it is this run's: a run that waited in vain leaves the other's alone
                (folder / CLAIMING).unlink(missing_ok=True)
    except OSError as error:
        named = one_line(folder, 200)  # of one that is too long the whole would hide what is wrong
        reason = f"{named} cannot be written ({error.strerror})" if error.strerror else error
        raise ConfigError(f"folder: {reason}") from error
    return (folder, True) if first else claim(config)


@contextmanager
def claimed(config: DictConfig) -> Iterator[Path]:
    """The run's folder, claimed; restored if the body fails before there is a result.

    If another run is at work there, which may have begun at the same moment, the folder is that one's.
    """
    folder = Path(config.folder) if config.folder else None
    # of a name that is too long `Path.exists` raises; `claim` says what is wrong with it
    made = [] if folder is None else [f for f in (folder, *folder.parents) if not os.path.exists(f)]
    folder, new = claim(config)
    try:
        yield folder
    except BlockingIOError:
        raise
    except BaseException:
        if new and not any(found for pattern in RESULTS for found in folder.glob(pattern)):
            for pattern in ("config.yaml", "provenance.json", ".lock", ".chain-*.lock"):
                for found in folder.glob(pattern):
                    found.unlink(missing_ok=True)
            with suppress(OSError):  # something else lies in them
                for empty in made:
                    empty.rmdir()
        raise


def read_config(path: Path) -> dict[str, Any]:
    """The content of a `config.yaml`, as plain values.

    Raises:
        ConfigError: If it is not there, is not YAML, holds Python objects, or is not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        reason = f"{path.parent} is not a run folder: it has no {path.name}"
        runs = sorted(path.parent.glob(f"*/{path.name}"))
        reason += f"; {runs[0].parent} is one" if runs else ""
        raise ConfigError(f"folder: {reason}") from error
    except NotADirectoryError as error:
        raise ConfigError(f"folder: {path.parent} is a file, not a run folder") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a configuration: {one_line(error, 200)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a configuration")
    return _up_to_date(content)


def _up_to_date(part: Any) -> Any:
    """`part` of a configuration with every `_target_` under its current name."""
    if isinstance(part, dict):
        return {k: renamed(v) if k == "_target_" else _up_to_date(v) for k, v in part.items()}
    return [_up_to_date(value) for value in part] if isinstance(part, list) else part


def renamed(target: Any) -> Any:
    """The current name of a part of ours; any other, such as a user's `models.mlp.mine`, as it is."""
    module, _, name = str(target).rpartition(".")
    now = f"{MOVED[module]}.{name}" if module in MOVED else target
    now = RENAMED.get(now, now)
    module, _, name = str(now).rpartition(".")
    return now if now != target and hasattr(import_module(module), name) else target


def again(what: Path | str = "it") -> str:
    """What to do about a damaged file."""
    return f"remove {what}, and the command that made it makes it again"


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """What a run left in a `.json` file; nothing if it is not there."""
    try:
        return files.read_json(path)
    except ValueError as error:
        raise ConfigError(f"{error}; {remedy or again()}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """ConfigError where the body cannot read `path`, a file that a finished run keeps beside its result."""
    try:
        yield
    except Exception as error:  # torch and NumPy may raise almost anything on damaged bytes
        wrong = f"{path} is missing or damaged ({one_line(error, 120)})"
        raise ConfigError(f"{wrong}; {again(path.parent)}") from error


def read_metrics(folder: Path) -> dict[str, Any]:
    """The numbers of a finished run."""
    path = folder / "metrics.json"
    if not path.exists():
        raise ConfigError(f"{path} is not there: the run is not finished")
    found = read_json(path)
    if lacking := [key for key in ("epochs", "parameters", "train_seconds", "device") if key not in found]:
        raise ConfigError(f"{path} is damaged (no {lacking[0]}); {again()}")
    try:
        check_numbers(found)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); {again()}") from error
    return found


def check_numbers(metrics: Mapping[str, Any], finite: Collection[str] = ()) -> None:
    """ValueError unless what the commands show of a run are numbers, those of test and validation by name.

    Those that `finite` names, such as `validation.nll`, must be finite where they are there.
    """
    for part in ("test", "validation"):
        if not isinstance(metrics.get(part, {}), dict):
            raise ValueError(f"{part} is {metrics[part]!r}, not numbers by name")
    for key, value in flat({key: metrics[key] for key in NUMBERS if key in metrics}).items():
        absent = value is None and key == "trivial_free_energy"  # which is not computed for every model
        if not absent and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{key} is {value!r}, not a number")
        if not absent and key in finite and not isfinite(value):
            raise ValueError(f"{key} is {value!r}, not a finite number")


def differences(config: DictConfig) -> list[str]:
    """The keys in which a run that lies in the folder already differs, as `key: there -> here`."""
    path = Path(config.folder) / "config.yaml"
    if not path.exists():
        return []
    before, now = DEFAULTS | flat(read_config(path)), DEFAULTS | flat(_content(config))
    data = str(now.get("data._target_"))
    found = [found for found in changes(before, now) if not free_to_change(found[0], data)]
    # a text beside the number that it reads as in quotes: '3' -> 3
    return [f"{key}: {a!r} -> {b!r}" if str(a) == str(b) else f"{key}: {a} -> {b}" for key, a, b in found]


def _content(config: DictConfig) -> dict[str, Any]:
    """All that is given, with `Run`'s defaults for the rest."""
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items() if value != "???"}
