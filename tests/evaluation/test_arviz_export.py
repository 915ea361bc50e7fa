"""What of a posterior goes to ArviZ: the chosen weights, and log-likelihoods that az.loo can work on."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from engine_fakes import classes, classifier, normal
from pyrobbb import fit, likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.evaluation import arviz_export as export
from pyrobbb.evaluation import arviz_io
from pyrobbb.mean_field import MeanFieldNormal


@pytest.fixture(scope="module")
def sure():
    """A network that is certain of nearly every datum: its log-likelihoods are 0 in single precision."""
    y = torch.arange(200) % 3
    towards = torch.stack([(y * 2 * math.pi / 3).cos(), (y * 2 * math.pi / 3).sin()], -1)
    x = 30 * towards + normal(200, 2)
    x[:20] /= 60  # between the classes
    data = from_arrays(x, y, task="classification")
    net = nn.Linear(2, 3)
    with torch.no_grad():
        net.weight.copy_(towards[:3])
        net.bias.zero_()
    model = BayesianNetwork(net, priors.Normal(sigma=30.0), likelihoods.Categorical(), 200)
    return fit(model, MeanFieldNormal(model), data, epochs=20, device="cpu", seed=0), data


def test_loo_is_finite_for_a_sure_posterior(sure):
    posterior, data = sure
    tree = export.to_arviz(posterior, data, draws=100, observations=100)
    values = tree["log_likelihood"]["y"].values
    assert (np.abs(values) < 1e-8).all(-2).any()  # else the test shows nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some Pareto k are large is not the question
        elpd = arviz_io.import_arviz().loo(tree)
    total = float(getattr(elpd, "elpd_loo", getattr(elpd, "elpd", np.nan)))
    assert np.isfinite(total)
    assert total == pytest.approx(float(values.mean((0, 1)).sum()), rel=1e-3)


def test_ties_are_broken_by_less_than_a_billionth():
    tied = np.zeros((1, 50, 3), dtype=np.float32)
    untied = export._untied(tied)
    assert len(np.unique(untied)) == untied.size
    assert np.abs(untied - tied).max() <= 1e-9


@pytest.mark.parametrize(
    ("names", "count"), [(5, 5), (10**6, 31), (["*.bias"], 7), (["0.weight[1,2]", "2.bias"], 4)]
)
def test_weights_are_chosen_by_number_or_name(names, count):
    model, _ = classifier(classes())
    chosen = export.WeightSelection(model, names)
    picked = chosen.pick(model.initial())
    assert len(chosen.labels) == len(picked) == len(set(chosen.labels)) == count
    for label, value in zip(chosen.labels, picked.tolist(), strict=True):
        site, _, index = label.rstrip("]").partition("[")
        assert model.initial()[site][tuple(int(i) for i in index.split(","))] == value


@pytest.mark.parametrize("name", ["3.weight", "0.weight[9,9]", "0.weight[a]", "nothing*"])
def test_a_name_that_fits_no_weight_is_refused(name):
    model, _ = classifier(classes())
    with pytest.raises(ValueError, match=r"not a weight|matches no weight"):
        export.WeightSelection(model, [name])


@pytest.mark.parametrize(("largest", "kind"), [(300, np.int16), (40_000, np.int32)])
def test_class_numbers_are_kept_whatever_their_size(largest, kind):
    column = export._column(torch.tensor([0, largest]))
    assert column.dtype == kind
    assert column.tolist() == [0, largest]
