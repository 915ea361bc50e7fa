"""Fit a Bayesian neural network: `python -m experiments.run experiment=mnist prior=normal seed=3`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from experiments import analyse, schema
from experiments.build import ConfigError, build, register_resolvers
from experiments.folder import claim
from pyrobbb.inference import NonFiniteLossError, best_device
from pyrobbb.parallel import ONE, LostProcessError, Ranks, joined
from pyrobbb.progress import Printed

register_resolvers()
schema.register()


def execute(config: DictConfig, ranks: Ranks = ONE) -> dict[str, Any]:
    """Fit what `config` says, or go on with it, and return the metrics (none but in the first process)."""
    run = build(config)
    folder = claim(config) if ranks.first else Path(config.folder)
    finished = folder / "metrics.json"
    if not ranks.from_first(finished.exists()):
        classes = run.likelihood.task == "classification"
        error = ", validation error {:.2f} %" if classes else ", validation rmse {:.4g}"
        run.execute(folder, Printed(error=error), ranks)
    elif ranks.first:
        print(f"{folder} is finished; remove it to run it again")
    if not ranks.first:
        return {}
    analyse.figures(folder)
    print(analyse.report(folder))
    metrics: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
    return metrics


@hydra.main(version_base="1.3", config_path=".", config_name="run")
def hydra_main(config: DictConfig) -> float:
    """One job; returns the validation error (or root mean squared error), for sweepers that search."""
    ranks = ONE
    try:
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
    part = metrics.get("validation", metrics.get("test", {}))
    return float(part.get("error", part.get("rmse", float("nan"))))


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
    sys.argv[1:] = arguments
    hydra_main()


if __name__ == "__main__":
    main()
