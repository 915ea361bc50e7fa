"""ArviZ's plots as pictures, under both of its generations; needs no torch."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.image import imread

from paths import FILES
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.arviz_plots import loo, numbers, pictures


@pytest.fixture(scope="module", params=["values", "classes"])
def tree(request):
    return arviz_io.load(FILES / f"exported_{request.param}.nc")


def test_three_pictures_and_nothing_left_behind(tree):
    before, open_figures = dict(matplotlib.rcParams), pyplot.get_fignums()
    drawn = pictures(tree, loo(tree))
    assert set(drawn) == {"forest", "ppc", "khat"}
    for png in drawn.values():
        pixels = imread(io.BytesIO(png), format="png")
        assert pixels[..., :3].std() > 0.05  # something is drawn
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == open_figures


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_loo_says_what_arviz_says(tree):
    found, own = numbers(loo(tree)), arviz_io.import_arviz().loo(tree, pointwise=True)
    elpd = own.elpd_loo if arviz_io.ARVIZ_GENERATION == 0 else own.elpd
    assert found["elpd"] == pytest.approx(float(elpd))
    assert found["k_bad"] == pytest.approx(np.mean(np.asarray(own.pareto_k) > 0.7))


def test_a_group_that_is_not_there_has_no_picture():
    tree = arviz_io.to_arviz(
        {"posterior": {"weight": np.random.default_rng(0).normal(size=(2, 20, 3))}},
        dims={"weight": ("parameter",)},
    )
    assert set(pictures(tree, loo(tree))) == {"forest"}


@pytest.mark.parametrize(("draws", "there"), [(1, False), (24, False), (25, True)])
def test_of_few_draws_there_is_no_loo(draws, there):
    rng = np.random.default_rng(0)
    tree = arviz_io.to_arviz(
        {
            "posterior": {"weight": rng.normal(size=(1, draws, 3))},
            "log_likelihood": {"y": rng.normal(size=(1, draws, 30))},
        },
        dims={"weight": ("parameter",), "y": ("row",)},
    )
    assert (loo(tree) is not None) == there


@pytest.mark.parametrize("draws", [1, 30], ids=["one draw", "a point"])
def test_draws_that_do_not_vary_have_no_loo_and_no_picture_of_it(draws):
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.normal(size=(1, 1, 30)), draws, axis=1) - 1e-9 * rng.random((1, draws, 30))
    tree = arviz_io.to_arviz(
        {"posterior": {"weight": rng.normal(size=(1, draws, 3))}, "log_likelihood": {"y": alike}},
        dims={"weight": ("parameter",), "y": ("row",)},
    )
    assert loo(tree) is None
    assert set(pictures(tree)) == {"forest"}
