"""One point: a method on one model and one data set, fitted, measured and kept in a folder of its own.

What the library refuses is a result too, with its reason.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments._runner.build import build
from experiments._runner.fit_points import RefusedError, Result, changed, load
from experiments.scoreboard import methods
from experiments.scoreboard.compare import reason
from pyrobbb._support.device import best_device
from pyrobbb.data.dataset import Dataset
from pyrobbb.experiment import Run
from pyrobbb.inference import Laplace
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import NonFiniteLossError, posterior_of, train_all


def fitted(config: DictConfig, *, keep: bool = False, around: str = "") -> tuple[Run, Dataset, Posterior]:
    """The posterior of a configuration, all its chains.

    Args:
        config: Of a run.
        around: The structure of Laplace's curvature around its mean weights, if that is the posterior.
        keep: Leave checkpoints in its folder, from which an interrupted fit resumes.

    Raises:
        RefusedError: The method says before it begins that it cannot.
        NonFiniteLossError: The fit diverged.
    """
    run = build(config)
    data = load(config.data).to(best_device(run.device))
    try:
        run.training(data)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    folder = Path(config.folder) if keep else None
    chains = train_all(
        lambda chain, fast: run.training(data, chain, folder, fast=fast),
        run.chains, fast=run.fast, together=run.together, device=run.device,
    )  # fmt: skip
    posterior = posterior_of(chains)
    return run, data, Laplace(structure=around).around(posterior, data.train) if around else posterior


def timed(config: DictConfig, *, around: str = "") -> tuple[Run, Dataset, Posterior, float | None]:
    """`fitted` with its checkpoints kept, and the seconds that it took.

    Of a fit that resumed there is None: the time before the interruption is not known.
    """
    began, resumed = perf_counter(), any(Path(config.folder).glob("chain-*.pt"))
    run, data, posterior = fitted(config, keep=True, around=around)
    return run, data, posterior, None if resumed else perf_counter() - began


def scored(
    method: str, trial: methods.Changes, config: DictConfig, held: Mapping[str, Any], *, whole: bool = False
) -> tuple[float, DictConfig]:
    """What a trial's changes of `config` are worth, and the changed configuration.

    It is the mean log-likelihood of the rows `held` back after a fit, -inf if that diverged: of one chain, so
    that a mixture of restarts and its member share the fit, or of the `whole` mixture, whose best network is
    another than its member's.
    """
    own = changed(config, Path(config.folder), methods.tried(config, trial))
    values = OmegaConf.to_container(changed(own, Path(), held), resolve=True)
    assert isinstance(values, dict)
    fitted_once = values if whole else {**values, "chains": 1}
    return _validated(json.dumps(fitted_once), methods.METHODS[method].around), own


@lru_cache(maxsize=64)
def _validated(config: str, around: str) -> float:
    try:
        run, data, posterior = fitted(OmegaConf.create(json.loads(config)), around=around)
    except NonFiniteLossError:
        return -inf
    assert data.validation is not None
    held = data.validation
    scores = posterior.predict(held.x, held.y, draws=run.draws, seed=run.seed).log_predictive
    score = float(scores.double().mean())
    return score if isfinite(score) else -inf


def said(result: Result, measure: str) -> str:
    """A result in one line: a measure, or why there is none."""
    return reason(result) or f"{measure.replace('_', ' ')} {result[measure]:.3f}"
