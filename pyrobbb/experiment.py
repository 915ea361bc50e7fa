"""A whole experiment as one value: what to fit, how, and what to write to the run folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import nn

from pyrobbb._support import checks, text
from pyrobbb._support.checks import check_kinds
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, make_folder, remove_partial_files, write_json
from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation import arviz_export, arviz_io
from pyrobbb.evaluation.code_length import code_length
from pyrobbb.evaluation.kl_ledger import Entry, kl_ledger
from pyrobbb.inference import stacking_weights
from pyrobbb.inference.method import MakeGuide
from pyrobbb.likelihoods import Likelihood, in_units
from pyrobbb.posterior import Posterior
from pyrobbb.priors import Prior
from pyrobbb.training import compatibility
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.history import final_mean
from pyrobbb.training.options import Options
from pyrobbb.training.progress import Guarded, Progress
from pyrobbb.training.trainer import Training, posterior_of, train_all


class Source(Protocol):
    """Where data come from."""

    def load(self) -> Dataset:
        """Read or make the data."""


Ledger = Mapping[str, Entry]  # as `kl_ledger` gives it
MakeModel = Callable[[Spec, Prior, Likelihood], BayesianNetwork]


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    """One experiment; its fields and those of `Options` are the keys of `experiments/run.yaml`, in Python.

    Args:
        data: Has `.load()`.
        model: Makes the Pyro model from the data's spec, the prior and the likelihood; or the class of a
            network (a partial of it, with its options), which has these as prior and likelihood.
        prior: The prior belief about each weight.
        likelihood: What y is, given the network's output; of standardised y, if the data say their units.
        guide: Makes the Pyro guide from the model; Pyro's autoguides fit. Some methods make their own.
        seed: As in `Options`, but 1 by default.
        chains: Independent restarts, from seeds seed, seed + 1, ...
        stacking: Weigh the chains by stacking on the validation data, instead of alike.
        together: Train the chains of a small network as one batch, several times faster; on CUDA of any,
            side by side.
        draws: Weight draws for the final predictions, of each chain.
        export_weights: How many weights (or which) go into `posterior.nc`.
        observations: Number of training data whose log-likelihood is stored there.
    """

    data: Source
    model: MakeModel
    prior: Prior
    likelihood: Likelihood
    guide: MakeGuide
    seed: int = 1
    chains: int = 1
    stacking: bool = False
    together: bool = False
    draws: int = 100
    export_weights: int | Sequence[str] = 200
    observations: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("chains", "draws", "observations"):
            checks.count(name, getattr(self, name))
        check_kinds(
            stacking=(self.stacking, bool),
            together=(self.together, bool),
            prior=(self.prior, Prior),
            likelihood=(self.likelihood, Likelihood),
        )
        if self.stacking and self.chains == 1:
            raise ValueError("stacking weighs chains, of which there is one: ask for more, such as chains=5")
        one_batch = self.samples > 1 and self.vectorize and self.fast == "off"
        if self.likelihood.draws_together and not one_batch:
            raise ValueError(
                f"likelihood {type(self.likelihood).__name__} takes a step's draws together, as one batch, "
                f"and needs samples=2 or more, vectorize=true and fast=off, got samples={self.samples}, "
                f"vectorize={str(self.vectorize).lower()} and fast={self.fast}"
            )
        if not callable(getattr(self.data, "load", None)):
            raise ValueError(f"data must have load(), which returns a Dataset, got {text.short(self.data)}")
        names = self.export_weights
        if isinstance(names, Real):
            checks.count("export_weights", names)
        elif not (isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names)):
            raise ValueError(f"export_weights must be a number or a list of names, got {names!r}")
        checks.keep(self, model=_of_network(self.model))
        for name, arguments in (("model", 3), ("guide", 1), ("optim", 1), ("schedule", 1)):
            _check_callable(name, getattr(self, name), arguments)

    def execute(
        self,
        folder: Path | str | None = None,
        progress: Progress | None = None,
        ranks: ProcessGroup = SINGLE,
        callbacks: Sequence[Callback] = (),
        provenance: Mapping[str, Any] | None = None,
    ) -> Result:
        """Fit, or resume, and leave checkpoints, metrics and `posterior.nc` in `folder`.

        With several processes (`ranks`) the first writes everything; the others' results have no metrics.
        With several chains, each has its own copies of the callbacks. `provenance` says how the run was
        started; it is written to `provenance.json` before the fit, so that an interrupted run has it too.
        """
        progress = Guarded.of(progress if ranks.is_main else None)
        folder = None if folder is None else Path(folder)
        if folder is None or not ranks.is_main:
            return self._execute(folder, progress, ranks, callbacks)
        make_folder(folder)
        with locked(folder):
            remove_partial_files(folder)
            if provenance is not None:
                write_json(folder / "provenance.json", provenance)
            return self._execute(folder, progress, ranks, callbacks)

    def _execute(
        self, folder: Path | None, progress: Progress, ranks: ProcessGroup, callbacks: Sequence[Callback]
    ) -> Result:
        device = best_device(self.device)
        data = self._loaded(ranks).to(device)
        held = data.validation if self.stacking else None

        def make(chain: int, fast: str) -> Training:
            own = callbacks if self.chains == 1 else deepcopy(callbacks)
            return self.training(data, chain, folder, progress, ranks, fast=fast, callbacks=own)

        chains = train_all(make, self.chains, fast=self.fast, together=self.together, device=self.device)
        posterior = posterior_of(chains, data.columns)
        if held is not None:
            posterior.chain_weights = stacking_weights(
                posterior, held.x, held.y, weights=held.weights, draws=self.draws, seed=self.seed
            )
        if not ranks.is_main:
            return Result(run=self, data=data, posterior=posterior, metrics={})
        progress.log(f"predicting with {self.draws} draws of the weights")
        ledger = kl_ledger(posterior, seed=self.seed)
        metrics = self._metrics(posterior, data, chains, ledger)
        metrics |= {"processes": ranks.size, "seed": self.seed, "device": str(device)}
        result = Result(run=self, data=data, posterior=posterior, metrics=metrics)
        if folder is not None:
            progress.log("writing posterior.nc and metrics.json")
            result.save(folder, ledger)
        return result

    def _loaded(self, ranks: ProcessGroup) -> Dataset:
        """The data; ValueError if they are none, for another task, or lack the rows that stacking needs."""
        data = ranks.after_main(self.data.load)
        if not isinstance(data, Dataset):
            what = text.short(data)
            raise ValueError(f"data: load() must return a Dataset, such as from_arrays makes, got {what}")
        if data.spec.task != self.likelihood.task:
            raise ValueError(
                f"likelihood {type(self.likelihood).__name__} is for {self.likelihood.task}, "
                f"but {data.name} is a {data.spec.task} data set"
            )
        if self.stacking and data.validation is None:
            raise ValueError(
                f"stacking weighs the chains on validation data, which {data.name} does not have"
            )
        return data

    def _metrics(
        self, posterior: Posterior, data: Dataset, chains: Sequence[Training], ledger: Ledger | None
    ) -> dict[str, Any]:
        """Scores of the rows held out, what the training took, and what its loss says."""
        found: dict[str, Any] = {}
        for name, part in (("test", data.test), ("validation", data.validation)):
            if part is not None:
                found[name] = evaluate(posterior, part, draws=self.draws, seed=self.seed)
        stopped = any(t.history.stopped for t in chains)
        found["train_seconds"] = sum(t.history.train_seconds for t in chains)
        found["epochs"] = max(t.epoch for t in chains) if stopped else chains[0].epochs  # 0 of a sampler
        points = sum(p.numel() for p in chains[0].named.values())
        found["parameters"] = posterior.model.num_weights or points
        found |= self._bound(posterior, data, chains, ledger)
        found["chains"] = self.chains
        if posterior.chain_weights is not None:
            found["chain_weights"] = posterior.chain_weights
        if self.chains > 1:
            found["main_chain"] = posterior.main_chain
        return found

    def _bound(
        self, posterior: Posterior, data: Dataset, chains: Sequence[Training], ledger: Ledger | None
    ) -> dict[str, Any]:
        """The free energy, that of ignoring the inputs, where it goes, and what it is as a code.

        Of several chains the mean by their weights, which bounds their mixture; ignoring the inputs is under
        the prior of the main one, which may be learned. Of a method or a guide whose loss is not a bound,
        `train_loss`, and of Laplace the log evidence of each chain.
        """
        of_chains = [final_mean(chain.history.rows) for chain in chains if chain.history.rows]
        if not of_chains:  # of a method without steps
            return {}
        loss, found = fmean(of_chains, posterior.chain_weights), dict[str, Any]()
        bound = chains[0].has_bound
        found["free_energy" if bound else "train_loss"] = loss
        evidence = [
            torch.as_tensor(guide.log_evidence)
            for _, guide in posterior.chains
            if hasattr(guide, "log_evidence")
        ]
        if evidence:
            found["log_evidence"] = torch.stack(evidence).tolist()
        if ledger is None:
            return found
        if bound:
            found["trivial_free_energy"] = chains[posterior.main_chain].trivial
        if bound and data.spec.task == "classification" and data.spec.outputs > 1:
            seen = 1.0 if data.train.weights is None else float(data.train.weights.mean())
            found["code_length"] = code_length(
                loss, data.spec.N, data.spec.outputs, labels=seen * data.train.y[:1].numel()
            )
        found["kl_ledger"] = {
            name: {**asdict(entry), "bits_per_weight": entry.bits_per_weight}
            for name, entry in ledger.items()
        }
        return found

    def training(
        self,
        data: Dataset,
        chain: int = 0,
        folder: Path | None = None,
        progress: Progress | None = None,
        ranks: ProcessGroup = SINGLE,
        *,
        fast: str | None = None,
        **others: Any,
    ) -> Training:
        """The training of one chain, ready to start; `others` are further arguments of `Training`."""
        seed = self.seed + chain
        with isolated(seed):
            try:
                model = self.model(data.spec, self.prior, in_units(self.likelihood, data.spec))
            except (TypeError, RuntimeError) as error:  # an option of the wrong type, told by torch
                raise ValueError(f"model: {error}") from error
            if not isinstance(model, BayesianNetwork):
                what = text.short(model)
                raise ValueError(f"model must return BayesianNetwork(network, prior, likelihood), not {what}")
            # a misspelt name: now, not after training
            if model.sites and not isinstance(self.export_weights, int):
                arviz_export.WeightSelection(model, self.export_weights)
            guide = self.inference.guide(model, self.guide) if model.sites else None
        options = {f.name: getattr(self, f.name) for f in fields(Options)}
        if self.batch_size is not None:
            options["batch_size"] = min(self.batch_size, len(data.train))
        options |= {"seed": seed, "fast": fast or self.fast}
        options |= {"folder": folder, "chain": chain, "progress": progress, "ranks": ranks}
        return Training(model, guide, data, **options, **others)


@dataclass(frozen=True)
class Result:
    """A fitted run: its data, its posterior and its metrics."""

    run: Run
    data: Dataset
    posterior: Posterior
    metrics: dict[str, Any]

    def save(self, folder: Path, ledger: Ledger | None = None) -> None:
        """Write `metrics.json` and, if there are Bayesian weights, `posterior.nc`.

        Removes `check.json` and the files of an earlier pruning, which describe an earlier state. `ledger` is
        what `kl_ledger` gives for the run's seed, where it is there already.
        """
        run = self.run
        for left in ("check.json", "pruning/*.json", "pruning/*.png", "pruning/*.npz"):
            for stale in folder.glob(left):
                stale.unlink()
        digest = dict[str, str]()
        if self.posterior.model.sites:
            tree = arviz_export.to_arviz(
                self.posterior,
                self.data,
                draws=run.draws,
                weights=run.export_weights,
                observations=run.observations,
                seed=run.seed,
                ledger=ledger,
            )
            digest = {"posterior_sha256": arviz_io.save(tree, folder / "posterior.nc")}
        if self.data.test is not None:
            digest["test_rows"] = compatibility.rows(self.data.test)
        write_json(folder / "metrics.json", self.metrics | digest, indent=2)


def evaluate(posterior: Posterior, part: Split, *, draws: int, seed: int = 0) -> dict[str, float]:
    """Metrics of the draw-averaged prediction, and the error of the mean weights, by the rows' weights."""
    averaged = posterior.predict(part.x, part.y, draws=draws, seed=seed)
    mean = posterior.predict(part.x, part.y, mean_weights=True)
    name = averaged.error.name
    weights = () if part.weights is None else (part.weights,)  # a prediction of one's own may take none
    scores, of_mean = (each.metrics(part.y, *weights) for each in (averaged, mean))
    return {**scores, f"{name}_mean_weights": of_mean[name]}


def _of_network(make: Any) -> Any:
    """What makes the Pyro model, of the class of a network; anything else is returned as it is."""
    kind = getattr(make, "func", make)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module) or issubclass(kind, BayesianNetwork):
        return make

    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ValueError(f"model: {kind.__name__} needs all of its options: {error}") from error

    def model(spec: Spec, prior: Prior, likelihood: Likelihood) -> BayesianNetwork:
        return BayesianNetwork(make(), prior, likelihood, spec.N)

    return model


def _check_callable(name: str, make: Any, arguments: int) -> None:
    """Catch a misspelt option of a factory before any data are loaded."""
    if make is None and name == "schedule":
        return
    if not callable(make):
        raise ValueError(f"{name} must be callable with {arguments} arguments, got {make!r}")
    try:
        inspect.signature(make).bind(*[None] * arguments)
    except TypeError as error:
        wanted = "; it must be the class of a network, or a function of (spec, prior, likelihood)"
        raise ValueError(f"{name}: {error}{wanted if name == 'model' else ''}") from error
