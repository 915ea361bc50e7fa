"""A finished run folder, opened again: its posterior and its data, from `config.yaml` and the checkpoints."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments._runner import schema
from experiments._runner.build import CHECKED, ConfigError, build
from experiments._runner.folder import read_json
from experiments._runner.trust import strangers, trusted_config
from pyrobbb._support import checkpoint
from pyrobbb._support.device import best_device
from pyrobbb._support.random_state import isolated
from pyrobbb._support.text import one_line
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset
from pyrobbb.draws import NoWeights
from pyrobbb.experiment import Run
from pyrobbb.likelihoods import in_units
from pyrobbb.posterior import Posterior
from pyrobbb.training import compatibility, history
from pyrobbb.training.data_checks import reach

KEPT = {"model", "guide", "attributes", "constant buffers", "epoch"}  # of a checkpoint, what is read here


@dataclass(frozen=True)
class Reopened:
    """What a run folder holds."""

    run: Run
    data: Dataset
    posterior: Posterior
    epoch: int  # of the checkpoint; run.epochs if the run is finished


def reopen(folder: Path | str, *, trust: bool = False) -> Reopened:
    """Load the data named in the folder's configuration, and the posterior from its checkpoints.

    On a machine without the device that it was trained on, it comes to the best one there.

    Args:
        folder: With `config.yaml` and `chain-0.pt`, `chain-1.pt`, ... as `experiments.run` leaves them.
        trust: Call what `config.yaml` names, whatever it is; otherwise only parts of this library.

    Raises:
        ConfigError: If there is no such folder or configuration, it names what is not trusted, or a
            checkpoint is of an earlier version.
        CheckpointError: If a checkpoint is missing, damaged, or of another network, prior or data set.
    """
    folder = Path(folder)
    schema.register()
    config = trusted_config(folder, trust)
    run = build(OmegaConf.create({**config, "device": _here(config.get("device"))}))
    device = best_device(run.device)
    data = run.data.load().to(device)
    first = data.train.head(1)
    chains, epoch = [], run.epochs
    metrics = read_json(folder / "metrics.json")
    for chain in range(run.chains):
        file = folder / f"chain-{chain}.pt"
        state, file = _state(file, device, finished=bool(metrics))
        with isolated(run.seed + chain, device=device):
            model = run.model(data.spec, run.prior, in_units(run.likelihood, data.spec)).to(device)
            model.N, model.input_dtype = model.N or data.spec.N, first.x.dtype  # as a training does it
            guide = run.inference.guide(model, run.guide) if model.sites else NoWeights()
            guide(first.x, first.y)  # guides make their parameters at the first call
            guide.to(device)
        _check_same(model, data, run.seed + chain, state, file)
        checkpoint.load_module(model, state["model"], "model", file)
        checkpoint.load_module(guide, state["guide"], "guide", file)
        compatibility.restore_attributes(model, compatibility.changed_in(state))
        epoch = min(epoch, int(state["epoch"]))
        chains.append((model, guide))
    weights = metrics.get("chain_weights")
    rows = history.read_if_there(folder / "history.csv")
    each = history.by_chain(rows)
    histories = [history.History(each.get(chain, [])) for chain in range(run.chains)]
    posterior = Posterior(chains, histories, weights, data.columns, reach(data.train))
    return Reopened(run, data, posterior, epoch)


def _state(file: Path, device: torch.device, finished: bool) -> tuple[dict[str, Any], Path]:
    """The newest readable checkpoint of a chain, and its file; of a finished run only the last."""
    found = checkpoint.load_newest(file, device)
    if found is None:
        raise checkpoint.CheckpointError(f"{file} does not exist")
    if finished and found[1] != file:  # the numbers beside it are not of an earlier epoch
        raise checkpoint.CheckpointError(
            f"{file} is damaged or gone, and {found[1].name} is of an earlier epoch than the results; remove "
            f"{file.with_name('metrics.json')}, and the command that made it trains the rest again"
        )
    if lacking := sorted(KEPT - found[0].keys()):
        raise ConfigError(  # no CheckpointError, which would have `compare` refuse the results
            f"{found[1]} has no {lacking[0]!r}, as one of an earlier version, so its posterior cannot be "
            f"opened; run the command that made it again, with another folder=..."
        )
    return found


def _here(device: Any) -> Any:
    """The device that the run was made on, or the best there is on a machine without it."""
    try:
        best_device(device)
    except ValueError:
        return "auto"
    return device


def check_finished(folder: Path, config: DictConfig) -> None:
    """Raise ConfigError if what a finished run was made of has changed: its data, or code of the user's own.

    Data sets of the library are the same wherever they lie, and a run whose checkpoints were deleted is not
    compared.
    """
    if not fixed(config) and (folder / "chain-0.pt").exists():
        compare(folder, lambda: _check_test_rows(folder, reopen(folder, trust=True).data))


def _check_test_rows(folder: Path, data: Dataset) -> None:
    """CheckpointError if the scores of a finished run are of other test rows."""
    kept = read_json(folder / "metrics.json").get("test_rows")  # once without
    if kept and data.test is not None and kept != compatibility.rows(data.test):
        raise checkpoint.CheckpointError(f"{folder / 'metrics.json'} was made with other test data")


def fixed(config: DictConfig) -> bool:
    """Whether all is the library's: its parts, on data that are the same wherever they lie."""
    data = str(config.data.get("_target_")).removeprefix("pyrobbb.data.")
    return data in CHECKED and not strangers(OmegaConf.to_container(config, resolve=True))


def compare(folder: Path, check: Callable[[], object]) -> None:
    """Raise ConfigError if `check` finds other data or code than those of the results in `folder`."""
    try:
        check()
    except checkpoint.CheckpointError as error:
        raise ConfigError(f"{error}; to have it run again from its start, remove {folder}") from error
    except Exception as error:  # the data are gone, or code of the user's own does not run any more
        reason = one_line(error) or type(error).__name__
        print(f"note: {folder} was not compared with its data and code: {reason}", file=sys.stderr)


def _check_same(model: BayesianNetwork, data: Dataset, seed: int, state: dict[str, Any], file: Path) -> None:
    """CheckpointError if the configuration, or the data that it names, changed after the training."""
    mine = compatibility.model(model) | compatibility.data(data.train, data.validation) | {"seed": seed}
    try:
        compatibility.check_same(mine, state.get("made_with", {}), file)
        compatibility.check_held(compatibility.held(model), state, file)
    except checkpoint.CheckpointError as error:
        raise checkpoint.CheckpointError(
            f"{file.parent / 'config.yaml'} or its data changed: {error}"
        ) from None
