"""ArviZ's plots as pictures, under both of its generations; needs no torch."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.image import imread

from paths import FILES
from pyrobbb.evaluation import arviz_io, arviz_plots
from pyrobbb.evaluation.arviz_plots import pictures
from pyrobbb.evaluation.leave_one_out import loo


@pytest.fixture(scope="module", params=["values", "classes"])
def tree(request):
    return arviz_io.load(FILES / f"exported_{request.param}.nc")


def test_three_pictures_and_nothing_left_behind(tree):
    before, open_figures = dict(matplotlib.rcParams), pyplot.get_fignums()
    np.random.seed(7)  # noqa: NPY002, the one that ArviZ seeds
    expected = np.random.RandomState(7).rand()
    drawn = pictures(tree, loo(tree))
    assert set(drawn) == {"forest", "ppc", "khat"}
    for png in drawn.values():
        pixels = imread(io.BytesIO(png), format="png")
        assert pixels[..., :3].std() > 0.05  # something is drawn
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == open_figures
    assert np.random.rand() == expected  # noqa: NPY002


def test_a_group_that_is_not_there_has_no_picture():
    tree = arviz_io.to_arviz(
        {"posterior": {"weight": np.random.default_rng(0).normal(size=(2, 20, 3))}},
        dims={"weight": ("parameter",)},
    )
    assert set(pictures(tree, loo(tree))) == {"forest"}


def test_what_arviz_cannot_draw_costs_no_other_picture(monkeypatch):
    def fail(data):
        raise np.linalg.LinAlgError("no density\nof values all alike")

    monkeypatch.setattr(arviz_plots, "_ppc", fail)
    y = np.zeros((1, 4, 2))
    tree = arviz_io.to_arviz(
        {"posterior": {"weight": y}, "posterior_predictive": {"y": y}, "observed_data": {"y": y[0, 0]}},
        dims={"weight": ("parameter",), "y": ("row",)},
    )
    drawn = pictures(tree)
    assert drawn["ppc"] == "no density"
    assert isinstance(drawn["forest"], bytes)
