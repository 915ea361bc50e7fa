"""The sections on predictions: exact numbers of the file, in the units of the table."""

import numpy as np
import pytest
import torch
import xarray as xr
from pyro import distributions as dist
from torch import nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, Posterior, likelihoods, priors
from pyrobbb.data import from_table
from pyrobbb.evaluation.arviz_export import to_arviz
from pyrobbb.report import predictions


@pytest.fixture
def exported():
    """One input, which a table holds in units of its own, and noise that is the same everywhere."""
    table = {"size": [20.0, 40.0, 60.0, 80.0, 100.0, 140.0], "price": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]}
    data = from_table(table, test=[4, 5])
    model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.Normal(0.5), 4)
    guide = MeanFieldNormal(model, init_rho=-30.0)
    guide()
    with torch.no_grad():
        guide.loc.fill_(2.0)
    return to_arviz(Posterior([(model, guide)], columns=data.columns), data, draws=3), data.test.x[:, 0]


def test_predictions_are_those_of_the_distribution_in_the_units_of_the_table(exported):
    data, x = exported
    band, _, widest = predictions.of_values(data)
    table = band.parts[0].table
    assert table.head[0] == "size"
    assert [row[0].value for row in table.rows] == pytest.approx([100, 140])
    half = float(dist.Normal(0.0, 0.5).icdf(torch.tensor(0.95)))
    found = {row[0].words: [cell.value for cell in row[2:]] for row in widest.parts[0].rows}
    for i, at in enumerate(x.tolist()):
        assert found[str(i)] == pytest.approx([2 * at, 0.5, 2 * half], rel=1e-5)


def test_test_rows_count_as_often_as_their_weights_say():
    random, counts = np.random.default_rng(0), np.arange(40) % 3
    draws, probs = random.normal(size=(1, 50, 40)), random.dirichlet([1, 1], 40)
    found = []
    for weights, rows in (({"row_weight": counts}, np.arange(40)), ({}, np.arange(40).repeat(counts))):
        test = weights | {"y": rows % 2, "predictive_entropy": rows, "x": np.zeros((len(rows), 2))}
        test = {name: xr.DataArray(values) for name, values in test.items()}
        classes = test | {"probs": xr.DataArray(probs[rows])}
        data = {"predictions": {"y": xr.DataArray(draws[..., rows])}, "predictions_constant_data": test}
        sections = predictions.of_classes(classes)[0], predictions.of_values(data)[0]
        shown = [[cell.words for cell in row] for one in sections for row in one.parts[0].table.rows]
        found.append([*shown, *(predictions.without_inputs(each, np.ones(1)) for each in (test, classes))])
    assert found[0] == found[1]


def test_a_file_without_them_is_said_to_be_old(exported):
    data, _ = exported
    del data["predictions_constant_data"]["predictive_quantile"]
    assert [(s.heading, s.words == predictions.OLD) for s in predictions.of_values(data)] == [
        ("Calibration", False),
        ("Predictions", True),
    ]
