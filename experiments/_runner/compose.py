"""Declared runs inside a larger experiment: compose one by name, fit it, get its posterior back."""

from collections.abc import Sequence
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments._runner import schema
from experiments._runner.build import DECLARATIONS, ConfigError, build, innermost, loggers
from experiments._runner.folder import claimed
from experiments._runner.own_parts import drop_inherited, given, rename_moved, restore_swapped
from pyrobbb.experiment import Result
from pyrobbb.training.progress import Progress


def compose(experiment: str, overrides: Sequence[str] = (), *, folder: Path | str) -> DictConfig:
    """The configuration of `experiment=experiment` with `key=value` overrides and results in `folder`."""
    config = declared("run", [f"experiment={experiment}", *overrides])
    config.folder = str(folder)
    return config


def declared(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The declaration `name`.yaml, a path within `experiments/`, with `key=value` overrides."""
    schema.register()
    with initialize_config_dir(str(DECLARATIONS.resolve()), version_base="1.3"):
        try:
            config = hydra_compose(name, list(overrides))
            own = given(overrides)
            rename_moved(config)
            restore_swapped(config, name, overrides, own)
            drop_inherited(config, own)
            return config
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(innermost(error)) from error


def fitted(config: DictConfig, progress: Progress | None = None) -> Result:
    """Fit the run in its folder, or resume it; a finished one is read back from its checkpoints."""
    run = build(config)
    with claimed(config) as folder:
        return run.execute(folder, progress, callbacks=loggers(config))
