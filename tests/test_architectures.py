"""Forty architectures: each is fitted, predicts, is saved, loaded and exported, from one table."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from architectures import CASES, ROWS, Case
from pyrobbb import BayesianNetwork, Posterior, fit
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation import arviz_export
from pyrobbb.mean_field import MeanFieldNormal


def model_of(case: Case, seed: int) -> tuple[BayesianNetwork, MeanFieldNormal]:
    with isolated(seed):
        model = BayesianNetwork(case.make(), case.prior, case.likelihood())
        return model, MeanFieldNormal(model)


def data_of(case: Case) -> Dataset:
    x, y = case.rows()
    likelihood = case.likelihood()
    return Dataset("made", Split(x, y), Spec(ROWS, case.features, case.outputs, likelihood.task))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch, of some layers
@pytest.mark.parametrize("name", CASES)
def test_it_fits_predicts_is_kept_and_exported(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    data = data_of(case)
    model, guide = model_of(case, 0)
    optim = partial(torch.optim.Adam, lr=0.01)
    posterior = fit(
        model, guide, data, epochs=1, batch_size=3, optim=optim, seed=1, device="cpu", progress=None
    )
    assert math.isfinite(posterior.history.rows[-1].free_energy)
    loc, scale = guide.loc_and_scale()
    for site, start in model.initial().items():
        padding = model._padding.get(site)
        moved = (loc[site] != start) | (scale[site] != scale[site].flatten()[0])
        assert bool(moved.any()) or padding is not None, f"{site} was not trained"

    predict = partial(Posterior.predict, x=data.train.x, y=data.train.y, draws=3, sample=True)
    before = predict(posterior)
    assert before.log_likelihood.shape == (3, ROWS)
    assert bool(before.log_likelihood.isfinite().all())
    assert before.samples.shape == (3, *data.train.y.shape)

    posterior.save(tmp_path)
    after = predict(Posterior.load(tmp_path, *model_of(case, 9)))
    assert torch.equal(after.log_likelihood, before.log_likelihood)
    assert torch.equal(after.samples, before.samples)

    groups, _ = arviz_export.to_groups(posterior, data, draws=3, weights=5, observations=4)
    assert groups["posterior"]["weight"].shape == (1, 3, 5)
    assert groups["log_likelihood"]["y"].shape == (1, 3, 4)
    assert np.isfinite(groups["log_prior"]["weight"]).all()
