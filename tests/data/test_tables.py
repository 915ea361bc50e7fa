"""`from_table`: parts, targets, weights, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, fit, fit_table, likelihoods, priors
from pyrobbb.data import from_arrays, from_table
from table_cases import SIZE, TABLE, load


def test_what_the_test_rows_hold_changes_nothing_of_the_training_rows():
    other = {**TABLE, "size": [*SIZE[:4], 1e6, -1e6], "price": [*TABLE["price"][:4], 1e9, 0.0]}
    assert torch.equal(load().train.x, load(other).train.x)
    assert load().spec == load(other).spec


def test_parts_are_drawn_by_the_seed_and_do_not_overlap():
    table = {"a": np.arange(100.0), "y": np.arange(100.0)}

    def rows(seed: int) -> list[list[float]]:
        data = from_table(table, task="regression", validation=0.2, test=0.1, split_seed=seed)
        return [part.y[:, 0].tolist() for part in (data.train, data.validation, data.test)]

    parts = rows(3)
    assert [len(part) for part in parts] == [70, 20, 10]
    assert sorted(value for part in parts for value in part) == list(range(100))
    assert rows(3) == rows(np.int64(3)) == parts
    assert rows(4) != parts


def test_another_table_as_test_part():
    data = load(test=TABLE, validation=[0])
    assert (len(data.train), len(data.validation), len(data.test)) == (5, 1, 6)


LONG = {"id": [f"row {i}" for i in range(40)], "a": np.arange(40.0), "y": np.arange(40.0) / 3}


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (TABLE, {"target": "cost"}, "target: the table has no column 'cost'"),
        (TABLE, {"target": []}, "target names no column; it must name one column or more"),
        (TABLE, {"target": None, "drop": [*TABLE]}, "target names no column"),
        (TABLE, {"target": ["price", "price"]}, "target names price, price; .* each once"),
        (TABLE, {"drop": ["cost"]}, "drop: the table has no column 'cost'"),
        (TABLE, {"drop": "town"}, "drop must be a list"),
        (TABLE, {"drop": ["size", "rooms", "town"]}, "no column that can be an input"),
        (TABLE, {"weights": "size", "drop": ["size"]}, "weights: 'size' is never an input"),
        (
            TABLE,
            {"weights": np.ones(6)},
            r"weights must name a column of the table, got ndarray: .* from_table\(x, y, weights",
        ),
        *(
            (
                {**TABLE, name: 1e-200 * np.arange(1.0, 7.0)},
                {"dtype": "float64"},
                rf"'{name}' holds 4e-200 at most, so small that .* underflows: .*rescale the",
            )
            for name in ("size", "price")
        ),
        (TABLE, {"target": "town"}, "'town' is missing in 1 rows, the first of them row 2, counted from 0;"),
        (
            TABLE,
            {"target": ["price", "rooms"]},
            "'rooms' is missing .* fit each of several targets by itself",
        ),
        (TABLE, {"target": "town", "drop": ["town"]}, "must not be in drop"),
        ({**TABLE, "price": [1, 2, 3, 4, 5, 6]}, {}, "whole numbers, which can be labels or values"),
        ({**TABLE, "price": list("aabbca")}, {}, "'price' is 'c', a class not in the training rows"),
        ({**TABLE, "price": list("aaaabb")}, {}, "one class in the training rows"),
        ({**TABLE, "price": list("aabbab")}, {"task": "regression"}, "holds the text 'a'"),
        ({**TABLE, "price": [2.5, 2.5, 2.5, 2.5, 1, 1]}, {}, "'price' is 2.5 in every training row"),
        ({**TABLE, "size": [1, 2, float("inf"), 4, 5, 6]}, {}, "'size' holds inf in row 2, counted from 0"),
        *(
            (
                {**TABLE, name: [0.5, -1e200, 2, 3, 5, 6]},
                {},
                rf"'{name}' holds -1e\+200, so large that the sta",
            )
            for name in ("size", "price")
        ),
        ({**TABLE, "size": [1, 2, 3]}, {}, "different lengths"),
        ({**TABLE, "size": [1j] * 6}, {}, "'size' holds values of type complex"),
        ({**TABLE, "size": [[1], [2], 3, 4, 5, 6]}, {}, "'size' holds values of type list"),
        *(
            (TABLE, {"test": odd}, rf"test must be a share .*, a list .*, a table .*, got {kind}")
            for odd, kind in (
                (True, "bool"),
                ({1, 2}, "set"),
                (slice(2), "slice"),
                (np.array(0.1), "ndarray"),
            )
        ),
        (TABLE, {"test": [6]}, "whole numbers from 0 to 5"),
        (TABLE, {"test": [1, 1]}, "names a row twice"),
        (TABLE, {"test": pandas.Series([0, 1, 0, 0, 1, 0])}, "test is a mask of numbers: make them booleans"),
        (TABLE, {"test": [1], "validation": [1, 2]}, "row 1 is in both"),
        (TABLE, {"test": 0.5, "validation": 0.5}, "leave none for training"),
        (TABLE, {"test": 1.0}, "less than 1"),
        (TABLE, {"test": {"size": [1.0]}}, "test has no column 'price'"),
        (TABLE, {"task": "ranking"}, "task must be one of"),
        (LONG, {"target": "y", "test": 0.1}, "identifies the rows; leave it out, or"),
        ("nowhere.csv", {}, f"there is no file nowhere.csv in {Path.cwd()}"),
        (Path(__file__).parent, {}, "data is a folder; name the .csv, .csv.gz or .parquet file in it"),
        (np.arange(3.0), {}, "array of shape"),
        ([[1.0, 2.0], [3.0]], {}, "is not a table"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(table: Any, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        load(table, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": TABLE | {"": SIZE}}, r"a column without a name.*drop=\[''\]"),
        ({"test": 0.01}, "test=0.01 of 6 rows is less than one row"),
        (
            {"table": TABLE | {"price": [f"{v:,}" for v in range(1000, 7000, 1000)]}, "most": 3},
            "plain numbers",
        ),
        (
            {"table": TABLE | {"price": np.array(SIZE) + 1e8}},
            "float32 rounds away the differences between its values: .*, or pass dtype=.float64. in Python",
        ),
    ],
)
def test_what_would_be_read_wrongly_is_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrobbb.data.tables.MOST", options.pop("most", 10))
    with pytest.raises(ValueError, match=message):
        load(options.pop("table", TABLE), task=None if "plain" in message else "regression", **options)


def test_targets_far_from_zero_keep_their_differences_in_double_precision() -> None:
    data = load(TABLE | {"price": np.array(SIZE) + 1e8}, dtype="float64", task="regression")
    assert (data.train.y[:, 0] - 1e8).tolist() == SIZE[:4]
    with pytest.raises(ValueError, match=r"subtract a constant, or pass dtype=torch.float64"):
        from_arrays(np.ones((6, 1)), np.array(SIZE) + 1e9, task="regression")


def test_classes_of_a_table_go_by_the_target_s_name() -> None:
    table = {"x": SIZE, "kind": ["a", "b"] * 3}
    data = from_table(table, target="kind")
    posterior = fit_table(data, epochs=1, hidden=(), progress=None)
    x, y = {"x": SIZE}, {"kind": table["kind"]}
    prediction = posterior.predict(x, y)
    assert prediction.metrics(y) == prediction.metrics(data.train.y)
    with pytest.raises(ValueError, match="y has the columns sort; the targets are kind"):
        posterior.predict(x, {"sort": table["kind"]})


def test_columns_in_another_order_are_refused() -> None:
    frame = pandas.DataFrame({"a": SIZE, "b": SIZE[::-1]})
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal(0.1))
    data = from_arrays(frame, SIZE, task="regression")
    posterior = fit(model, MeanFieldNormal, data, epochs=1, progress=None)
    with pytest.raises(ValueError, match="x has the columns b, a; those of the training x were a, b"):
        posterior.predict(frame[["b", "a"]])
    assert torch.equal(posterior.predict(frame).mean, posterior.predict(data.train.x).mean)


@pytest.mark.parametrize(
    ("taken", "y", "weights"),
    [("y", SIZE, None), ("y0", np.stack([SIZE, SIZE[::-1]], axis=1), None), ("weights", SIZE, np.ones(6))],
)
def test_columns_of_x_are_not_overwritten(taken: str, y: Any, weights: Any) -> None:
    x = {"a": SIZE, taken: SIZE[::-1]}
    with pytest.raises(ValueError, match=f"x has a column '{taken}' already"):
        from_table(x, y, weights=weights, task="regression")
    data = from_table({"a": SIZE, "b": SIZE[::-1]}, y, weights=weights, task="regression")
    assert data.spec.features == (2,)


def test_the_target_goes_by_the_name_of_its_series() -> None:
    frame = pandas.DataFrame({"a": SIZE, "price": TABLE["price"]})
    x, y = frame[["a"]], frame["price"]
    for target in (y, frame[["price"]]):
        assert from_table(x, target).columns.targets == ("price",)
    assert from_table(x, y, test=(x, y.to_numpy())).test is not None
    assert from_table(x, y.rename(0)).columns.targets == ("y",)
    with pytest.raises(ValueError, match="x has a column 'price' already, which y would overwrite"):
        from_table(frame, y)
    places = frame.rename(columns={"a": "y"})  # a coordinate, which a target of another name leaves alone
    assert torch.equal(from_table(places[["y"]], y).train.x, from_table(frame, target="price").train.x)


@pytest.mark.parametrize(
    ("name", "advice"), [("column 'x'", "leave the cell empty"), ("target 'y'", "leave the row out")]
)
def test_a_cell_so_far_out_that_the_others_hardly_differ_is_told(name: str, advice: str, caplog) -> None:
    usual = np.random.default_rng(0).normal(size=300)
    heavy = np.exp(2 * usual)  # lognormal: its middle half spans 0.1 standard deviations
    few = np.where(usual > 1, heavy, 0.0)  # a sixth, the others alike
    from_table({"x": usual, "heavy": heavy, "few": few, "y": heavy})
    assert not caplog.records
    wild = np.where(np.arange(300) < 2, -9999.0, usual)
    from_table({"x": usual, "y": usual} | {name[-2]: wild})
    (told,) = caplog.messages
    assert told.startswith(f"{name} holds -9999, so far out that the middle half of the rows spans 0.00")
    assert advice in told


def test_none_are_held_back_by_none() -> None:
    data = load(test=None, validation=None)
    assert (len(data.train), data.test, data.validation) == (6, None, None)


def test_rows_held_back_are_a_pair_in_a_tuple_or_a_list() -> None:
    x, y = {"a": [0.5, 1.5, 2.5]}, [1.5, 2.5, 3.5]
    parts = [from_table(x, y, test=kind((x, y))).test for kind in (tuple, list)]
    assert torch.equal(parts[0].x, parts[1].x)


def test_a_name_beside_the_table_is_taken_for_its_target() -> None:
    with pytest.raises(ValueError, match="y must hold the targets, got 'price': say target='price' if that"):
        from_table(TABLE, "price")


def test_an_option_that_a_table_lacks_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"no option 'validaton'; did you mean 'validation'\?; the options are target"
    ):
        from_table({"x": [1.5, 2.5], "y": [0.5, 1.5]}, target="y", validaton=0.5)


def test_parts_of_a_data_frame_have_its_columns_and_rows() -> None:
    frame = pandas.DataFrame({"a": SIZE, "b": SIZE[::-1]})
    y = pandas.Series(SIZE)
    for part in ("validation", "test"):
        other: Any = {part: (frame[["b", "a"]], y)}
        with pytest.raises(
            ValueError, match=f"{part} x has the columns b, a; those of the training x were a"
        ):
            from_arrays(frame, y, task="regression", **other)
        other = {part: (frame, y.iloc[::-1])}
        with pytest.raises(ValueError, match=f"{part} x and {part} y have different row labels"):
            from_arrays(frame, y, task="regression", **other)
    with pytest.raises(ValueError, match="different row labels"):
        from_table({"a": frame["a"], "y": y.iloc[::-1]}, task="regression")


def test_parts_may_be_pairs_and_row_numbers_an_index() -> None:
    x = np.stack([SIZE, SIZE[::-1]], axis=1)
    data = from_table(x[:4], SIZE[:4], task="regression", test=(x[4:], SIZE[4:]))
    assert data.test.y[:, 0].tolist() == SIZE[4:]
    whole = from_table(x, SIZE, task="regression", test=pandas.DataFrame(x).index[4:])
    assert torch.equal(whole.test.x, data.test.x)
    turned = pandas.DataFrame(x)[::-1]
    with pytest.raises(ValueError, match=r"test is an index, but the table's own labels .* pass those"):
        from_table(turned, SIZE, task="regression", test=turned.index[:2])
    with pytest.raises(ValueError, match=r"validation is an index, but the table's own labels"):
        from_arrays(turned, SIZE, task="regression", validation=turned.index[:2])


def test_a_row_that_counts_nothing_may_lack_its_target() -> None:
    table = {"a": [1.0, 2, 3, 4], "n": [1.5, 2.5, np.nan, 4.5], "w": [1, 1, 0, 2]}
    data = from_table(table, target="n", weights="w")
    assert data.train.y.flatten().tolist() == [1.5, 2.5, 4.5]
    with pytest.raises(ValueError, match="test: target 'n' is missing in 1 rows"):
        from_table(table, target="n", weights="w", test=[2])
    assert from_table(table, target="n", weights="w", test=[1, 2]).test.y.tolist() == [[2.5]]
    with pytest.raises(ValueError, match="the first of them row 3, counted from 0;"):
        from_table(table | {"n": [1.5, 2.5, np.nan, np.nan]}, target="n", weights="w")


def test_rows_held_back_count_as_often_as_their_column_says() -> None:
    table = {"a": [1.0, 2, 3, 4, 5], "n": [1.5, 2.5, 3.5, 4.5, 5.5], "w": [1, 0, 3, 4, 0]}
    data = from_table(table, target="n", weights="w", validation=[1, 2], test=table)
    assert [data.validation.weights.tolist(), data.test.weights.tolist()] == [[0, 3], [1, 0, 3, 4, 0]]
    other = {name: table[name] for name in ("a", "n")}
    assert from_table(table, target="n", weights="w", test=other).test.weights is None
    advice = "those for validation or test may also come as a table without this column, and count once"
    wrong = "the table: column 'w' holds 2 values that are not finite, the first .nan. in row 1"
    for absent, said in ((0.0, "test: column 'w': the weights are all 0"), (np.nan, wrong)):
        blank = table | {"w": [1, absent, 3, 4, absent]}
        with pytest.raises(ValueError, match=rf"{said}.*; {advice}"):
            from_table(blank, target="n", weights="w", test=[1, 4])
    with pytest.raises(ValueError, match=r"the table: column 'w' holds -3 in row 2, counted from 0"):
        from_table(table | {"w": [1, 0, -3, 4, 0]}, target="n", weights="w", test=[0])


def test_parts_may_be_masks_and_pairs_are_explained() -> None:
    table = {"a": [1.0, 2, 3, 4], "n": [1.5, 2.5, 3.5, 4.5]}
    mask = [False, True, False, False]
    for given in (mask, np.array(mask), pandas.Series(mask)):
        assert from_table(table, target="n", test=given).test.y.tolist() == [[2.5]]
    rows = pandas.DataFrame(table)[:2]
    assert from_table(table, target="n", test=rows).test.y.tolist() == [[1.5], [2.5]]
    with pytest.raises(ValueError, match="whole numbers from 0 to 3, the rows of the table, or 4 booleans"):
        from_table(table, target="n", test=[True, False])
    with pytest.raises(ValueError, match=r"test is a pair \(x, y\), which goes with from_table\(x, y\)"):
        from_table(pandas.DataFrame(table), target="n", test=(pandas.DataFrame(table), table["n"]))
