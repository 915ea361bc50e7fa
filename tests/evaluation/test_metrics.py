from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from commands import interpreter
from pyrobbb.evaluation.metrics import classification_metrics, entropy, regression_metrics

# Two right (confidence 0.5 and 0.9), one wrong (0.6), one that gave its label 0.1
PROBS = np.array([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.1, 0.1, 0.8]])
LABELS = np.array([0, 0, 0, 1])


@st.composite
def distributions(draw, draws=None):
    """Rows of class probabilities, zeros and ones among them, with labels."""
    M, C = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    shape = (M, C) if draws is None else (draw(draws), M, C)
    raw = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 1e-9, 0.1, 1.0, 3.0])))
    raw[..., draw(st.integers(0, C - 1))] += 1.0
    y = draw(hnp.arrays(np.int64, M, elements=st.integers(0, C - 1)))
    return raw / raw.sum(-1, keepdims=True), y


def test_classification_by_hand():
    found = classification_metrics(PROBS, LABELS)
    assert found["error"] == 50.0
    assert found["nll"] == pytest.approx(-(log(0.5) + log(0.9) + log(0.4) + log(0.1)) / 4)
    brier = (0.25 + 0.09 + 0.04) + (0.01 + 0.01) + (0.36 + 0.36) + (0.01 + 0.81 + 0.64)
    assert found["brier"] == pytest.approx(brier / 4)
    # every example in its own bin: mean of |correct - confidence|
    assert found["ece"] == pytest.approx((0.5 + 0.1 + 0.6 + 0.8) / 4)
    assert all(type(value) is float for value in found.values())


def test_weights_count_as_rows_that_are_repeated():
    """Even the row whose label has the probability 0, which does not count."""
    counts, y = np.array([2, 0, 1, 3]), np.array([0.5, -1.0, 2.0, 0.0])
    found, expected = (
        classification_metrics(PROBS, LABELS, counts),
        classification_metrics(PROBS.repeat(counts, 0), LABELS.repeat(counts)),
    )
    assert found == pytest.approx(expected)
    density = np.where(counts > 0, y, -np.inf)
    of_values = regression_metrics(0 * y, density, y, counts)
    assert of_values == pytest.approx(regression_metrics(*3 * [y.repeat(counts)]) | {"rmse": 0.75**0.5})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], r"weights must have the shape \(4,\), got \(1,\)"),
        ([1, 1, -1, 1], "weights holds -1 in row 2, counted from 0; none may be negative"),
        ([0, 0, 0, 0], "weights: the weights are all 0"),
        ([1, 1, np.nan, 1], "weights holds 1 values that are not finite"),
    ],
)
def test_weights_that_count_no_rows_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        classification_metrics(PROBS, LABELS, weights)
    with pytest.raises(ValueError, match=message):
        regression_metrics(*3 * [np.zeros(4)], weights)


def test_calibration_error_averages_within_a_bin():
    """Ten predictions of 0.7 in one bin, seven right: calibrated; with four right, 0.3 off."""
    probs = np.tile([0.7, 0.3], (10, 1))
    assert classification_metrics(probs, np.array([0] * 7 + [1] * 3))["ece"] == pytest.approx(0, abs=1e-6)
    assert classification_metrics(probs, np.array([0] * 4 + [1] * 6))["ece"] == pytest.approx(0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_any_precision_give_what_numpy_gives(dtype):
    expected = classification_metrics(np.eye(3)[[0, 1, 1, 2]] * 0.25 + 0.25, LABELS)
    probs = torch.eye(3)[[0, 1, 1, 2]] * 0.25 + 0.25
    found = classification_metrics(probs.to(dtype).requires_grad_(), torch.tensor(LABELS, dtype=torch.int32))
    assert found == pytest.approx(expected, rel=1e-6)


def test_probability_zero_for_the_label_is_finite_and_dear():
    probs = np.array([[1.0, 0.0]], dtype=np.float32)
    assert classification_metrics(probs, np.array([1]))["nll"] == pytest.approx(87.336, abs=1e-3)


def test_read_only_and_strided_arrays_are_welcome():
    probs = PROBS[::-1]
    probs.flags.writeable = False
    assert classification_metrics(probs, LABELS[::-1])["error"] == 50.0


@settings(deadline=None)
@given(distributions())
def test_scores_stay_in_their_ranges(case):
    probs, y = case
    found = classification_metrics(probs, y)
    assert 0 <= found["error"] <= 100
    assert found["nll"] >= 0
    assert 0 <= found["brier"] <= 2 + 1e-12
    assert 0 <= found["ece"] <= 1 + 1e-6


@settings(deadline=None)
@given(distributions())
def test_a_perfect_prediction_scores_zero(case):
    probs, y = case
    certain = np.eye(probs.shape[1])[y]
    assert classification_metrics(certain, y) == {"error": 0.0, "nll": 0.0, "brier": 0.0, "ece": 0.0}


def test_entropy_is_safe_at_zero_and_highest_when_uniform():
    assert entropy(np.array([0.0, 1.0])).item() == 0
    assert entropy(torch.full((4, 10), 0.1)).tolist() == pytest.approx([log(10)] * 4)


def test_geometric_mean_of_the_harvard_tutorial_is_rejected():
    """exp(mean log p) sums to less than 1 as soon as two draws differ."""
    draws = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.5, 0.5]]])
    geometric = np.exp(np.log(draws).mean(0))
    with pytest.raises(ValueError, match=r"sum to 1 within 0.0001: 1 of 2 rows do not; row 0 has sum 0\.707"):
        classification_metrics(geometric, np.array([0, 1]))
    assert classification_metrics(draws.mean(0), np.array([0, 1]))["error"] <= 50


