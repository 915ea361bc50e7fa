"""Whose keys a component's are: a part that replaces another takes none of what came with that one.

YAML is merged key by key, so a user's `data: {_target_: mine.Data}` stands on the options of the default, and
`prior=laplace` on what an experiment says of its own prior.
"""

from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import Any

from hydra import compose as hydra_compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict
from yaml import YAMLError

from experiments._runner.build import (
    DECLARATIONS,
    GROUPS,
    ConfigError,
    key_of,
    keywords,
)
from experiments._runner.folder import MOVED, renamed
from pyrobbb._support.text import one_line
from pyrobbb.inference import SVI
from pyrobbb.inference.method import Inference

Given = Mapping[str, set[str]]
TARGET, PARTIAL = "_target_", "_partial_"
SCALES = {"optim", "schedule"}  # groups in which a key of the same name means another number


def given(overrides: Iterable[str], content: Mapping[Any, Any] | None = None) -> dict[str, set[str]]:
    """What a user gives, by `key=value` words and in a file of their own, with the keys of a component."""
    found = {
        str(group): set(map(str, part)) if isinstance(part, dict) else set()
        for group, part in (content or {}).items()
    }
    for word in overrides:
        group, _, key = key_of(word).partition(".")
        own = found.setdefault(group, set())
        if key:
            own.add(key.partition(".")[0])
        elif "{" in word:
            value = OverridesParser.create().parse_override(word).value()
            own.update(map(str, value) if isinstance(value, dict) else ())
    return found


def given_to_hydra() -> tuple[list[str], dict[str, set[str]]]:
    """The words of the command that is running, after those that its file stands for, and the same of both.

    `override optim: adam` among a file's defaults is `optim=adam`.
    """
    known = HydraConfig.get()
    words = list(map(str, known.overrides.task))
    content: dict[Any, Any] = {}
    for source in known.runtime.config_sources:
        if source.provider == "command-line":
            content |= own_content(Path(source.path), str(known.job.config_name))
    for word in words:
        group, _, name = word.partition("=")
        part = content.get(group)
        if isinstance(part, dict) and TARGET in part:
            raise ConfigError(
                f"{word}: your file names its {group} by {TARGET}, which {name} on the command line would "
                f"not replace; leave one of them out"
            )
    of_file = []
    for entry in content.pop("defaults", []):
        for key, name in entry.items() if isinstance(entry, dict) else ():
            kind, _, group = str(key).partition(" ")
            if kind == "override":
                of_file.append(f"{group.strip(' /')}={'null' if name is None else name}")
    words = [*of_file, *words]
    return words, given(words, content)


def drop_inherited(config: DictConfig, given: Given) -> None:
    """Take from each component, in place, what neither the user gave nor the component brought.

    One that the user names by its path keeps the user's keys alone. Of another, what its constructor does not
    take goes, unless the user gave it: then instantiating it says that it is wrong.
    """
    for group in config:
        part = None if OmegaConf.is_missing(config, group) else config[group]
        if not isinstance(part, DictConfig) or TARGET not in part:
            continue
        own = given.get(str(group), set())
        taken = own if TARGET in own else keywords(part[TARGET])
        if taken is None:
            continue
        with open_dict(part):
            for key in [key for key in part if key not in {TARGET, PARTIAL, *own, *taken}]:
                del part[key]


def rename_moved(config: DictConfig, within: str = "") -> None:
    """Name each part that was moved, and each of which it is made, in place, as it is named now.

    Raises:
        ConfigError: A module of the user's own has the earlier name, so that either may be meant.
    """
    for key in config:
        part: Any = None if OmegaConf.is_missing(config, key) else config[key]
        if isinstance(part, DictConfig):
            rename_moved(part, f"{within}{key!s}.")
        elif key == TARGET and (now := renamed(part)) != part:
            if theirs := _file_of_a_user(part.rpartition(".")[0]):
                ours = DECLARATIONS.parent / f"{now.rpartition('.')[0].replace('.', '/')}.py"
                raise ConfigError(
                    f"{within[:-1]}: {part} may be that of {theirs} or that of {ours}: rename yours, or "
                    f"write {now}"
                )
            config[key] = now


