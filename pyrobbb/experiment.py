"""A whole experiment as one value: what to fit, how, and what to leave in the run folder."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from torch import nn

from pyrobbb._support import checks
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, make_folder, sweep, write_text
from pyrobbb._support.optim import MakeOptimizer, MakeSchedule
from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import FAST
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation import arviz_export as export
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.metrics import classification_metrics, regression_metrics
from pyrobbb.kl_weights import KLWeight, Uniform
from pyrobbb.likelihoods import Likelihood
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction
from pyrobbb.priors import Prior
from pyrobbb.standardized import in_units
from pyrobbb.training.batched_chains import train_together
from pyrobbb.training.progress import Progress, Silent
from pyrobbb.training.trainer import Training


class Source(Protocol):
    """Where data come from."""

    def load(self) -> Dataset:
        """Read or make the data."""
        ...


MakeModel = Callable[[Spec, Prior, Likelihood], BayesianNetwork]
MakeGuide = Callable[[BayesianNetwork], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment; the fields are the keys of `experiments/run.yaml`, in Python.

    Args:
        data: Has `.load()`.
        model: Makes the Pyro model from the data's spec, the prior and the likelihood.
        prior: What each weight is believed to be.
        likelihood: What y is, given the network's output; of standardised y, if the data say their units.
        guide: Makes the Pyro guide from the model; Pyro's autoguides fit.
        kl: Weight of the KL that each minibatch carries.
        optim: Makes a torch optimiser from parameter groups.
        schedule: Makes a learning-rate schedule, stepped once per epoch.
        rates: Factors on the learning rate by part of a parameter's name, such as `{"rho": 10}`.
        epochs: Passes over the training data.
        batch_size: Rows of a minibatch.
        samples: Weight draws per training step.
        vectorize: Evaluate these draws as one batch in Pyro's own SVI; the fast path has its own way.
        fast: `auto`, `compiled`, `eager` or `off` (Pyro's own SVI); all minimise the same free energy.
        chains: Independent restarts, from seeds seed, seed + 1, ...
        together: Train the chains of a small network as one batch, several times faster.
        seed: Decides everything random.
        device: `auto`, `cpu`, `cuda`, ...
        validation_draws: Weight draws for the validation error of each epoch; 0: the mean weights.
        draws: Weight draws for the final predictions, of each chain.
        export_weights: How many weights (or which) go into `posterior.nc`.
        observations: How many training data have their log-likelihood there.
        checkpoint_seconds: Least time between two checkpoints.
    """

    data: Source
    model: MakeModel
    prior: Prior
    likelihood: Likelihood
    guide: MakeGuide
    optim: MakeOptimizer
    kl: KLWeight = field(default_factory=Uniform)
    schedule: MakeSchedule | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 10
    batch_size: int = 128
    samples: int = 1
    vectorize: bool = False
    fast: str = "auto"
    chains: int = 1
    together: bool = False
    seed: int = 1
    device: str = "auto"
    validation_draws: int = 3
    draws: int = 100
    export_weights: int | Sequence[str] = 200
    observations: int = 1000
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "samples", "chains", "draws", "observations"):
            checks.count(name, getattr(self, name))
        checks.seed("seed", self.seed)
        checks.between("checkpoint_seconds", self.checkpoint_seconds, 0, math.inf)
        for name in ("vectorize", "together"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if isinstance(self.export_weights, int):
            checks.count("export_weights", self.export_weights)
        elif isinstance(self.export_weights, str) or not self.export_weights:
            raise ValueError(
                f"export_weights must be a number or a list of names, got {self.export_weights!r}"
            )
        checks.one_of("fast", self.fast, FAST)
        checks.count("validation_draws", self.validation_draws, minimum=0)
        for name, kind in (("prior", Prior), ("likelihood", Likelihood), ("kl", KLWeight)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        for name, arguments in (("model", 3), ("guide", 1), ("optim", 1), ("schedule", 1)):
            _check_callable(name, getattr(self, name), arguments)
        best_device(self.device)

    def execute(
        self, folder: Path | str | None = None, progress: Progress | None = None, ranks: ProcessGroup = SINGLE
    ) -> Result:
        """Fit, or go on fitting, and leave checkpoints, metrics and `posterior.nc` in `folder`.

        Of several processes (`ranks`) the first writes everything; the others' results have no metrics.
        """
        progress = progress if progress and ranks.is_main else Silent()
        folder = None if folder is None else Path(folder)
        if folder is None or not ranks.is_main:
            return self._execute(folder, progress, ranks)
        make_folder(folder)
        with locked(folder):
            sweep(folder)
            return self._execute(folder, progress, ranks)

    def _execute(self, folder: Path | None, progress: Progress, ranks: ProcessGroup) -> Result:
        device = best_device(self.device)
        data = ranks.after_main(self.data.load).to(device)
        if data.spec.task != self.likelihood.task:
            raise ValueError(
                f"likelihood {type(self.likelihood).__name__} is for {self.likelihood.task}, "
                f"but {data.name} is a {data.spec.task} data set"
            )
        chains = self._train(data, folder, progress, ranks)
        posterior = Posterior([(t.model, t.guide) for t in chains])
        if not ranks.is_main:
            return Result(run=self, data=data, posterior=posterior, metrics={})
        progress.log(f"predicting with {self.draws} draws of the weights")
        result = Result(
            run=self,
            data=data,
            posterior=posterior,
            metrics={
                **{
                    name: evaluate(posterior, part, draws=self.draws, seed=self.seed)
                    for name, part in (("test", data.test), ("validation", data.validation))
                    if part is not None
                },
                "train_seconds": sum(t.history.train_seconds for t in chains),
                "epochs": self.epochs,
                "parameters": posterior.model.num_weights,
                "free_energy": fmean(t.history.rows[-1].free_energy for t in chains),
                "chains": self.chains,
                "processes": ranks.size,
                "seed": self.seed,
                "device": str(device),
            },
        )
        if folder is not None:
            progress.log("writing posterior.nc and metrics.json")
            result.save(folder)
        return result

    def _train(
        self, data: Dataset, folder: Path | None, progress: Progress, ranks: ProcessGroup
    ) -> list[Training]:
        """Every chain, trained to its end."""

        def made(run: Run) -> list[Training]:
            chains = [run.training(data, chain, folder, progress, ranks) for chain in range(run.chains)]
            for training in chains:
                if training.resume():
                    where = f"epoch {training.epoch} of {run.epochs} ({folder})"
                    progress.log(f"chain {training.chain}: going on from {where}")
            return chains

        if self.together and self.chains > 1 and self.fast != "off":
            chains = made(replace(self, fast="eager"))
            try:
                train_together(chains, fast=self.fast)
                return chains
            except NotBatchableError as reason:
                progress.log(f"training one chain after the other: {reason}")
        chains = made(self)
        for training in chains:
            training.run()
        return chains

    def training(
        self,
        data: Dataset,
        chain: int = 0,
        folder: Path | None = None,
        progress: Progress | None = None,
        ranks: ProcessGroup = SINGLE,
    ) -> Training:
        """The training of one chain, at its beginning."""
        seed = self.seed + chain
        with isolated(seed):
            model = self.model(data.spec, self.prior, in_units(self.likelihood, data.spec))
            if not isinstance(self.export_weights, int):
                export.WeightSelection(
                    model, self.export_weights
                )  # a misspelt name is found now, not after training
            guide = self.guide(model)
        return Training(
            model,
            guide,
            data,
            epochs=self.epochs,
            batch_size=min(self.batch_size, len(data.train)),
            optim=self.optim,
            schedule=self.schedule,
            kl=self.kl,
            samples=self.samples,
            vectorize=self.vectorize,
            fast=self.fast,
            rates=self.rates,
            seed=seed,
            device=self.device,
            validation_draws=self.validation_draws,
            folder=folder,
            checkpoint_seconds=self.checkpoint_seconds,
            chain=chain,
            progress=progress,
            ranks=ranks,
        )


@dataclass(frozen=True)
class Result:
    """A fitted run: its data, its posterior and its metrics."""

    run: Run
    data: Dataset
    posterior: Posterior
    metrics: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write `metrics.json` and `posterior.nc`."""
        run = self.run
        tree = export.to_arviz(
            self.posterior,
            self.data,
            draws=run.draws,
            weights=run.export_weights,
            observations=run.observations,
            seed=run.seed,
        )
        arviz_io.save(tree, folder / "posterior.nc")
        write_text(folder / "metrics.json", json.dumps(self.metrics, indent=2) + "\n")


def evaluate(posterior: Posterior, part: Split, *, draws: int, seed: int = 0) -> dict[str, float]:
    """Metrics of the draw-averaged prediction, and the error of the mean weights beside it."""
    averaged = posterior.predict(part.x, part.y, draws=draws, seed=seed)
    mean = posterior.predict(part.x, part.y, mean_weights=True)
    if isinstance(averaged, ClassPrediction) and isinstance(mean, ClassPrediction):
        metrics = classification_metrics(averaged.probs, part.y)
        metrics["error_mean_weights"] = classification_metrics(mean.probs, part.y)["error"]
        metrics["mutual_information"] = float(averaged.mutual_information.mean())
        return metrics
    assert not isinstance(averaged, ClassPrediction)
    assert not isinstance(mean, ClassPrediction)
    metrics = regression_metrics(averaged.mean, averaged.log_predictive, part.y)
    metrics["rmse_mean_weights"] = regression_metrics(mean.mean, mean.log_predictive, part.y)["rmse"]
    return metrics


def _check_callable(name: str, make: Any, arguments: int) -> None:
    """Find a misspelt option of a factory before any data is loaded."""
    if make is None and name == "schedule":
        return
    if not callable(make):
        raise ValueError(f"{name} must be callable with {arguments} arguments, got {make!r}")
    try:
        inspect.signature(make).bind(*[None] * arguments)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
