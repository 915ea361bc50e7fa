"""PSIS-LOO in one form, under both ArviZ generations; needs no torch."""

import numpy as np
import pytest

from paths import FILES
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.leave_one_out import compare, has_loo, loo, numbers

ROWS = 30


def tree_of(log_likelihood, y=0.0, **constant):
    """Of values (chains, draws, rows), and of `constant` arrays of the same rows."""
    draws = np.random.default_rng(1).normal(size=(*log_likelihood.shape[:2], 3))
    groups = {
        "posterior": {"weight": draws},
        "log_likelihood": {"y": log_likelihood},
        "observed_data": {"y": np.full(log_likelihood.shape[2], y)},
        "constant_data": constant,
    }
    dims = {"weight": ("parameter",), "y": ("row",), "training_row": ("row",), "x": ("row", "feature")}
    return arviz_io.to_arviz({name: each for name, each in groups.items() if each}, dims=dims)


def of_rows(tree):
    found = arviz_io.import_arviz().loo(tree, pointwise=True)
    return np.asarray(found.loo_i if arviz_io.ARVIZ_GENERATION == 0 else found.elpd_i)


def is_error_of(values, error):
    """Whether it is the standard error of their sum; the generations divide by n or by n - 1."""
    both = [np.sqrt(len(values)) * values.std(ddof=ddof) for ddof in (0, 1)]
    return any(error == pytest.approx(each, rel=1e-9) for each in both)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.parametrize("name", ["values", "classes"])
def test_loo_says_what_arviz_says(name):
    tree = arviz_io.load(FILES / f"exported_{name}.nc")
    found, own = numbers(loo(tree)), arviz_io.import_arviz().loo(tree, pointwise=True)
    elpd = own.elpd_loo if arviz_io.ARVIZ_GENERATION == 0 else own.elpd
    assert found["elpd"] == pytest.approx(float(elpd))
    assert found["k_bad"] == pytest.approx(np.mean(np.asarray(own.pareto_k) > own.good_k))
    assert found["k_limit"] == pytest.approx(own.good_k)


@pytest.mark.parametrize(
    ("chains", "draws", "there"), [(1, 1, False), (1, 24, False), (1, 25, True), (5, 5, True)]
)
def test_of_few_draws_there_is_none(chains, draws, there):
    tree = tree_of(np.random.default_rng(0).normal(size=(chains, draws, ROWS)))
    assert has_loo(tree) == there
    assert (loo(tree) is not None) == there


@pytest.mark.parametrize("draws", [1, 30], ids=["one draw", "a point"])
def test_draws_that_do_not_vary_have_none(draws):
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.normal(size=(1, 1, ROWS)), draws, axis=1)
    tree = tree_of(alike - arviz_io.UNTIED * rng.random(alike.shape))
    assert loo(tree) is None
    with pytest.raises(ValueError, match=r"at least 25 draws that differ; not so: \['point'\]"):
        compare({"many": tree_of(rng.normal(size=(1, 30, ROWS))), "point": tree})


def test_of_no_posterior_there_is_no_comparison():
    with pytest.raises(ValueError, match=r"posteriors must be one or more, .*; got none"):
        compare({})


def test_a_comparison_is_not_rounded():
    """The difference and its standard error are of the rows' own elpds (Vehtari et al. 2017, eq. 24)."""
    rng = np.random.default_rng(0)
    trees = {
        name: tree_of(-shift - 0.1 * rng.random((2, 200, ROWS)) - rng.random(ROWS))
        for name, shift in (("better", 1.0), ("worse", 3.0))
    }
    each = {name: of_rows(tree) for name, tree in trees.items()}
    table = compare(trees)
    assert list(table.index) == ["better", "worse"]
    for name, own in each.items():
        assert table.elpd[name] == pytest.approx(own.sum(), rel=1e-12)
        assert is_error_of(own, table.se[name])
    difference = each["better"] - each["worse"]
    assert table.elpd_diff["worse"] == pytest.approx(difference.sum(), rel=1e-9)
    assert is_error_of(difference, table.dse["worse"])
    assert table.weight.sum() == pytest.approx(1.0, rel=1e-6)


def test_posteriors_of_different_rows_are_not_compared():
    values = np.random.default_rng(0).normal(size=(2, 50, ROWS))
    with pytest.raises(ValueError, match="of the same rows, but the observed data of 'a' and 'c' differ"):
        compare({"a": tree_of(values), "b": tree_of(values), "c": tree_of(values, y=1.0)})
    first, other, same = (
        tree_of(values, training_row=np.arange(ROWS) + start, x=np.full((ROWS, 2), value))
        for start, value in ((0, 1.0), (1, 1.0), (0, 2.0))
    )
    with pytest.raises(ValueError, match="or their row numbers: export"):
        compare({"a": first, "b": other})
    assert len(compare({"a": first, "b": same})) == 2  # of other columns of the same rows
    assert len(compare({"a": first, "b": tree_of(values)})) == 2  # one does not know its rows' numbers
    assert len(compare({"a": tree_of(values), "b": first})) == 2
