"""Of several models of a table the best, by held-out rows or by the free energy."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import ceil, isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from pyrobbb._support.device import threads
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Split
from pyrobbb.data.tables import TableData
from pyrobbb.evaluation.metrics import row_mean
from pyrobbb.inference import SVI
from pyrobbb.posterior import Posterior
from pyrobbb.priors import Prior
from pyrobbb.tabular.model import TableModel
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.history import final_mean
from pyrobbb.training.inputs import training_rows
from pyrobbb.training.progress import Guarded
from pyrobbb.training.trainer import fit

STEPS = 4000
SMALL = 2**18  # numbers in a layer's output, up to which one thread is no slower than two
DRAWS = 200  # of the weights, to compare them with
HELD = 5  # one row in so many, drawn at random, is held back to choose by


def chosen(
    several: Sequence[TableModel],
    noises: Sequence[str],
    data: TableData,
    prior: Prior | None,
    seed: int,
    folder: Path | None,
    **options: Any,
) -> tuple[TableModel, Posterior]:
    """The model under which held-out rows are likeliest, with the noise of the lowest free energy, fitted."""
    model, posterior, callbacks = several[0], None, options.get("callbacks", ())
    part = data
    if len(several) > 1:
        _, held = training_rows(data, options.get("validation"))
        if held is None:
            part, held = _held_back(data, seed)
        tried = {f"held-out/{each.name}": each for each in several}
        name, posterior, callbacks = _best(
            tried, part, partial(_loss, held=held), prior, seed, folder, **options
        )
        model = tried[name]
    if len(noises) > 1:
        tried = {each: replace(model, noise=each) for each in noises}
        name, posterior, callbacks = _best(tried, data, _free_energy, prior, seed, folder, **options)
        model = tried[name]
    elif posterior is None or part is not data:
        return model, _fit(model, data, prior, seed, folder=folder, **options)
    for callback, copied in zip(options.get("callbacks", ()), callbacks, strict=True):
        callback.adopt(copied)  # what it holds goes to the one that was given
    return model, posterior


def _held_back(data: TableData, seed: int) -> tuple[TableData, Split]:
    """The table without one training row in `HELD`, drawn at random, and those rows."""
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    rows = order.to(data.train.x.device).tensor_split([max(1, len(order) // HELD)])
    part = replace(data, train=data.train.take(rows[1]))
    return replace(part, spec=replace(data.spec, N=len(part.train))), data.train.take(rows[0])


def _best(
    several: Mapping[str, TableModel],
    data: TableData,
    loss: Callable[[Posterior], float],
    prior: Prior | None,
    seed: int,
    folder: Path | None,
    **options: Any,
) -> tuple[str, Posterior, Sequence[Callback]]:
    """Of several models, fitted to `data`, the name of that with the lowest loss, its fit, and its callbacks.

    Each fit has a folder of its own, of the model's name.
    """
    found = []
    show = Guarded.of(options.get("progress", True))
    for count, (name, model) in enumerate(several.items(), 1):
        show.log(f"fit {count} of {len(several)}: {name}")
        callbacks = [c.for_fit(name) if isinstance(c, Callback) else c for c in options.get("callbacks", ())]
        model, inside = replace(model, spec=data.spec), None if folder is None else folder / name
        posterior = _fit(model, data, prior, seed, folder=inside, **options | {"callbacks": callbacks})
        found.append((loss(posterior), name, posterior, callbacks))
    _, name, posterior, callbacks = min(found, key=lambda one: (isnan(one[0]), one[0]))
    show.log(f"kept: {name}" + ", now fitted to all rows" * (data.spec.N < several[name].spec.N))
    return name, posterior, callbacks


def _loss(posterior: Posterior, held: Split) -> float:
    """Minus the mean log-likelihood of rows, each as often as it counts."""
    return -row_mean(posterior.predict(held.x, held.y, draws=DRAWS).log_predictive, held.weights)


def _free_energy(posterior: Posterior) -> float:
    """In nats per row, the mean over the chains."""
    return fmean(final_mean(history.rows) for history in posterior.histories)


def _fit(model: TableModel, data: TableData, prior: Prior | None, seed: int, **options: Any) -> Posterior:
    batch_size = min(options.pop("batch_size", None) or max(64, data.spec.N // 100), data.spec.N)
    settings: dict[str, Any] = {
        "epochs": ceil(STEPS / ceil(data.spec.N / batch_size)),
        "optim": partial(torch.optim.Adam, lr=0.01),
    } | options
    guide = None
    if isinstance(settings.get("inference") or SVI(), SVI):
        guide = model.guide
        settings.setdefault("samples", 8)
    if "schedule" not in settings:
        settings["schedule"] = partial(CosineAnnealingLR, T_max=settings["epochs"])
    small = batch_size * max(model.hidden, default=1) * settings.get("samples", 1) <= SMALL
    # torch's threads wait for each other, most of all where other programs run; isolated, as their number
    # belongs to the whole process
    with isolated(), threads(1) if small and data.train.x.device.type == "cpu" else nullcontext():
        return fit(lambda: model.made(prior), guide, data, batch_size=batch_size, seed=seed, **settings)
