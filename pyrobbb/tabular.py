"""From a table to a posterior in one call: the pieces of `fit`, with choices that suit small tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from pyrobbb._support import checks
from pyrobbb._support.files import make_folder
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Spec
from pyrobbb.data.tables import TableData
from pyrobbb.likelihoods import Categorical, HeteroscedasticNormal, Likelihood, Normal, in_units
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.priors import FanInNormal, PerParameter, Prior
from pyrobbb.training.history import History
from pyrobbb.training.trainer import fit

STEPS = 4000
NOISE = ("learned", "heteroscedastic")


def fit_table(
    data: TableData,
    *,
    hidden: Sequence[int] = (50,),
    noise: str | None = None,
    prior: Prior | None = None,
    seed: int = 1,
    **options: Any,
) -> Posterior:
    """Fit a perceptron to a table, with defaults for small tables.

    They were searched on validation rows of four tables of scikit-learn and four of UCI; the search saw some
    test scores as well (`experiments.studies.own_tables`). Which noise suits a table is asked of its training
    rows alone: the free energy bounds -log P(D), and the model with the lower one is kept.

    >>> data = from_table("houses.csv", target="price", test=0.1)  # doctest: +SKIP
    >>> prediction = fit_table(data).predict(data.inputs(new_rows))  # doctest: +SKIP

    Args:
        data: The table; its `columns` are kept in `folder`, if there is one, as `columns.json`.
        hidden: Units of each hidden layer.
        noise: For regression: "learned", the same for all rows, as a share of each target's standard
            deviation; "heteroscedastic", which lets it depend on the inputs; or None: both are fitted, and
            the one with the lower free energy is returned.
        prior: By default `table_prior`.
        seed: Decides everything random.
        options: Those of `Training`, such as `epochs`, `folder` or `progress`.

    Raises:
        ValueError: An option is outside its domain.
    """
    if not isinstance(data, TableData):
        raise ValueError(f"data must be a table, such as from_table(...) returns, got {type(data).__name__}")
    folder = options.pop("folder", None)
    if folder is not None:
        make_folder(folder)
        data.columns.save(Path(folder) / "columns.json")
    if noise is not None or data.spec.task == "classification":
        likelihood = table_likelihood(data.spec, noise or "learned")
        return _fit(data, likelihood, hidden, prior, seed, folder=folder, **options)
    fitted = [
        _fit(
            data, table_likelihood(data.spec, each), hidden, prior, seed,
            folder=None if folder is None else Path(folder) / each, **options,
        )
        for each in NOISE
    ]  # fmt: skip
    return min(fitted, key=lambda posterior: _free_energy(posterior.history))


def _free_energy(history: Any) -> float:
    """In nats per row, the mean of the last twentieth of the epochs: one epoch's is an estimate."""
    chains = [history.rows] if isinstance(history, History) else [one.rows for one in history]
    return fmean(row.free_energy for rows in chains for row in rows[-max(1, len(rows) // 20) :])


def _fit(
    data: TableData,
    likelihood: Likelihood,
    hidden: Sequence[int],
    prior: Prior | None,
    seed: int,
    **options: Any,
) -> Posterior:
    with isolated(checks.seed("seed", seed)):
        network = perceptron(data.spec.features[0], hidden, likelihood.width(data.spec.outputs))
    network.to(data.train.x.dtype)
    init_rho = -2.0 if data.spec.task == "classification" else -6.0
    prior = prior or table_prior(data.spec, f"{len(network) - 1}.*")
    model = BayesianNetwork(network, prior, likelihood, N=data.spec.N)
    batch_size = min(options.pop("batch_size", max(64, data.spec.N // 100)), data.spec.N)
    chosen: dict[str, Any] = {
        "epochs": ceil(STEPS / ceil(data.spec.N / batch_size)),
        "optim": partial(torch.optim.Adam, lr=0.01),
        "samples": 8,
    } | options
    if "schedule" not in chosen:
        chosen["schedule"] = partial(CosineAnnealingLR, T_max=chosen["epochs"])
    guide = MeanFieldNormal(model, init_rho=init_rho)
    return fit(model, guide, data, batch_size=batch_size, seed=seed, **chosen)


def perceptron(features: int, hidden: Sequence[int], width: int) -> nn.Sequential:
    """The layers features -> hidden[0] -> ... -> width, with ReLU between them."""
    layers: list[nn.Module] = []
    for units in checks.counts("hidden", hidden):
        layers += [nn.Linear(features, units), nn.ReLU()]
        features = units
    return nn.Sequential(*layers, nn.Linear(features, width))


def table_likelihood(spec: Spec, noise: str = "learned") -> Likelihood:
    """Class labels; or values in the units of the table, with noise that starts at their whole spread."""
    checks.one_of("noise", noise, NOISE)
    if spec.task == "classification":
        return Categorical()
    learned = noise == "learned"
    return in_units(Normal(scale=1.0, learn_scale=True) if learned else HeteroscedasticNormal(), spec)


def table_prior(spec: Spec, last: str) -> Prior:
    r""":math:`N(0, g^2 / \text{fan-in})`, so that the size of a layer's outputs does not depend on its width.

    For values g = 1, and 0.7 in the last layer, whose parameters match the pattern `last`: hidden units are
    as large as the standardised inputs, and the function has half the variance of the standardised targets,
    besides its bias. For classes g = 8: under narrower priors the mean field, whose every weight is noisy,
    cannot be as sure of a class as most tables allow (`python -m experiments.studies.own_tables`).
    """
    if spec.task == "classification":
        return FanInNormal(gain=8.0)
    return PerParameter(default=FanInNormal(gain=1.0), where={last: FanInNormal(gain=0.7)})
