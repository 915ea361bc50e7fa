"""What a run folder's `config.yaml` may name: opening somebody else's folder runs none of their code.

Hydra calls whatever a `_target_` names, `os.system` too. Here a name must be that of a class or function that
one of the listed modules itself defines. A configuration of the user's own may name anything.
"""

from collections.abc import Iterator
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments._runner.build import ConfigError
from experiments._runner.folder import read_config
from experiments._runner.own_parts import drop_inherited

MODULES = (
    "experiments._runner.trained_network",
    "experiments.reproductions.controls",
    "pyrobbb.initializers",
    "pyrobbb.low_rank",
    "pyrobbb.matrix_normal",
    "pyrobbb.mean_field",
    "pyrobbb.non_centred",
    "pyrobbb.models.convnet",
    "experiments.reproductions.gluon_as_printed",
    "pyrobbb.models.linear",
    "pyrobbb.models.mlp",
    "pyrobbb.models.plain_mlp",
    "pyro.infer",
    "pyro.infer.autoguide",
    "pyro.infer.autoguide.initialization",
    "pyrobbb.data",
    "pyrobbb.inference",
    "pyrobbb.kl_weights",
    "pyrobbb.likelihoods",
    "pyrobbb.priors",
    "pyrobbb.training.callbacks",
    "pyrobbb.training.loggers",
    "torch.optim",
    "torch.optim.lr_scheduler",
)


def trusted_config(folder: Path, trust: bool) -> dict[str, Any]:
    """The configuration of a run folder.

    Args:
        folder: As `experiments.run` leaves it.
        trust: Whatever it names may be called; otherwise only parts of this library.
    """
    path = folder / "config.yaml"
    config = read_config(path)
    prior = config.get("prior")
    if not isinstance(prior, dict) or "_target_" not in prior:
        raise ConfigError(f"{path} is not a configuration of a run: it lacks prior._target_")
    if not trust and (strange := strangers(config)):
        raise ConfigError(
            f"{path} names {strange[0]!r}, which is not a part of this library, so it is not called; if you "
            f"know who wrote the file and what this does, give --trust (trust=True)"
        )
    made = OmegaConf.create(config)
    drop_inherited(made, {})  # version 0.1.0 wrote what came with components that had been replaced
    current: Any = OmegaConf.to_container(made)
    return dict(current)


def strangers(config: Any) -> list[Any]:
    """What a configuration names that is not a part of this library."""
    return [target for target in _targets(config) if not _known(target)]


def _targets(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "_target_":
                yield value
            else:
                yield from _targets(value)
    elif isinstance(part, list):
        for value in part:
            yield from _targets(value)
    elif isinstance(part, str) and "${" in part:
        yield part  # could become anything; what a run leaves has none


def _known(target: Any) -> bool:
    module, _, name = str(target).rpartition(".")
    if not isinstance(target, str) or module not in MODULES or name.startswith("_"):
        return False
    found = getattr(import_module(module), name, None)
    home = str(getattr(found, "__module__", ""))
    package = module.removesuffix(".initialization")  # some are exported above where they are defined
    return (isclass(found) or isfunction(found)) and (home == package or home.startswith(f"{package}."))
