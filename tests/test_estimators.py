"""scikit-learn's own checks, and what they do not ask: weights, units, text, the posterior."""

import pickle
from functools import partial

import numpy as np
import pandas
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyrobbb.estimators import BayesianClassifier, BayesianRegressor
from pyrobbb.likelihoods import HeteroscedasticNormal
from pyrobbb.priors import FanInNormal

QUICK = {"fast": "eager", "samples": 1, "optim": partial(torch.optim.Adam, lr=0.05)}
SMALL = {"hidden": (10,), "epochs": 10, "draws": 10, "options": QUICK}
REGRESSOR = BayesianRegressor(noise="learned", **SMALL)
CLASSIFIER = BayesianClassifier(prior=FanInNormal(gain=4.0), **SMALL)
NOT_HELD = {
    "check_sample_weight_equivalence_on_dense_data": (
        "weights count in the likelihood alone, columns are standardised without them, and a fit with "
        "weights draws its noise in another order than one without"
    )
}

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 2))
Y = X @ np.array([2.0, -1.0]) + 0.1 * RNG.standard_normal(40)
LABELS = np.where(Y > 0, "up", "down")


@parametrize_with_checks([REGRESSOR, CLASSIFIER], expected_failed_checks=lambda _: NOT_HELD)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


def test_values_and_their_deviations_are_those_of_the_posterior_in_y_s_units():
    for y in (1000 + 50 * Y, np.stack([Y, 1000 + 50 * Y], axis=1)):
        fitted = clone(REGRESSOR).set_params(random_state=1, epochs=100).fit(X, y)
        mean, std = fitted.predict(X, return_std=True)
        assert mean.shape == std.shape == y.shape
        prediction = fitted.posterior_.predict(fitted.columns_.inputs(X), draws=10)
        np.testing.assert_array_equal(mean, prediction.mean.numpy().reshape(y.shape))
        np.testing.assert_allclose(std**2, prediction.variance.numpy().reshape(y.shape))
        np.testing.assert_array_equal(mean, fitted.predict(X))
        assert fitted.score(X, y) > 0.5


def test_a_row_weighs_as_if_it_were_there_so_often():
    """All rows twice, or with weight two; a row of weight zero, or none."""
    weights = np.where(np.arange(40) < 30, 1.0, 0.0)
    for estimator, y in ((REGRESSOR, Y), (CLASSIFIER, LABELS)):
        predict = "predict" if y is Y else "predict_proba"

        def found(x, y, weights, estimator=estimator, predict=predict):
            fitted = clone(estimator).set_params(random_state=1).fit(x, y, sample_weight=weights)
            return getattr(fitted, predict)(X)

        once = found(X[:30], y[:30], np.ones(30))
        twice = found(np.tile(X[:30], (2, 1)), np.tile(y[:30], 2), np.ones(60))
        np.testing.assert_array_equal(found(X, y, weights), once)
        np.testing.assert_allclose(found(X, y, 2 * weights), twice, rtol=1e-6)
        assert not np.allclose(once, twice, rtol=1e-3)  # both tell something
        with pytest.raises(ValueError, match=r"non-zero|empty"):
            found(X, y, 0 * weights)


def test_a_regressor_has_the_noise_and_the_networks_that_are_named():
    fitted = clone(REGRESSOR).set_params(noise=["heteroscedastic"], hidden=[(), (3,)], epochs=1).fit(X, Y)
    assert isinstance(fitted.posterior_.model.likelihood.likelihood, HeteroscedasticNormal)
    assert len(fitted.posterior_.model.network) in (1, 3)
    with pytest.raises(ValueError, match=r"hidden\[0\] must be a whole number of at least 1, got '50'"):
        clone(REGRESSOR).set_params(hidden=["50"]).fit(X, Y)


def test_text_and_missing_values():
    town = np.array(["Ulm", "Bonn", None, "Hof"] * 10, dtype=object)
    table = np.column_stack([X.astype(object), town])
    table[3, 0] = None
    fitted = clone(CLASSIFIER).fit(table, LABELS)
    assert len(fitted.columns_.kinds) == 3
    assert fitted.posterior_.model.network[0].in_features == 7  # two numbers, one lacking; four categories
    np.testing.assert_allclose(fitted.predict_proba(table[:5]).sum(axis=1), 1)


def test_masked_numbers_are_missing_and_masked_targets_and_weights_are_refused():
    lacking = np.arange(80).reshape(40, 2) % 3 == 0  # in both columns
    masked = np.ma.array(np.where(lacking, -9999, X), mask=lacking)
    missing = masked.filled(np.nan)
    fitted = clone(REGRESSOR).fit(masked, Y)
    assert fitted.columns_ == clone(REGRESSOR).fit(missing, Y).columns_
    np.testing.assert_array_equal(fitted.predict(masked), fitted.predict(missing))
    for name, given in {"y": (masked[:, 0],), "sample_weight": (Y, masked[:, 0])}.items():
        with pytest.raises(ValueError, match=f"{name} holds masked values; fill them, or leave their rows"):
            clone(REGRESSOR).fit(X, *given)


def test_the_posterior_takes_rows_by_the_names_of_the_columns():
    """Of which one may be called as the target is elsewhere."""
    rows = pandas.DataFrame({"y": X[:, 0], "year": X[:, 1], "town": ["Ulm", "Bonn", None, "Hof"] * 10})
    fitted = clone(REGRESSOR).fit(rows, Y)
    expected = fitted.predict(rows)
    assert [kind.name for kind in fitted.columns_.kinds] == ["y", "year", "town"]
    for same in (rows, rows[["town", "year", "y"]], rows.to_dict("list")):
        np.testing.assert_array_equal(fitted.posterior_.predict(same, draws=10).mean[:, 0], expected)


