"""The runs beneath a folder: each one's configuration and results. Data are read, no code is run."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments._runner.build import free_to_change
from experiments._runner.folder import DEFAULTS, check_numbers, read_config, read_json
from experiments._runner.own_parts import TARGET
from experiments._runner.sweep import ERROR, objective
from pyrobbb._support.settings import flat
from pyrobbb._support.text import one_line
from pyrobbb.training import history

OF_A_RUN = {"data", "model", "prior", "likelihood", "guide", "optim", "seed"}
SHOWN = (  # of its metrics, in the table
    "validation.error", "validation.rmse", "validation.nll", "free_energy", "trivial_free_energy",
    "train_loss", "train_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """One run, `finished`, `failed` or `unfinished`: `error` says why it has no metrics."""

    folder: Path
    config: dict[str, Any]  # flat, {"prior.sigma": 1.0}
    state: str
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def measure(self) -> str:
        """What it is judged by, with the unit."""
        return objective(self.metrics)[0]

    @property
    def value(self) -> float:
        """That number."""
        return objective(self.metrics)[1]

    @property
    def setting(self) -> str:
        """The configuration but for the seed: runs with the same setting differ only by it."""
        data = str(self.config.get("data._target_"))
        kept = {k: v for k, v in self.config.items() if k != "seed" and not free_to_change(k, data)}
        return json.dumps(kept, sort_keys=True, default=str)

    @property
    def identity(self) -> tuple[str, str]:
        """The setting and the seed."""
        return self.setting, str(self.config.get("seed", self.folder))

    @property
    def numbers(self) -> dict[str, str]:
        """What it is judged by and its scores, to six digits."""
        scores = {part: self.metrics.get(part, {}) for part in ("validation", "test")}
        return {key: f"{number:.6g}" for key, number in flat({"value": self.value, **scores}).items()}


def find(root: Path) -> list[RunFolder]:
    """Every run beneath `root`, finished or not."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder")
    closed: list[OSError] = []
    found = [run for run in map(_read, sorted(_folders(root, closed))) if run is not None]
    found += [
        RunFolder(Path(error.filename), {}, "failed", error=f"cannot be read ({error.strerror})")
        for error in closed
    ]
    if not found:
        raise ValueError(
            f"{root} holds no runs; a run's folder is one with the config.yaml and metrics.json that "
            f"`python -m experiments.run` leaves"
        )
    return found


def _folders(root: Path, closed: list[OSError]) -> list[Path]:
    """The folders beneath `root` that could be runs, and what a link there makes one of, each once.

    Why others cannot be looked into, which could be runs as well, is appended to `closed`.
    """
    found = []
    for place, inner, _ in os.walk(root, onerror=closed.append):
        linked = [path for path in (Path(place, name) for name in inner) if path.is_symlink()]
        for folder in (Path(place), *linked):
            if any((folder / name).exists() for name in ("config.yaml", "metrics.json", ERROR)):
                found.append(folder)
    found.sort(key=Path.is_symlink, reverse=True)  # a folder itself stands for links to it
    return [*{folder.resolve(): folder for folder in found}.values()]


def distinct(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """The runs without those that another folder also holds, such as `default` and a sweep's `seed=1`.

    A finished one stands for the others.
    """
    found: dict[tuple[str, str], RunFolder] = {}
    for run in sorted(runs, key=lambda run: run.state != "finished"):
        found.setdefault(run.identity, run)
    return list(found.values())


def _read(folder: Path) -> RunFolder | None:
    """The run in `folder`; None if what lies there is not a run (a study's point, a bandit)."""
    try:
        left = read_json(folder / ERROR)
        path = folder / "config.yaml"
        asked = read_config(path) if path.exists() else left.get("config", {})
        if not isinstance(asked, dict) or (folder / "result.json").exists():
            return None
        metrics = read_json(folder / "metrics.json")
        lacking = sorted(OF_A_RUN - asked.keys())
        if lacking and metrics:
            name = next((file for file in (path.name, ERROR) if (folder / file).exists()), None)
            raise ValueError(
                f"the configuration in {name} is not that of a run: it lacks {lacking[0]}"
                if name
                else "metrics.json is there without the config.yaml that says what was run"
            )
        if lacking and "error" not in left:
            return None
        if metrics:
            check_numbers(metrics, finite=SHOWN)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return RunFolder(folder, {}, "failed", error=f"cannot be read ({one_line(error)})")
    # of a run that is older than a key, what it stood for
    config = ({} if lacking else DEFAULTS) | flat(asked)
    if metrics:
        return RunFolder(folder, config, "finished", metrics)
    if "error" in left:
        return RunFolder(folder, config, "failed", error=str(left["error"]))
    said = f"after epoch {_epoch(folder)} of {config.get('epochs')}"
    return RunFolder(folder, config, "unfinished", error=said)


def _epoch(folder: Path) -> int:
    try:
        return max((row.epoch for row in history.read(folder / "history.csv")), default=0)
    except (OSError, ValueError):
        return 0


def varied(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The keys that tell configurations apart: those in which two with the same enclosing components differ.

    So for `prior=normal` and `prior=laplace` it is `prior._target_`, not each one's own options.
    """
    every = {key for config in configs for key in config} - {"seed"}
    kinds = {str(config.get("data._target_")) for config in configs}
    keys = sorted(key for key in every if not all(free_to_change(key, kind) for kind in kinds))
    found = []
    for key in keys:
        enclosing = (k for k in keys if k.endswith(TARGET) and k != key)
        components = [k for k in enclosing if key.startswith(k.removesuffix(TARGET))]
        first: dict[tuple[Any, ...], Any] = {}
        for config in configs:
            kind = tuple(config.get(component) for component in components)
            if first.setdefault(kind, config.get(key)) != config.get(key):
                found.append(key)
                break
    return found


def shown(keys: Sequence[str], configs: Sequence[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Each key, and how the names of its components are shown, if it has any.

    That is without the module, unless another module has a component of that name.
    """
    found = {}
    for key in keys:
        every = {str(config[key]) for config in configs if key in config and key.endswith(TARGET)}
        names = {whole: whole.rpartition(".")[2] for whole in every}
        often = Counter(names.values())
        found[key] = {whole: name if often[name] == 1 else whole for whole, name in names.items()}
    return found


def label(config: dict[str, Any], keys: Mapping[str, Mapping[str, str]]) -> str:
    """`prior=Normal optim.lr=0.01`, of the keys that the configuration has, with their names by `shown`."""
    words = []
    for key, names in keys.items():
        if key in config:
            value = config[key]
            short = f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")
            words.append(f"{key.removesuffix(f'.{TARGET}')}={names.get(str(value), short)}")
    return " ".join(words) or "default"
