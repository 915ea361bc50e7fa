"""The points of a study: each a configuration with a folder of its own, fitted once and measured.

A point that is finished is read back; one that was interrupted resumes from its checkpoint.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments._runner.build import ConfigError, build, component, loggers
from experiments._runner.folder import again, claimed, read_json
from experiments._runner.reopen import compare, fixed
from pyrobbb._support import checkpoint
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, remove_partial_files, write_json
from pyrobbb._support.random_state import isolated
from pyrobbb._support.text import one_line
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.experiment import Run, evaluate
from pyrobbb.likelihoods import in_units
from pyrobbb.posterior import Posterior
from pyrobbb.training import compatibility
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.history import Epoch
from pyrobbb.training.progress import Progress
from pyrobbb.training.trainer import NonFiniteLossError

Result = dict[str, Any]


class RefusedError(ValueError):
    """The library does not fit this model with this method; the message is its reason."""


class Kept(Result):
    """A result that was read back: a number that it lacks is an error of the file's."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_json(path))
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise ConfigError(f"{self.path} is damaged or of another version (no {key!r}); {again()}")


@dataclass(frozen=True)
class Fitted:
    """A trained point: what a study measures."""

    run: Run
    data: Dataset
    posterior: Posterior
    history: list[Epoch]

    def scores(self) -> dict[str, float]:
        """Classification metrics of the averaged draws on the test set."""
        if self.data.test is None:
            raise ConfigError("data: this experiment needs test data")
        found = evaluate(self.posterior, self.data.test, draws=self.run.draws, seed=self.run.seed)
        if "error" not in found:
            raise ConfigError("likelihood: this experiment needs a classification")
        return found


def changed(config: DictConfig, folder: Path, values: Mapping[str, Any]) -> DictConfig:
    """`config` with other values (keys such as `prior.pi`) and another folder; much faster than composing."""
    new = deepcopy(config)
    for key, value in values.items():
        try:
            OmegaConf.update(new, key, value)
        except OmegaConfBaseException as error:
            raise ConfigError(one_line(error, 200)) from error
    new.folder = str(folder)
    return new


def once(
    config: DictConfig,
    make: Callable[[], Result],
    validation: Split | None = None,
    *,
    beside: Mapping[str, Any] | None = None,
) -> Result:
    """The result in the configuration's folder, which `make` makes if it is not there.

    A fit that is refused or diverges is a result too: the key `refused` or `stopped` holds the message.
    `result.json` also keeps what it was made with, with `validation` in place of the data's own rows, and
    what `beside` says of it, where `make` does not say otherwise.

    Raises:
        ConfigError: If the data, or the user's own code, are not those of the earlier result.
    """
    with claimed(config) as folder:
        found = Kept(folder / "result.json")
        theirs = found.pop("made_with", {})  # which results of older versions lack
        if theirs:
            same = compatibility.check_same
            compare(folder, lambda: same(_made_with(config, validation), theirs, found.path))
        if found:
            return found
        with locked(folder):
            remove_partial_files(folder)
            try:
                result = make()
            except RefusedError as error:
                result = {"refused": str(error)}
            except NonFiniteLossError as error:
                result = {"stopped": str(error)}
            mine = {} if fixed(config) or "refused" in result else _made_with(config, validation)
            result = {**(beside or {}), **result}
            write_json(folder / "result.json", {**result, "made_with": mine})
        return result


def fit_point(
    config: DictConfig,
    measure: Callable[[Fitted], Result],
    *,
    progress: Progress | None = None,
    keep: bool = False,
    validation: Split | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Fit one point and measure it, or read the earlier measurements.

    Of a loss that becomes infinite or NaN `stopped_epoch`, `stopped_step` and `stopped_share` (of the epoch's
    steps) say where.

    Args:
        config: From `compose`, with a `folder` of the point's own.
        measure: Numbers, words and lists from the fit, for `result.json`.
        progress: Progress callback.
        keep: Keep the checkpoint next to the result.
        validation: Measured after each epoch in place of the data's own validation rows.
        callbacks: Called in its training.

    Raises:
        ConfigError: If the data, or the user's own code, are not those of the earlier measurements.
    """
    run, folder = build(config), Path(config.folder)
    if run.chains > 1:
        raise ConfigError(f"chains: each point of this experiment is one training, got {run.chains}")

    def made() -> Result:
        data = load(config.data).to(best_device(run.device))
        every = [*callbacks, *loggers(config)]
        training = run.training(
            data, folder=folder, progress=progress, validation=validation, callbacks=every
        )
        training.resume()
        result: Result = {}
        try:
            training.run()
        except NonFiniteLossError as error:
            result = {
                "stopped": str(error),
                "stopped_epoch": training.epoch + 1,
                "stopped_step": training.batch + 1,
                "stopped_share": (training.batch + 1) / training.M,
            }
        else:
            result = measure(Fitted(run, data, training.posterior, training.history.rows))
        rows = training.history.rows
        return result | {
            "seconds": training.history.train_seconds,
            "epochs": [row.epoch for row in rows],
            "validation_errors": [row.validation_error for row in rows],
            "free_energies": [row.free_energy for row in rows],
        }

    result = once(config, made, validation)
    if not keep:
        checkpoint.remove(folder / "chain-0.pt")
    return result


def _made_with(config: DictConfig, validation: Split | None) -> dict[str, Any]:
    """What identifies a point's data and its model, in addition to the configuration."""
    run, data = build(config), load(config.data)
    with isolated(run.seed):
        model = run.model(data.spec, run.prior, in_units(run.likelihood, data.spec))
    found = compatibility.model(model) | compatibility.data(data.train, validation or data.validation)
    return found if data.test is None else found | {"test": compatibility.rows(data.test)}


def fit_points(
    points: Mapping[str, DictConfig], measure: Callable[[Fitted], Result], words: Callable[[Result], str]
) -> dict[str, Result]:
    """Fit one point after another, with a line for each: its name, `words` on its result, its time."""
    results = {}
    for i, (name, config) in enumerate(points.items(), 1):
        began = perf_counter()
        results[name] = fit_point(config, measure)
        stopped = "stopped" in results[name]
        said = f"not finite in epoch {results[name]['stopped_epoch']}" if stopped else words(results[name])
        print(f"[{i}/{len(points)}] {name}: {said} ({perf_counter() - began:.0f} s)", flush=True)
    return results


def load(config: DictConfig) -> Dataset:
    """The data that a configuration names; points that share them share the tensors."""
    return _load(json.dumps(OmegaConf.to_container(config, resolve=True), sort_keys=True))


@lru_cache(maxsize=2)
def _load(config: str) -> Dataset:
    return component("data", json.loads(config)).load()
