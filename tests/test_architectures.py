"""Forty architectures: each is fitted, predicts, is saved, loaded and exported, from one table."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from architectures import CASES, ROWS, Case
from engine_fakes import classes
from pyrobbb import BayesianNetwork, Posterior, fit, likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation import arviz_export
from pyrobbb.evaluation.export import exported
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


class Graph(nn.Module):
    """Layers on three nodes, whose edges are a buffer, and an attribute in no `state_dict`."""

    def __init__(self, edges: Tensor, more: Tensor) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.more = more
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first((self.more @ (self.edges @ x.mT)).mT).tanh())


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_matrices_do_what_dense_ones_do(layout: torch.layout, tmp_path: Path) -> None:
    edges, data = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), classes()

    def model(edges: Tensor, more: Tensor) -> BayesianNetwork:
        with isolated(0):
            return BayesianNetwork(Graph(edges, more), priors.Normal(), likelihoods.Categorical())

    def fitted(*edges: Tensor, **options: Any) -> Posterior:
        options = {"epochs": 2, "seed": 1, "device": "cpu", "progress": None} | options
        return fit(model(*edges), MeanFieldNormal, data, **options)

    sparse = edges.to_sparse(layout=layout)
    posterior = fitted(sparse, sparse, folder=tmp_path)
    predict = partial(Posterior.predict, x=data.train.x, draws=3)
    found = predict(posterior).probs
    torch.testing.assert_close(found, predict(fitted(edges, edges)).probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(exported(posterior, draws=3, average=True)(data.train.x), found)

    assert predict(fitted(sparse, sparse, folder=tmp_path, epochs=3)).probs.isfinite().all()  # resumed
    with pytest.raises(CheckpointError, match="other values of the tensor network"):
        fitted(2 * sparse, sparse, folder=tmp_path, epochs=4)
    posterior.save(tmp_path)
    assert torch.equal(predict(Posterior.load(tmp_path, model(sparse, sparse), MeanFieldNormal)).probs, found)
    with pytest.raises(CheckpointError, match="other values of the tensor 'more'"):
        Posterior.load(tmp_path, model(sparse, 2 * sparse), MeanFieldNormal)