def test_rounding_beyond_one_is_taken_for_one():
    probs = np.array([[1.0 + 5e-5, 0.0], [0.3, 0.7]])
    found = classification_metrics(probs, np.array([0, 1]))
    assert found["ece"] == pytest.approx(0.15, abs=1e-4)


@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        (np.ones((2, 3)), [0, 1], "2 of 2 rows do not; row 0 has sum 3"),
        (np.array([[1.5, -0.5]]), [0], "minimum -0.5"),
        (np.array([[0.5, np.nan]]), [0], "1 of 1 rows do not"),
        (np.array([0.5, 0.5]), [0], r"probs must have shape \(M, C\), got \(2,\)"),
        (np.zeros((0, 3)), [], r"probs must have shape \(M, C\), got \(0, 3\)"),
        (np.ones((2, 1)), [0, 0], "at least 2 classes"),
        (np.eye(2, dtype=int), [0, 1], "floating-point"),
        (np.eye(3), [0, 1], "y must hold 3 whole-number labels"),
        (np.eye(3), [0.0, 1.0, 1.5], "y must hold 3 whole-number labels"),
        (np.eye(3), [0.0, 1.0, np.nan], "y must hold 3 whole-number labels"),
        (np.eye(3), [0, 1, 3], r"y must lie in 0\.\.2 for 3 classes, got 0\.\.3"),
        (np.eye(3), [0, 1, -1], r"got -1\.\.1"),
        (np.eye(2), ["no", "yes"], "values must be numbers, got .*no.*numbered from 0"),
    ],
)
def test_bad_classification_input(probs, y, message):
    with pytest.raises(ValueError, match=message):
        classification_metrics(probs, np.array(y))


def test_masked_values_are_refused_and_a_mask_of_none_is_not():
    y = np.ma.masked_equal([0, 1], 1)
    with pytest.raises(ValueError, match="the array holds masked values; fill them, or leave their rows out"):
        classification_metrics(np.eye(2), y)
    assert classification_metrics(np.eye(2), np.ma.masked_equal([0, 1], 2))["error"] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8])
def test_labels_are_whole_numbers_of_any_type(dtype):
    labels = torch.tensor(LABELS).to(dtype)
    assert classification_metrics(PROBS, labels) == classification_metrics(PROBS, LABELS)


def test_regression_by_hand():
    found = regression_metrics(np.array([1.0, 2.0]), np.array([-1.0, -3.0]), np.array([1.0, 4.0]))
    assert found == {"rmse": pytest.approx(2**0.5), "nll": pytest.approx(2.0)}
    two_outputs = regression_metrics(
        torch.zeros(2, 2), torch.zeros(2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    )
    assert two_outputs["rmse"] == pytest.approx(2.5)
    assert str(two_outputs["nll"]) == "0.0"


@pytest.mark.parametrize(
    ("mean", "log_density", "y", "message"),
    [
        (np.zeros((3, 1)), np.zeros(3), np.zeros(3), r"must share a shape .*\(3, 1\), \(3,\)"),
        (np.zeros(3), np.zeros((3, 1)), np.zeros(3), r"log_density must have shape \(3,\), got \(3, 1\)"),
        (np.zeros(0), np.zeros(0), np.zeros(0), "must share a shape"),
        (np.zeros(2), np.array([0.0, np.inf]), np.zeros(2), "log_density has 1 values that are not finite"),
    ],
)
def test_bad_regression_input(mean, log_density, y, message):
    with pytest.raises(ValueError, match=message):
        regression_metrics(mean, log_density, y)


def test_importing_metrics_imports_neither_matplotlib_nor_torchvision():
    heavy = "{'matplotlib', 'torchvision'}"
    code = f"import sys, pyrobbb.evaluation.metrics; print({heavy} & set(sys.modules))"
    assert interpreter("-c", code).stdout.strip() == "set()"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_in_half_precision_sum_to_one_as_nearly_as_they_can(dtype) -> None:
    torch.manual_seed(0)
    probs, y = torch.randn(1000, 10).softmax(1), torch.randint(10, (1000,))
    exact, found = classification_metrics(probs, y), classification_metrics(probs.to(dtype), y)
    assert found["nll"] == pytest.approx(exact["nll"], abs=0.01)
    with pytest.raises(ValueError, match="sum to 1 within"):
        classification_metrics((1.1 * probs).to(dtype), y)
