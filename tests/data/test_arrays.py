"""A user's own arrays, each of their possible faults, and the made data."""

import math
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, Posterior, fit, fit_table, likelihoods
from pyrobbb.data import Blobs, Dataset, NoisySine, PaperCurve, from_arrays, from_table
from pyrobbb.evaluation.conformal import calibrate

X = np.arange(12.0).reshape(6, 2)
LABELS = np.array([0, 1, 2, 0, 1, 2])
GRID = np.array([[0, 0, 0]] * 2 + [[0, -1, 0]] * 4)  # several labels in a row
REAL = np.linspace(0, 1, 6)


def classify(x: Any = X, y: Any = LABELS, **more: Any) -> Dataset:
    return from_arrays(x, y, **{"task": "classification", **more})


def regress(x: Any = X, y: Any = REAL, **more: Any) -> Dataset:
    return from_arrays(x, y, **{"task": "regression", **more})


def test_classification() -> None:
    data = classify(validation=(X[:2], LABELS[:2]), test=(X[2:5], LABELS[2:5]), name="mine")
    assert (data.name, data.spec.N, data.spec.features, data.spec.outputs) == ("mine", 6, (2,), 3)
    assert data.spec.task == "classification"
    assert data.validation is not None
    assert data.test is not None
    assert [len(split) for split in (data.train, data.validation, data.test)] == [6, 2, 3]
    assert (data.train.x.dtype, data.train.y.dtype) == (torch.float32, torch.int64)
    assert data.train.x.tolist() == X.tolist()
    assert data.test.y.tolist() == [2, 0, 1]


@pytest.mark.parametrize(("y", "outputs"), [(REAL, 1), (REAL[:, None], 1), (X, 2)])
def test_regression(y: np.ndarray, outputs: int) -> None:
    data = regress(y=y, validation=(X[:2], y[:2]))
    assert (data.spec.outputs, data.spec.task) == (outputs, "regression")
    assert (data.train.y.shape, data.train.y.dtype) == ((6, outputs), torch.float32)
    assert data.validation is not None
    assert data.validation.y.shape == (2, outputs)
    np.testing.assert_allclose(data.train.y.numpy(), y.reshape(6, outputs), rtol=1e-6)


def test_a_data_set_prints_its_shapes_not_its_numbers() -> None:
    data = from_arrays(torch.zeros(5, 3), torch.zeros(5, 1), task="regression", weights=torch.ones(5))
    assert "Split(x=(5, 3), y=(5, 1), weights=(5,))" in repr(data)
    assert "tensor" not in repr(data)


def test_rows_are_held_back_as_of_a_table() -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20.0)
    kept = {"validation": [3, 5], "test": 0.25, "split_seed": 7}
    data = from_arrays(x, y, task="regression", weights=np.arange(1.0, 21.0), **kept)
    rows = from_table(np.c_[x, y], task="regression", **kept)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(data, part).y, getattr(rows, part).y)
        assert torch.equal(getattr(data, part).x[:, 0], 2 * getattr(data, part).y[:, 0])
    assert data.spec.N == len(data.train) == 13
    for part in (data.train, data.validation, data.test):
        assert torch.equal(part.weights, part.y[:, 0] + 1)
    assert regress(weights=np.ones(6), test=(X, REAL)).test.weights is None
    assert regress(test=0.0, validation=[]).test is None
    assert len(regress(test=np.float32(0.5)).test) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_share_is_drawn_from_the_rows_that_no_list_names(seed: int) -> None:
    """A row in both would be found for most seeds: 5 of the 20 rows are drawn, 8 are named."""
    x = np.arange(20.0)
    data = from_arrays(x[:, None], x, task="regression", test=0.25, validation=range(8), split_seed=seed)
    assert data.validation.y.flatten().tolist() == list(range(8))
    assert (len(data.test), len(data.train)) == (5, 7)
    assert float(data.test.y.min()) >= 8


def test_images_keep_their_shape() -> None:
    assert classify(np.zeros((6, 1, 5, 4))).spec.features == (1, 5, 4)


def test_classes_may_be_more_than_the_training_labels_show() -> None:
    assert classify(classes=5, test=(X, LABELS + 2)).spec.outputs == 5
    assert classify(y=LABELS + 1, classes=4).spec.outputs == 4


