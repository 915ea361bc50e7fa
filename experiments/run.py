"""Fit a Bayesian neural network: `python -m experiments.run experiment=mnist prior=normal seed=3`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig

from experiments import analyse, schema
from experiments.build import ConfigError, build, register_resolvers
from experiments.folder import claim
from experiments.sweep import ERROR, attempt, in_sweep, objective
from pyrobbb.device import best_device
from pyrobbb.inference import NonFiniteLossError
from pyrobbb.parallel import ONE, LostProcessError, Ranks, joined
from pyrobbb.progress import Printed, Silent

register_resolvers()
schema.register()


def execute(config: DictConfig, ranks: Ranks = ONE, *, quiet: bool = False) -> dict[str, Any]:
    """Fit what `config` says, or go on with it, and return the metrics (none but in the first process)."""
    run = build(config)
    folder = claim(config) if ranks.first else Path(config.folder)
    finished = folder / "metrics.json"
    if not ranks.from_first(finished.exists()):
        classes = run.likelihood.task == "classification"
        error = ", validation error {:.2f} %" if classes else ", validation rmse {:.4g}"
        run.execute(folder, Silent() if quiet else Printed(error=error), ranks)
    elif ranks.first and not quiet:
        print(f"{folder} is finished; remove it to run it again")
    if not ranks.first:
        return {}
    (folder / ERROR).unlink(missing_ok=True)
    if not analyse.has_figures(folder):
        analyse.figures(folder, trust=True)  # of this very configuration
    if not quiet:
        print(analyse.report(folder))
    metrics: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
    return metrics


@hydra.main(version_base="1.3", config_path=".", config_name="run")
def hydra_main(config: DictConfig) -> float:
    """One job; returns the validation error (or root mean squared error), for sweepers that search."""
    register_resolvers()  # a launcher's worker process has not run this file
    ranks = ONE
    try:
        if in_sweep():
            return attempt(config, lambda: execute(config, quiet=True))
        with joined(best_device(config.device)) as ranks:
            metrics = execute(config, ranks)
    except (ConfigError, NonFiniteLossError, LostProcessError, ValueError, OSError) as error:
        if ranks.speaks():
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        if ranks.speaks():
            print("\ninterrupted; the same command goes on from the checkpoint", file=sys.stderr)
        sys.exit(130)
    return objective(metrics)[1] if metrics else math.nan


def misread(argument: str) -> str:
    """What is wrong with a `key=value` that Hydra would answer with a traceback; nothing for any other."""
    key, equals, _ = argument.partition("=")
    if not equals or argument.startswith("-"):
        return ""
    name = key.strip("+~ ")
    if not name:
        return f"{argument!r} has no key; write key=value"
    names = sorted(path.stem for path in (Path(__file__).parent / name).glob("*.yaml"))
    if not names:  # no group of components
        return ""
    try:
        value = OverridesParser.create().parse_override(argument).value()
    except HydraException:  # which Hydra itself puts into words
        return ""
    if value is None or isinstance(value, str | list | Sweep):
        return ""
    return f"{name}: {value} is no name; there are {', '.join(names)}"


def main() -> None:
    """The command line; a first argument `file.yaml` is a configuration of the user's own."""
    arguments = sys.argv[1:]
    for i, argument in enumerate(arguments):
        if argument.endswith((".yaml", ".yml")) and "=" not in argument and not argument.startswith("-"):
            path = Path(argument).resolve()
            if not path.exists():
                print(f"error: {argument} does not exist", file=sys.stderr)
                sys.exit(2)
            arguments[i : i + 1] = ["--config-dir", str(path.parent), "--config-name", path.stem]
            break
    for argument in arguments:
        if wrong := misread(argument):
            print(f"error: {wrong}", file=sys.stderr)
            sys.exit(2)
    sys.argv[1:] = arguments
    try:
        hydra_main()
    except KeyboardInterrupt:  # of a sweep, between two jobs or while they run elsewhere
        print("\ninterrupted; the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