def _file_of_a_user(module: str) -> str | None:
    """The file of a module that was moved, if one of that name is there now and not the checkout's."""
    package = PathFinder.find_spec(module.partition(".")[0]) if module in MOVED else None
    found = PathFinder.find_spec(module, package.submodule_search_locations or []) if package else None
    ours = DECLARATIONS.parent / f"{module.replace('.', '/')}.py"
    return None if found is None or found.origin is None or Path(found.origin) == ours else found.origin


def restore_swapped(config: DictConfig, name: str, words: Iterable[str], given: Given) -> None:
    """Give an optimiser or schedule swapped by name, in place, its own file's numbers instead of another's.

    A rate is for the optimiser that it was chosen for: `experiment=table1_sgd optim=adam` trains with Adam's.
    `name` is the declaration that was composed with `words`, of which the last of a group counts.
    """
    chosen = {key_of(word): word for word in words if not word.startswith("~")}
    if not chosen.keys() & SCALES:
        return
    before = hydra_compose(name, [word for key, word in chosen.items() if key == "experiment"])
    for group in chosen.keys() & SCALES:
        choice = chosen[group].partition("=")[2]
        file, part = DECLARATIONS / group / f"{choice}.yaml", config[group]
        if not file.is_file() or before[group].get(TARGET) == part.get(TARGET):
            continue
        with open_dict(part):
            for key, value in OmegaConf.load(file).items():
                if key not in given.get(group, set()):
                    part[key] = value


def is_point(config: Mapping[str, Any]) -> bool:
    """Whether the run is a point estimate, without a prior."""
    return str(config["prior"].get(TARGET)).endswith(".Deterministic")


def method_of(config: Mapping[str, Any]) -> type[Inference]:
    """The class of the method of inference."""
    return get_class(config["inference"][TARGET]) if config.get("inference") else SVI


def unused(config: Mapping[str, Any]) -> set[str]:
    """What has no part in the run: a sampler takes no steps, and many methods make a guide of their own."""
    method = method_of(config)
    found = {"guide"} if method.own_guide or is_point(config) else set()
    return found if method.steps else found | {"kl", "optim", "schedule", "epochs", "batch_size", "samples"}


def loaded(path: Path) -> dict[Any, Any]:
    """A configuration file of the user's as it stands; ConfigError if it is not YAML."""
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path.name} is not a configuration: {one_line(error, 300)}") from error
    return content if isinstance(content, dict) else {}


def own_content(folder: Path, name: str, within: tuple[Path, ...] = ()) -> dict[Any, Any]:
    """A configuration of the user's, with those of their own that it builds on.

    Args:
        folder: Where they lie.
        name: The configuration's, as a path from there; one that is not there, as ours, has no content.
        within: The files among whose defaults it is.

    Raises:
        ConfigError: A file is among its own defaults, has some that are not a list, or gives a component, an
            experiment or callbacks as a name or a list.
    """
    path = folder / f"{name.removesuffix('.yaml').lstrip('/')}.yaml"
    if not path.is_file():
        return {}
    if path in within:
        names = " -> ".join(each.stem for each in (*within[within.index(path) :], path))
        raise ConfigError(f"{path.name} is among its own defaults: {names}; leave it out there")
    content, found = loaded(path), dict[Any, Any]()
    defaults = content.pop("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(
            f"{path.name}: defaults must be a list, got {defaults}; leave it out if there are none"
        )
    for entry in defaults:
        if isinstance(entry, str) and entry != "_self_":  # relative to the file's own folder, as in Hydra
            found |= own_content(folder, str(PurePosixPath("/", name).parent / entry), (*within, path))
    found["defaults"] = [*found.get("defaults", []), *defaults]
    for group, part in content.items():
        if group in GROUPS and not isinstance(part, dict | None) and "${" not in str(part):
            raise ConfigError(
                f"{path.name}: {group} must be a mapping of values here, got {part!r}; one of ours is named "
                f"among the defaults, `- override {group}: NAME`"
            )
        inner = found.get(group)
        found[group] = {**inner, **part} if isinstance(part, dict) and isinstance(inner, dict) else part
    return found