@pytest.mark.parametrize(
    ("name", "instead"), [("seed", "random_state"), ("hidden", "hidden"), ("epochs", "epochs")]
)
def test_options_that_are_arguments_are_named(name, instead):
    with pytest.raises(ValueError, match=f"options holds '{name}': pass {instead}= to the estimator itself"):
        clone(CLASSIFIER).set_params(options={name: 3}).fit(X, LABELS)


def test_a_classifier_has_no_noise():
    with pytest.raises(ValueError, match="noise='learned' is for values, but the target is a class"):
        clone(CLASSIFIER).set_params(options={"noise": "learned"}).fit(X, LABELS)


def test_options_that_are_no_mapping_are_refused():
    with pytest.raises(ValueError, match=r"options must be a Mapping or nothing, got \['epochs'\]"):
        clone(CLASSIFIER).set_params(options=["epochs"]).fit(X, LABELS)


def test_a_fit_can_be_pickled_searched_and_repeated():
    search = GridSearchCV(clone(CLASSIFIER).set_params(random_state=1), {"hidden": [(2,), (10, 5)]}, cv=2)
    best = search.fit(X, LABELS).best_estimator_
    for same in (pickle.loads(pickle.dumps(best)), clone(best).fit(X, LABELS)):
        np.testing.assert_array_equal(same.predict_proba(X), best.predict_proba(X))
    assert set(best.classes_) == {"up", "down"}


def test_a_class_whose_rows_all_weigh_nothing_is_no_class():
    three = np.where(np.arange(40) % 3 == 0, "absent", LABELS)
    longer = clone(CLASSIFIER).set_params(epochs=60, random_state=0)
    fitted = longer.fit(X, three, sample_weight=(three != "absent").astype(float))
    assert list(fitted.classes_) == ["down", "up"]
    assert fitted.predict_proba(X).shape == (40, 2)
    assert (fitted.predict(X) == LABELS).mean() > 0.8


def test_a_data_frame_keeps_the_kinds_of_its_columns():
    """An array of them all has none: categories that are numbers became one input, and truth values too."""
    code = pandas.Categorical(np.arange(40) % 4)
    rows = pandas.DataFrame({"code": code, "x": X[:, 0], "b": X[:, 1] > 0})
    fitted = clone(REGRESSOR).fit(rows, Y, sample_weight=np.arange(40.0))
    kinds = [type(kind).__name__ for kind in fitted.columns_.kinds]
    assert kinds == ["Categorical", "Numeric", "Categorical"]
    found = fitted.posterior_.predict(rows, draws=10).mean[:, 0]
    np.testing.assert_array_equal(found, fitted.predict(rows))
    with pytest.raises(
        ValueError, match=r"column 'd' holds values of type Timestamp.*turn dates into numbers"
    ):
        clone(REGRESSOR).fit(rows.assign(d=pandas.Timestamp("2020-01-01")), Y)


def test_the_posterior_knows_the_labels_that_fit_was_given():
    fitted = clone(CLASSIFIER).fit(X, LABELS)
    prediction = fitted.posterior_.predict(X, LABELS, draws=10)
    assert prediction.metrics(LABELS)["error"] == pytest.approx(100 * (1 - fitted.score(X, LABELS)))


def test_columns_with_numbers_for_names_are_taken_by_place():
    rows = pandas.DataFrame(X, columns=[1, 0])
    fitted = clone(REGRESSOR).fit(rows, Y)
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict(rows))
    np.testing.assert_array_equal(fitted.posterior_.predict(rows, draws=10).mean[:, 0], fitted.predict(rows))


def test_columns_of_one_name_are_refused():
    for names in (["a", "a"], [1, "1"]):
        rows = pandas.DataFrame(X, columns=names)
        with pytest.raises(ValueError, match=f"X has two columns called '{names[0]}'"):
            clone(REGRESSOR).fit(rows, Y)


def test_in_rows_that_are_lists_numbers_beside_text_stay_numbers():
    fitted = clone(REGRESSOR).fit([[x, label] for x, label in zip(X[:, 0].tolist(), LABELS, strict=True)], Y)
    assert [type(kind).__name__ for kind in fitted.columns_.kinds] == ["Numeric", "Categorical"]


def test_labels_may_be_whole_numbers_of_any_size():
    large = 2**60 + (Y > 0).astype(np.int64)
    fitted = clone(CLASSIFIER).fit(X, large)
    assert fitted.columns_.classes == (str(2**60), str(2**60 + 1))
    assert set(fitted.predict(X)) <= set(large)


@pytest.mark.parametrize(
    ("label", "message"),
    [("", "label '', which is a missing value"), (" up", "labels ' up' and 'up', which are both 'up'")],
)
def test_labels_that_a_table_cannot_tell_apart_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        clone(CLASSIFIER).fit(X, np.where(np.arange(40) < 3, label, LABELS))


def test_a_column_without_a_value_in_one_fold_does_not_end_the_search():
    sparse = np.array([None] * 20 + ["a", "b"] * 10, dtype=object)
    table = np.column_stack([X.astype(object), sparse])
    scores = cross_val_score(REGRESSOR, table, Y, cv=KFold(2), error_score="raise")
    assert len(scores) == 2


def test_a_single_class_is_named():
    with pytest.raises(ValueError, match="y has one class, 'up'"):
        clone(CLASSIFIER).fit(X, np.full(40, "up"))