@pytest.mark.parametrize(
    "kind", ["bool", "u1", "u2", "u8", "i1", ">i4", "i8", "f2", ">f4", ">f8", "longdouble"]
)
def test_every_real_kind_of_inputs(kind: str) -> None:
    x = np.array([[0, 1], [1, 1], [0, 0]]).astype(kind)
    train = classify(x, LABELS[:3]).train
    assert train.x.dtype == torch.float32
    assert train.x.tolist() == [[0, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize("kind", ["bool", "u1", "u8", "i1", ">i4", "i8"])
def test_every_integer_kind_of_labels(kind: str) -> None:
    y = np.array([0, 1, 1, 0, 0, 1]).astype(kind)
    assert classify(y=y).train.y.tolist() == [0, 1, 1, 0, 0, 1]


@settings(deadline=None)
@given(
    hnp.arrays(
        st.sampled_from(["f4", ">f4", "f8", "i2", "u1"]).map(np.dtype),
        hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=4),
        elements={"min_value": 0, "max_value": 100},
    ),
    st.booleans(),
)
def test_numpy_and_torch_give_the_same(x: np.ndarray, backwards: bool) -> None:
    x = x[::-1] if backwards else x
    y = np.arange(len(x))
    from_numpy = classify(x, y)
    native = np.ascontiguousarray(x).astype(x.dtype.newbyteorder("="))
    from_torch = classify(torch.tensor(native), torch.tensor(y))
    assert torch.equal(from_numpy.train.x, from_torch.train.x)
    assert from_numpy.spec == from_torch.spec
    np.testing.assert_array_equal(from_numpy.train.x.numpy(), x.astype(np.float32))


def test_lists_are_arrays_too() -> None:
    assert classify([[1, 2.5], [3, 4]], [0, 1]).train.x.tolist() == [[1, 2.5], [3, 4]]


def test_float64_when_asked() -> None:
    data = regress(dtype=torch.float64)
    assert data.train.x.dtype == data.train.y.dtype == torch.float64
    np.testing.assert_array_equal(data.train.y[:, 0].numpy(), REAL)


@pytest.mark.parametrize("tensors", [False, True])
def test_the_values_are_copied(tensors: bool) -> None:
    x, y = X.astype(np.float32), REAL.astype(np.float32)
    data = regress(torch.from_numpy(x) if tensors else x, torch.from_numpy(y) if tensors else y)
    x += 1
    y += 1
    assert data.train.x.tolist() == X.tolist()
    assert float(data.train.y[0, 0]) == 0


def test_read_only_arrays_and_graphs_are_taken_as_values() -> None:
    x = X.copy()
    x.flags.writeable = False
    assert classify(x).train.x.tolist() == X.tolist()
    assert not regress(torch.tensor(X, requires_grad=True)).train.x.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_takes_standardised_targets(dtype: torch.dtype) -> None:
    y = np.linspace(-2, 2, 6)
    assert torch.equal(regress(y=y, dtype=dtype).train.y[:, 0], torch.tensor(y).to(dtype))
    with pytest.raises(ValueError, match="rounds away the differences between its values"):
        regress(y=y + 1000, dtype=dtype)


def holed(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[3:5] = value
    return array


FAULTS: list[tuple[Any, str]] = [
    (
        lambda: classify(holed(X, math.nan)),
        r"^x holds 4 values that are not finite, the first \(nan\) in row 3, column 0$",
    ),
    (
        lambda: classify(holed(X, -math.inf)),
        r"^x holds 4 values that are not finite, the first \(-inf\) in row 3, column 0$",
    ),
    (
        lambda: regress(y=holed(REAL, math.nan)),
        r"^y holds 2 values that are not finite, the first \(nan\) in row 3$",
    ),
    (
        lambda: classify(np.full((6, 1), 1e300)),
        r"^x holds 6 values that are not finite in float32, the first \(1e\+300\) in row 0",
    ),
    (lambda: classify(test=(holed(X, math.nan), LABELS)), "^test x holds 4 values that are not finite"),
    (lambda: classify(X.astype(complex)), "^x must hold real numbers, got an array of complex128"),
    (
        lambda: classify(torch.zeros(6, 2, dtype=torch.complex64)),
        "^x must hold real numbers, got torch.complex64",
    ),
    (
        lambda: classify(X.astype(str)),
        "^x must hold real numbers, got an array of <U.*: encode text as numbers",
    ),
    (
        lambda: classify(X.astype(object)),
        r"^x must hold real numbers, got an array of object: if all are numbers, pass np.asarray\(",
    ),
    (lambda: regress([torch.ones(2, requires_grad=True)] * 6), "^x is not an array of numbers: .* grad"),
    (lambda: regress(y=[*REAL[:5], [1, 2]]), "^y is not an array of numbers: "),
    (
        lambda: regress(test=(X, {"a": np.ma.masked_less(REAL, 0.5)})),
        "^test y: column 'a' holds masked values; fill them",
    ),
    (lambda: classify([[1, 2], [3]]), "^x is not an array of numbers: "),
    (lambda: classify(None), "^x must hold real numbers, got NoneType$"),
    (lambda: classify(X[:5]), "^x has 5 rows and y has 6; they must agree"),
    (
        lambda: classify((X, X[:, :1])),
        "^x must be one array, got a tuple of 2: several inputs go side by side",
    ),
    (lambda: classify({"a": X}), "^x must be one array, got a dict of 1: several inputs go side by side"),
    (lambda: regress(y=REAL[:5]), "^x has 6 rows and y has 5; they must agree"),
    (lambda: classify(validation=(X, LABELS[:5])), "^validation x has 6 rows and validation y has 5"),
    (lambda: classify(X[:0], LABELS[:0]), r"^x is empty: its shape is \(0, 2\)"),
    (lambda: classify(X[:, :0]), r"^x is empty: its shape is \(6, 0\)"),
    (lambda: classify(test=(X[:0], LABELS[:0])), r"^test x is empty: its shape is \(0, 2\)"),
    (lambda: classify(X[:, 0]), r"^x must have the shape \(N, features...\), got \(6,\); .* x\[:, None\]"),
    (lambda: classify(1.0), r"^x must have the shape \(N, features...\), got \(\)$"),
    (lambda: classify(y=LABELS[:, None]), r"^y must have .* \(N,\) .* got \(6, 1\): take y\[\.\.\., 0\]"),
    (
        lambda: classify(y=np.eye(6, dtype=int)),
        r"^y must have .* \(N,\) for classification, got \(6, 6\): .* y.argmax\(-1\) of one-hot rows",
    ),
    (lambda: regress(y=np.zeros((6, 1, 0))), r"^y must have the shape \(N,\) or .* got \(6, 1, 0\)"),
    (lambda: regress(y=np.zeros((6, 0))), r"^y must have the shape \(N,\) or .* got \(6, 0\)"),
    (lambda: classify(y=LABELS * 1000), "^y holds the label 2,000, but there are 6 rows: number the classes"),
    (lambda: classify(torch.ones(6, 2).to_sparse()), r"^x is sparse \(torch.sparse_coo\)"),
    (lambda: classify(y=LABELS * 1.0), "^y must hold integer class labels, got torch.float64"),
    (lambda: classify(y=LABELS - 1), "^y holds the label -1 in row 0; labels start at 0"),
    (lambda: classify(y=GRID, classes=3), "^y holds the label -1 in row 2; labels start at 0"),
    (lambda: classify(y=-GRID, classes=1), "^y holds the label 1 in row 2; labels run from 0 to 0 according"),
    (lambda: classify(y=np.full(6, 2**63, "u8")), "^y holds 9223372036854775808, which is too large"),
    (
        lambda: classify(classes=2),
        "^y holds the label 2 in row 2; labels run from 0 to 1 according to classes=",
    ),
    (
        lambda: classify(test=(X, LABELS + 1)),
        "^test y holds the label 3 in row 2; .* 0 to 2 .* the training labels",
    ),
    (
        lambda: classify(test=(X[:, :1], LABELS)),
        r"^test x has rows of shape \(1,\); .* training x have \(2,\)",
    ),
    (lambda: regress(test=(X, X)), "^test y has 2 outputs; the training y has 1"),
    (lambda: classify(test=X), r"^test must be a share .* or a pair \(x, y\), got ndarray"),
    (lambda: classify(validation=(X,)), "^validation must be a share .* or a pair .* got tuple"),
    (lambda: classify(test=1.0), "^test must be at least 0 and less than 1, got 1.0"),
    (lambda: classify(test=0.05), "^test=0.05 of 6 rows is less than one row; take a larger share"),
    (lambda: classify(test=[0, 6]), "^test must hold whole numbers from 0 to 5, the rows"),
    (lambda: classify(test=[0], validation=[1, 0]), "^row 0 is in both test and validation"),
    (lambda: classify(test=0.5, validation=0.5), "^validation and test take all 6 rows"),
    (lambda: classify(task="ranking"), "^task must be one of classification, regression, got 'ranking'"),
    (lambda: classify(classes=0), "^classes must be a whole number of at least 1, got 0"),
    (lambda: classify(classes=3.0), "^classes must be a whole number of at least 1, got 3.0"),
    (lambda: regress(classes=3), "^classes is for classification only"),
    (lambda: regress(dtype=torch.int32), "^dtype must be a floating point type, .* got torch.int32"),
    (lambda: regress(dtype="float64"), "^dtype must be .* such as torch.float64, .* got 'float64'"),
    (lambda: regress(dtype=np.float64), "^dtype must be a floating point type, such as torch.float64"),
    (lambda: regress(dtype=torch.long), "^x must hold whole numbers for dtype=torch.long, got torch.float64"),
    (
        lambda: classify(y=LABELS + 1),
        "^y holds labels from 1 to 3, and classes are numbered from 0: subtract",
    ),
]


@pytest.mark.parametrize(("make", "message"), FAULTS, ids=[message[:40] for _, message in FAULTS])
def test_each_fault_has_one_clear_error(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_dataset_loads_itself() -> None:
    data = classify()
    assert data.load() is data


MADE = [Blobs, NoisySine]


@pytest.mark.parametrize("kind", MADE)
def test_made_data_follows_its_own_seed_and_nothing_else(kind: Any) -> None:
    before = torch.get_rng_state()
    first = kind(seed=3).load()
    assert torch.equal(torch.get_rng_state(), before)
    again, other = kind(seed=3).load(), kind(seed=4).load()
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.test.y, again.test.y)
    assert not torch.equal(first.train.x, other.train.x)
    assert not torch.equal(first.train.x[:50], first.test.x[:50])


@pytest.mark.parametrize("kind", MADE)
def test_made_data_has_the_asked_sizes(kind: Any) -> None:
    data = kind(N=7, validation=0, test=4).load()
    assert (data.spec.N, len(data.train), data.validation, len(data.test)) == (7, 7, None, 4)


def test_blobs_lie_around_their_centres() -> None:
    data = Blobs(N=40_000, features=3, classes=4, noise=0.5).load()
    assert (data.spec.features, data.spec.outputs, data.spec.task) == ((3,), 4, "classification")
    for label in range(4):
        rows = data.train.x[data.train.y == label]
        assert len(rows) == 10_000
        torch.testing.assert_close(rows.std(0), torch.full((3,), 0.5), rtol=0.05, atol=0)
    exact = Blobs(N=4, classes=4, noise=0, features=3).load()
    torch.testing.assert_close(data.train.x[data.train.y == 1].mean(0), exact.train.x[1], rtol=0, atol=0.03)


def test_the_sine_and_its_noise() -> None:
    data = NoisySine(N=20_000, noise=0.2).load()
    assert (data.spec.features, data.spec.outputs, data.spec.task) == ((1,), 1, "regression")
    residual = data.train.y - torch.sin(math.pi * data.train.x)
    assert float(residual.mean()) == pytest.approx(0, abs=0.01)
    assert float(residual.std()) == pytest.approx(0.2, rel=0.03)
    assert -1 <= float(data.train.x.min()) < -0.99
    assert 0.99 < float(data.train.x.max()) <= 1


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Blobs, "N", 2),
        (Blobs, "features", 0),
        (Blobs, "classes", 1),
        (Blobs, "separation", 0),
        (Blobs, "noise", -1),
        (NoisySine, "N", 0),
        (NoisySine, "noise", math.nan),
        *[
            (kind, field, bad)
            for kind in MADE
            for field in ("validation", "test", "seed")
            for bad in (-1, 0.5)
        ],
    ],
)
def test_made_data_checks_its_fields(kind: Any, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must .*, got {value!r}$"):
        kind(**{field: value})


@pytest.mark.parametrize("kind", [*MADE, PaperCurve])
def test_made_data_takes_numpys_whole_numbers(kind: Any) -> None:
    options = {"N": 7, "validation": 2, "test": 4, "seed": 3}
    plain = kind(**options).load()
    made = kind(**{name: np.int64(value) for name, value in options.items()}).load()
    assert torch.equal(made.train.x, plain.train.x)
    assert made.spec == plain.spec


def test_the_number_of_classes_is_a_plain_number() -> None:
    assert type(classify(classes=np.int64(5)).spec.outputs) is int


def test_a_single_target_goes_by_its_name_if_it_has_one() -> None:
    frame = pandas.DataFrame({"x": [1.0, 2, 3, 4], "z": [0.5, 1, 2, 3]})
    x, z, other = frame[["x"]], frame[["z"]], frame[["z"]].rename(columns={"z": "y"})
    model = BayesianNetwork(nn.Linear(1, 1), likelihood=likelihoods.Normal())
    for data in (from_table(frame, target="z"), from_arrays(x, z, task="regression")):
        posterior = fit(model, MeanFieldNormal, data, epochs=1, fast="off", progress=None)
        with pytest.raises(ValueError, match="y has the columns y; the targets are z"):
            posterior.predict(x, other)
    posterior.columns = from_table(frame.assign(z=["a", "b", "a", "b"]), target="z").columns
    with pytest.raises(ValueError, match="y has the columns y; the targets are z"):
        posterior.predict(x, other)
    for unnamed in (frame.z, z.to_numpy()):
        posterior.columns = from_table(x, unnamed).columns
        assert posterior.predict(x, z).log_predictive.shape == (4,)


def test_targets_of_a_table_go_by_name(tmp_path: Path) -> None:
    table = pandas.DataFrame({"x": np.arange(12) / 12, "a": np.arange(12) % 3, "b": np.arange(12) % 5})
    x, y = table[["x"]], table[["a", "b"]]
    data = from_arrays(x, y, task="regression", validation=(x, y[["b", "a"]]))
    assert data.validation is not None
    assert torch.equal(data.validation.y, data.train.y)
    other = y.rename(columns={"b": "c"})
    with pytest.raises(ValueError, match="validation y has the columns a, c; the targets are a, b"):
        from_arrays(x, y, task="regression", validation=(x, other))
    model = BayesianNetwork(nn.Linear(1, 2), likelihood=likelihoods.Normal())
    posterior = fit(
        model, MeanFieldNormal, from_arrays(x.to_numpy(), y, task="regression"), epochs=1, progress=None
    )
    posterior.save(tmp_path)
    tables = from_table(table, target=["a", "b"]), from_table(x, y, task="regression")
    fits = [fit_table(each, noise="learned", epochs=3, hidden=(), progress=None) for each in tables]
    for each in (*fits, posterior, Posterior.load(tmp_path, model, MeanFieldNormal(model))):
        same, swapped = (each.predict(x, targets) for targets in (y, y[["b", "a"]]))
        assert torch.equal(same.log_predictive, swapped.log_predictive)
        assert same.metrics(y) == same.metrics(y[["b", "a"]])
        assert torch.equal(calibrate(same, y).scores, calibrate(same, y[["b", "a"]]).scores)
        with pytest.raises(ValueError, match="y has the columns a, c; the targets are a, b"):
            same.metrics(other)
        by_name = {name: list(y[name]) for name in ("b", "a")}
        assert torch.equal(each.predict(x, by_name).log_predictive, same.log_predictive)
        assert same.metrics(by_name) == same.metrics(y)
        assert torch.equal(same.losses(by_name), same.losses(y))
        assert torch.equal(calibrate(same, by_name).scores, calibrate(same, y).scores)
        with pytest.raises(ValueError, match=r"y has columns of different lengths: \{'b': 2, 'a': 12\}"):
            same.rmse(by_name | {"b": [1, 2]})
