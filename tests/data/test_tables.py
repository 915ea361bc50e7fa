"""Tables: what is learned from the training rows alone, the stated rules, and each possible fault."""

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, fit, fit_table, likelihoods, priors
from pyrobbb.data import Table, from_arrays, from_table
from pyrobbb.data.columns import Categorical, Numeric, from_plain
from pyrobbb.data.frames import as_column, as_frame
from pyrobbb.data.texts import as_text

SIZE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
TABLE = {
    "size": SIZE,
    "rooms": [1, None, 3, 3, 5, 9],
    "town": ["Ulm", "Bonn", None, "Ulm", "Ulm", "Hof"],
    "price": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5],
}
TEST_ROWS = [4, 5]


def load(table: Any = TABLE, **options: Any) -> Any:
    return from_table(table, **{"target": "price", "test": TEST_ROWS, **options})


def test_everything_is_learned_from_the_training_rows():
    data = load()
    size, rooms, unknown_rooms, *towns = data.train.x.double().numpy().T
    np.testing.assert_allclose(size, (np.array(SIZE[:4]) - 2.5) / np.std(SIZE[:4]), rtol=1e-6)
    mean, sd = np.mean([1, 3, 3]), np.std([1, 3, 3])
    np.testing.assert_allclose(rooms, (np.array([1, 3, 3, 3]) - mean) / sd, rtol=1e-6)  # 3 is the median
    np.testing.assert_allclose(unknown_rooms, [-0.25, 0.75, -0.25, -0.25])
    hot = [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]  # Bonn, Ulm, missing
    np.testing.assert_allclose(towns, np.array(hot) - np.mean(hot, axis=1, keepdims=True), rtol=1e-6)
    assert data.train.y.tolist() == [[1.5], [2.5], [3.5], [4.5]]  # in their own units
    assert data.spec.units.loc == (3.0,)
    assert data.spec.units.scale == pytest.approx((np.std([1.5, 2.5, 3.5, 4.5]),))


def test_other_rows_are_treated_by_what_training_said():
    test = load().test
    assert test.y.tolist() == [[5.5], [6.5]]
    np.testing.assert_allclose(test.x[:, 0], (np.array([5.0, 6.0]) - 2.5) / np.std(SIZE[:4]), rtol=1e-6)
    np.testing.assert_allclose(test.x[0, 3:], [-0.25, 0.5, -0.25])  # Ulm
    assert test.x[1, 3:].tolist() == [0.0, 0.0, 0.0]  # Hof: no training row has it


def test_what_the_test_rows_hold_changes_nothing_of_the_training_rows():
    other = {**TABLE, "size": [*SIZE[:4], 1e6, -1e6], "price": [*TABLE["price"][:4], 1e9, 0.0]}
    assert torch.equal(load().train.x, load(other).train.x)
    assert load().spec == load(other).spec


def test_new_rows_give_the_inputs_of_the_same_rows_in_the_table():
    data = load()
    rows = {name: [column[i] for i in TEST_ROWS] for name, column in TABLE.items() if name != "price"}
    assert torch.equal(data.inputs(rows), data.test.x)
    with pytest.raises(ValueError, match="no column 'town'"):
        data.inputs({"size": [1.0], "rooms": [2]})
    with pytest.raises(
        ValueError, match="'size' holds numbers in the training rows, but here 'big' in row 0"
    ):
        data.inputs({**rows, "size": ["big", "small"]})


def test_numbers_in_arrays_of_objects_are_numbers():
    """As pandas and numpy keep a column of which a value is None."""
    data = from_table({"size": [1.0, 2.0, None, 4.0], "town": ["a", "b", None, "a"], "y": [0.5, 2, 3, 5]})
    new = {"size": [80.0, None], "town": ["b", None]}
    objects = {name: np.array(column, dtype=object) for name, column in new.items()}
    assert torch.equal(data.columns.inputs(objects), data.columns.inputs(new))


def test_a_value_missing_where_training_rows_lack_none_is_the_median():
    data = from_table({"a": [0.0, 2.0, 10.0], "y": [0.1, 0.2, 0.3]})
    assert data.spec.features == (1,)
    assert torch.equal(data.inputs({"a": [None]}), data.inputs({"a": [2.0]}))


def test_an_empty_column_where_training_rows_lack_no_value_is_told(caplog: pytest.LogCaptureFixture) -> None:
    data = from_table({"a": [0.0, 2.0, 10.0], "town": ["Ulm", "Hof", "Ulm"], "y": [0.1, 0.2, 0.3]})
    data.inputs({"a": [None, 1.0], "town": ["Ulm", None]})
    data.inputs({"a": [None], "town": [None]})  # one row, in which the user may well leave cells empty
    assert not caplog.records
    data.inputs({"a": [None] * 2, "town": [None] * 2})
    lacked = "has no value in any of 2 rows, and no training row lacked one: they count as"
    assert caplog.messages == [f"column 'a' {lacked} the median", f"column 'town' {lacked} an average row"]
    caplog.clear()
    load().inputs({"size": [1.0], "rooms": [None], "town": [None]})
    assert "has no value" not in caplog.text  # some training rows lack them too


CSV = "size,rooms,town,price\n" + "\n".join(
    ",".join("" if v is None else str(v) for v in row) for row in zip(*TABLE.values(), strict=True)
)


def as_csv(folder: Path) -> Path:
    (folder / "t.csv").write_text(CSV)
    return folder / "t.csv"


def as_gzip(folder: Path) -> Path:
    (folder / "t.csv.gz").write_bytes(gzip.compress(CSV.replace(",,", ",?,").encode()))
    return folder / "t.csv.gz"


def as_pandas(folder: Path) -> Any:
    return pandas.DataFrame(TABLE)


def as_nullable(folder: Path) -> Any:
    frame = pandas.DataFrame(TABLE)
    return frame.convert_dtypes().astype({"town": "category"})


def as_parquet(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    as_pandas(folder).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


@pytest.mark.parametrize("make", [as_csv, as_gzip, as_pandas, as_nullable, as_parquet])
def test_every_form_of_a_table_says_the_same(make: Any, tmp_path: Path):
    data = load(make(tmp_path))
    assert torch.equal(data.train.x, load().train.x)
    assert torch.equal(data.test.x, load().test.x)
    assert data.columns == load().columns


@pytest.mark.parametrize("absent", ["pandas", "pyarrow"])
def test_a_parquet_file_without_its_readers_says_what_to_install(absent: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="pip install pandas pyarrow"):
        load(tmp_path / "t.parquet")


def test_arrays_beside_their_targets():
    x, y = np.arange(12.0).reshape(6, 2) ** 2, np.linspace(0, 1, 6)
    data = from_table(x, y, test=[5])
    assert data.train.x.shape == (5, 2)
    np.testing.assert_allclose(data.train.x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train.x.std(0, correction=0), 1, rtol=1e-6)
    np.testing.assert_allclose(data.test.y, [[1.0]])
    assert torch.equal(data.inputs(x[5:]), data.test.x)
    both = from_table(x, np.stack([y, y**2], axis=1))
    assert both.spec.outputs == 2
    np.testing.assert_allclose(both.spec.units.loc, [y.mean(), (y**2).mean()])


def test_a_csv_without_a_head_and_one_with_numbers_as_categories(tmp_path: Path):
    (tmp_path / "n.csv").write_text("1,2,0.5\n3,4,1.5\n3,6,1\n")
    data = from_table(tmp_path / "n.csv", categorical=["0"])
    assert [kind.name for kind in data.columns.kinds] == ["0", "1"]
    assert data.columns.kinds[0].categories == ("1", "3")
    assert data.columns.targets == ("2",)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["no", "yes", "no", "maybe"], ("maybe", "no", "yes")),
        ([True, False, True, True], ("False", "True")),
        ([10, 9, 10, 9], ("9", "10")),
    ],
)
def test_classes_are_numbered_in_order_and_keep_their_names(labels: list, classes: tuple):
    data = from_table({"a": [1.0, 2.0, 3.0, 4.0], "b": labels}, task="classification")
    assert data.columns.classes == classes
    assert [classes[i] for i in data.train.y] == [str(label) for label in labels]
    assert (data.spec.task, data.spec.outputs, data.spec.units) == ("classification", len(classes), None)


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


def test_a_constant_column_gives_no_input_and_the_same_data_move_together():
    data = from_table({"a": [1.0, 2.0, 4.0], "b": [7.0, 7.0, 7.0], "y": [0.1, 0.2, 0.4]}, dtype="float64")
    assert data.spec.features == (1,)
    assert data.train.x.dtype == torch.float64
    assert data.to("cpu").columns == data.columns


def test_columns_that_say_nothing_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """The last rows are for the test: what they hold changes nothing."""
    near = [1e14, 1e14, 1e14, 1e14 + 1 / 64, 0.0, 1.0]
    data = load({**TABLE, "b": [7.0] * 6, "near": near, "country": [*"aaaabc"], "flag": [0, 0, 0, 1, 1, 1]})
    (told,) = [message for message in caplog.messages if "one value" in message]
    assert told == (
        "the training rows hold one value or none, up to rounding, in 3 columns, which says nothing: "
        "'b', 'near', 'country'"
    )
    assert data.spec.features == (8,)  # size, rooms and whether they are missing, 3 towns, country, flag
    caplog.clear()
    data.inputs(TABLE | {"b": [8.0] * 6, "near": near, "country": [*"aaaaaa"], "flag": SIZE})
    assert "one value" not in caplog.text
    load({**TABLE, "sold": [1.0, np.nan, 1.0, 1.0, 1.0, 1.0]})  # whether it is missing says something
    assert "one value" not in caplog.text
    load({**TABLE, "b": [7.0] * 6})
    assert "in 1 column, which says nothing: 'b'" in caplog.text


@pytest.mark.parametrize("later", [1.0, "a"])
def test_a_column_without_a_value_in_training_says_nothing(later: Any, caplog) -> None:
    """Whatever its kind turns out to be: a fold of a sparse column may be empty."""
    for last in ([later] * 2, [None] * 2):
        caplog.clear()
        data = load({**TABLE, "sparse": [None] * 4 + last})
        assert "which says nothing: 'sparse'" in caplog.text
        features = len(load().train.x.T)
        rows = data.inputs({**TABLE, "sparse": [later] * 6})
        assert not rows[:, features:].any()  # where its kind is known from other rows, an input that is 0
    assert rows.shape[1] == features
    assert from_plain(json.loads(json.dumps(data.columns.plain()))) == data.columns


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


def test_a_file_of_another_kind(tmp_path: Path):
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(ValueError, match=r"must end in \.csv"):
        Table(source=tmp_path / "t.xlsx").load()


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
            "float32 rounds away the differences between its values",
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


def test_unknown_categories_are_told(caplog: pytest.LogCaptureFixture) -> None:
    data = load()
    data.inputs({"size": [1.0, 2.0], "rooms": [1, 2], "town": ["Rom", "Ulm"]})
    assert "column 'town': 1 of 2 rows hold a category that no training row has, such as 'Rom'" in caplog.text


def test_rows_that_pandas_knows_to_differ_are_refused() -> None:
    frame = pandas.DataFrame({"x": SIZE})
    y = pandas.Series(SIZE, index=reversed(range(6)))
    for act in (lambda: from_table(frame, y), lambda: from_arrays(frame, y, task="regression")):
        with pytest.raises(ValueError, match=r"x and y have different row labels.*y.loc\[x.index\]"):
            act()
    mapping = {"x": frame.x}
    for given in ({"y": y}, {"y": SIZE, "weights": y}, {"y": SIZE, "test": (mapping, y)}):
        with pytest.raises(ValueError, match=r"x\['x'\] and (test )?(y|weights) have different row labels"):
            from_table(mapping, **given)
    with pytest.raises(ValueError, match="test is an index, but the table's own labels are not"):
        from_table({"x": y, "y": y}, task="regression", test=y.index[:2])
    assert torch.equal(
        from_arrays(frame, y.loc[frame.index], task="regression").train.y[:, 0].flip(0), torch.tensor(SIZE)
    )


def test_a_column_of_an_array_is_taken_as_that_of_a_dataframe_is() -> None:
    labels = np.array(["a", "b", "a"])
    data = from_table({"x": [1.0, 2.0, 4.0], "y": labels}, target="y")
    for column in (labels[:, None], pandas.DataFrame({"y": labels})):
        assert torch.equal(data.columns.labels("y", column), data.train.y)


def test_classes_of_a_table_go_by_the_target_s_name() -> None:
    table = {"x": SIZE, "kind": ["a", "b"] * 3}
    data = from_table(table, target="kind")
    posterior = fit_table(data, epochs=1, hidden=(), progress=None)
    x, y = {"x": SIZE}, {"kind": table["kind"]}
    prediction = posterior.predict(x, y)
    assert prediction.metrics(y) == prediction.metrics(data.train.y)
    with pytest.raises(ValueError, match="y has the columns sort; the targets are kind"):
        posterior.predict(x, {"sort": table["kind"]})


class Polars:
    """What a DataFrame of polars' shows of itself: numpy takes it for an array without names."""

    columns = ("size", "price")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.ones((6, 2))


class PolarsSeries(list[Any]):
    """The same of its columns: missing values are None."""

    def to_numpy(self) -> np.ndarray:
        return np.array(self)


def test_tables_of_another_library_are_refused_whose_names_would_be_lost() -> None:
    for name, act in [
        ("the table", lambda: from_table(Polars(), target="price")),
        ("x", lambda: from_table(Polars(), SIZE)),
        ("x", lambda: from_arrays(Polars(), SIZE, task="regression")),
        ("y", lambda: from_arrays(np.ones((6, 1)), Polars(), task="regression")),
        ("rows", lambda: load().inputs(Polars())),
    ]:
        with pytest.raises(ValueError, match=rf"^{name} is a .*Polars; pass .*to_pandas\(\)"):
            act()
    columns = {name: PolarsSeries(column) for name, column in TABLE.items()}
    assert torch.equal(load(columns).train.x, load(TABLE).train.x)


def test_columns_in_another_order_are_refused() -> None:
    frame = pandas.DataFrame({"a": SIZE, "b": SIZE[::-1]})
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal(0.1))
    data = from_arrays(frame, SIZE, task="regression")
    posterior = fit(model, MeanFieldNormal, data, epochs=1, progress=None)
    with pytest.raises(ValueError, match="x has the columns b, a; those of the training x were a, b"):
        posterior.predict(frame[["b", "a"]])
    assert torch.equal(posterior.predict(frame).mean, posterior.predict(data.train.x).mean)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("größe,y\n1,2\n".encode("latin-1"), "is not UTF-8 text; save it as UTF-8"),
        *((f"a{mark}y\n1{mark}2\n".encode(), "is not separated by commas; pass pandas") for mark in ";|\t"),
        (
            b"a y\n1 2\n",
            "no column that can be an input: it has 'a y'; the columns of a file must be separated",
        ),
        (b"a,b\n1,2\n1\n", "line 3 has 1 values, the first has 2"),
        (b'a,b\n\n1,"2\n3"\n1\n', "line 5 has 1 values, the first has 2"),
        (
            b'a,b\n"1,2\n' + b"1,2\n" * 40_000,
            r"rows\.csv: the row from line 2 on: field larger than field limit",
        ),
        (b'a,b\n1,2\n3,"4\n5,6\n7,"8\n9,0\n', "row from line 3 on: .* is a quote open"),
        (b'a,b\n1,2\n3,"4\n5,6\n', "row from line 3 on: .* is a quote open"),
        (b"a,b\n1,2\n,\n3,4,5\n", "line 4 has 3 values"),
        (b"a,a\n1,2\n", "two columns called 'a'"),
        (b"", "is empty"),
        (b"a,b\n", "is empty"),
    ],
)
def test_files_of_another_form_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        from_table(path)


def test_quoted_cells_are_whole_and_blank_rows_at_the_end_are_none(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a,b\n"1,5","say ""x"""\n,\n"two\nlines",5" \n , \n,\n\n')
    for blank_end in (False, True):
        frame = as_frame("table", tmp_path / "rows.csv", blank_end=blank_end)
        none = [None, None] if blank_end else []
        assert {name: [*column] for name, column in frame.items()} == {
            "a": ["1,5", None, "two\nlines", *none], "b": ['say "x"', None, '5"', *none]
        }  # fmt: skip


def test_blank_rows_at_the_end_of_a_file_are_predicted_and_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n1,0.5\n2,1.5\n3,2.5\n,\n,\n")
    data = from_table(tmp_path / "rows.csv", validation=tmp_path / "rows.csv")
    assert data.validation is not None
    assert len(data.train) == len(data.validation) == 3
    assert data.inputs(tmp_path / "rows.csv")[:, 0].isfinite().tolist() == [True] * 5


def test_blanks_may_follow_a_quote(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('"name" ,"y"\n"Ann" ,1\n"B\nC"\t,"2" \n', newline="\r\n")
    frame = as_frame("table", tmp_path / "rows.csv")
    assert {name: [*column] for name, column in frame.items()} == {"name": ["Ann", "B\r\nC"], "y": [1, 2]}


def test_columns_may_be_called_by_number_and_must_be_lists() -> None:
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(6, 3)))
    data = from_table(frame, target=1)
    assert data.columns.targets == ("1",)
    with pytest.raises(ValueError, match="column '0' must be a list of values, one for each row"):
        data.inputs({"0": 1.0, "2": 2.0})


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


def test_whole_numbers_of_16_digits_are_categories_and_classes_of_their_own() -> None:
    ids = [1234567890123456 + i % 3 for i in range(60)]
    data = from_table({"a": np.arange(60.0), "id": ids, "y": ids}, task="classification", categorical=["id"])
    names = ("1234567890123456", "1234567890123457", "1234567890123458")
    assert data.columns.classes == data.columns.kinds[1].categories == names
    assert data.train.y.tolist() == [i % 3 for i in range(60)]


def test_the_target_goes_by_the_name_of_its_series() -> None:
    frame = pandas.DataFrame({"a": SIZE, "price": TABLE["price"]})
    x, y = frame[["a"]], frame["price"]
    for target in (y, frame[["price"]]):
        assert from_table(x, target).columns.targets == ("price",)
    assert from_table(x, y, test=(x, y.to_numpy())).test is not None
    assert from_table(x, y.rename(0)).columns.targets == ("y",)
    with pytest.raises(ValueError, match="x has a column 'price' already, which y would overwrite"):
        from_table(frame, y)


@pytest.mark.parametrize("column", ["id", "y"])
def test_whole_numbers_that_double_precision_rounds_are_no_categories(column: str) -> None:
    table = {"a": np.arange(60.0), "id": np.arange(60) % 3, "y": np.arange(60) % 3}
    table[column] = 10**16 + table[column]
    with pytest.raises(ValueError, match=f"column '{column}' holds 10{{16}}, .* pass the column as text"):
        from_table(table, categorical=["id"], task="classification")
    table[column] = [str(value) for value in table[column]]
    assert len(from_table(table, categorical=["id"], task="classification").columns.classes) == 3


def test_minus_zero_is_the_category_and_the_class_zero() -> None:
    rounded = np.round([-0.4, 0.4, 1.2, 1.3, -0.2, 0.9])
    data = load({"code": rounded, "price": rounded}, categorical=["code"], task="classification", test=[5])
    assert data.columns.kinds[0].categories == data.columns.classes == ("0", "1")
    assert data.train.y.tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("code", [1e200, sys.float_info.max])
def test_a_number_too_large_for_a_standard_deviation_is_refused(code: float) -> None:
    with pytest.raises(ValueError, match=r"column 'size' holds 1.*, so large"):
        load({**TABLE, "size": [code, code, *SIZE[2:]]})


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


def test_the_names_of_categories_stay_as_saved_posteriors_have_them() -> None:
    values = [-3.0, 0.1 + 0.2, 0.3, 2.0, 1e15, 12.5, 999999999999999.0]
    names = ["-3", "0.3", "0.3", "2", "1e+15", "12.5", "999999999999999"]
    assert list(as_text("a", np.array(values))) == names
    data = from_table({"a": SIZE, "y": [0.3, 0.1 + 0.2, 2.0, 2.0, 0.3, 2.0]}, task="classification")
    assert data.columns.classes == ("0.3", "2")
    assert data.train.y.tolist() == [0, 0, 1, 1, 0, 1]


def test_a_file_read_by_pandas_has_the_same_categories(tmp_path: Path) -> None:
    """Which keeps the blanks around a text."""
    path = tmp_path / "towns.csv"
    path.write_text("town,y\nUlm, no\n Ulm,yes\nHof , yes\n")
    ours, theirs = (from_table(table, target="y") for table in (path, pandas.read_csv(path)))
    assert ours.columns == theirs.columns
    assert ours.columns.kinds[0].categories == ("Hof", "Ulm")
    assert torch.equal(ours.train.x, theirs.train.x)


def test_a_number_beside_text_is_one_category_however_it_is_kept() -> None:
    codes = [1, 1.0, np.float32(1), "1", "a", -0.0, 0, 0.5, np.float32(0.1), "0.1"]
    (kind,) = from_table({"code": codes, "y": np.arange(10) / 3}).columns.kinds
    assert kind.categories == ("0", "0.1", "0.5", "1", "a")


def test_a_blank_cell_is_missing_as_in_a_file() -> None:
    data = from_table({"size": [1.5, " ", 2.5, 3.0], "town": ["Ulm", "", None, "Hof"], "y": np.arange(4) / 3})
    assert [type(kind).__name__ for kind in data.columns.kinds] == ["Numeric", "Categorical"]
    assert data.columns.kinds[1].categories == ("Hof", "Ulm", None)


def test_codes_with_an_underscore_are_text(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("1_0,2_0\n" + "1_0,1.5\n10,2.5\n2_5,3.5\n25,4.5\n")
    data = from_table(tmp_path / "codes.csv", target="2_0")
    assert data.columns.kinds[0].name == "1_0"
    assert data.columns.kinds[0].categories == ("10", "1_0", "25", "2_5")


def test_numbers_that_pandas_calls_a_category_are_one() -> None:
    y = [0.5, 1.5, 2.5, 1.0, 2.0, 3.0]
    frame = pandas.DataFrame({"a": SIZE, "code": pandas.Categorical([0, 2, 1, 0, 2, 1])})
    for data in (from_table(frame.assign(y=y)), from_table(frame, y)):
        assert [type(kind) for kind in data.columns.kinds] == [Numeric, Categorical]
        assert data.columns.kinds[1].categories == ("0", "1", "2")
        assert torch.equal(data.inputs(frame), data.inputs({"a": SIZE, "code": [0, 2, 1, 0, 2, 1]}))
    for data in (from_table(frame.assign(y=y), raw=["code"]), from_table(frame, y, raw=["code"])):
        assert data.train.x[:, -1].tolist() == [0, 2, 1, 0, 2, 1]


@pytest.mark.parametrize("labels", [[1, 2], [0.5, 1.5]])
def test_a_target_of_categories_is_one_of_classes(labels: list[float]) -> None:
    x, y = {"a": SIZE}, pandas.Categorical(labels * 3)
    named = pandas.Series(y, name="n")
    for data in (
        from_table(x, y), from_table(x, named), from_table(x, named.to_frame()), from_table(x | {"y": y}),
        from_table(x | {"y": labels * 3}, categorical=["y"]),
    ):  # fmt: skip
        assert data.spec.task == "classification"
        assert data.columns.classes == tuple(map(str, labels))
    assert from_table(x, y, task="regression").spec.task == "regression"


def test_pandas_na_in_an_array_is_missing() -> None:
    """As the estimators' arrays have it, made of a frame with such columns."""
    rooms, town = np.array([1, pandas.NA, 3], dtype=object), np.array(["a", "b", pandas.NA], dtype=object)
    data = from_table({"rooms": rooms, "town": town, "y": [0.5, 1.5, 2.5]})
    plain = from_table({"rooms": [1, None, 3], "town": ["a", "b", None], "y": [0.5, 1.5, 2.5]})
    assert data.columns == plain.columns
    assert torch.equal(data.train.x, plain.train.x)


@pytest.mark.parametrize("value", [None, 1.5, np.int64(1), "size"])
def test_a_column_that_is_no_list_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="column 'size' must be a list of values, one for each row, got"):
        load(TABLE | {"size": value})


def test_a_frame_of_one_column_is_that_column() -> None:
    """The values of a frame are its columns' names: one row counted as missing, classes as unknown."""
    data = load()
    frame = pandas.DataFrame(TABLE)
    apart = {name: frame[[name]].head(1) for name in ("size", "rooms", "town")}
    assert torch.equal(data.inputs(apart), data.inputs(frame.head(1)))
    frame = frame.dropna()
    named = from_table(frame, target="town").columns
    assert torch.equal(named.labels("y", frame[["town"]]), named.labels("y", frame["town"]))
    with pytest.raises(ValueError, match="column 'size' must be one column, got a DataFrame of 2"):
        data.inputs({**apart, "size": frame[["size", "town"]].head(1)})


def test_tensors_of_every_floating_point_type_are_columns() -> None:
    x, y = torch.tensor([SIZE, SIZE[::-1]]).T, torch.tensor(SIZE) / 2
    expected = from_table(x.numpy(), y)
    for kind in (torch.bfloat16, torch.float16, torch.float64):
        data = from_table({"0": x[:, 0].to(kind), "1": x[:, 1].to(kind)}, y.to(kind))
        assert torch.equal(data.train.x, expected.train.x)
        assert torch.equal(data.train.y, expected.train.y)
        assert torch.equal(data.inputs(x.to(kind)), expected.train.x)
    with pytest.raises(ValueError, match="x is a tensor, and a tensor passed to predict"):
        from_table(x, y)  # else predict(x) would be silently wrong
    with pytest.raises(ValueError, match="column 'size' is sparse"):
        load(TABLE | {"size": torch.tensor(SIZE).to_sparse()})


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-12], lambda _: CSV.encode(), lambda whole: whole[:12] + b"\xff" * 40]
)
def test_a_gzip_file_that_is_none_or_cut_is_refused_by_name(damage: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(damage(gzip.compress(CSV.encode())))
    with pytest.raises(ValueError, match=r"t\.csv\.gz is not a whole gzip file"):
        load(tmp_path / "t.csv.gz")


def test_the_columns_of_an_array_are_named_by_whole_numbers() -> None:
    x = np.stack([np.arange(6) % 2, SIZE, [1, 2, 1, 2, 1, 3], np.arange(6) ** 2 / 2], axis=1)
    for kind in (int, np.int64):
        numbers = {"target": kind(3), "weights": kind(2), "categorical": [kind(0)], "drop": [kind(1)]}
        data = from_table(x, **numbers)
        expected = from_table(x, target="3", weights="2", categorical=["0"], drop=["1"])
        assert data.columns == expected.columns
        assert [type(each) for each in data.columns.kinds] == [Categorical]
        assert data.train.weights.tolist() == [1, 2, 1, 2, 1, 3]
    beside = from_table(x[:, :3], x[:, 3], weights=2, categorical=[0], drop=[1])
    assert torch.equal(beside.train.x, data.train.x)
    assert beside.train.weights.tolist() == [1, 2, 1, 2, 1, 3]
    with pytest.raises(ValueError, match="drop must be a list of column names, got 1"):
        from_table(x, drop=1)


CODES = ["007", "7", "012", "AB1"]


def codes(target: Any = None, **options: Any) -> Any:
    table = {"code": CODES * 3, "y": np.arange(12.0) ** 2}
    return from_table(table if target is None else target, target="y", task="regression", **options)


@pytest.mark.parametrize("rows", [["007", "012"], ["007", "7", "AB1"], ["AB1"]])
def test_a_file_of_new_rows_keeps_codes_as_they_are_written(rows: list[str], tmp_path: Path) -> None:
    """Whatever else is in the file: by itself "007" looks like the number 7, which is another category."""
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["code", *rows]), encoding="utf-8")
    data = codes()
    assert torch.equal(data.inputs(path), data.inputs({"code": rows}))
    path.write_text("\n".join(["code,y", *(f"{row},{i}" for i, row in enumerate(rows))]), encoding="utf-8")
    assert torch.equal(codes(test=path).test.x, data.inputs({"code": rows}))


def test_categorical_columns_of_a_file_keep_their_codes(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("code,y\n007,1\n7,2\n007,3\n7,5\n", encoding="utf-8")
    (kind,) = from_table(path, target="y", task="regression", categorical=["code"]).columns.kinds
    assert isinstance(kind, Categorical)
    assert kind.categories == ("007", "7")


def test_codes_that_a_file_reads_as_numbers_are_told(tmp_path: Path, caplog) -> None:
    path = tmp_path / "table.csv"
    path.write_text("zip,part,y\n01067,0.5,1\n1067,0,3\n02999,1,2\n", encoding="utf-8")
    from_table(path, target="y", task="regression")
    (told,) = caplog.messages
    assert told.startswith("column 'zip' is read as numbers, so '01067' is 1067; if these are codes, say cat")
    caplog.clear()
    for options in ({"categorical": ["zip"]}, {"drop": ["zip"]}):
        from_table(path, target="y", task="regression", **options)
    assert not caplog.records


def test_categories_of_many_rows_are_looked_up_once_each(caplog) -> None:
    """Comparing each row with each category took minutes."""
    names = np.array([f"town {i % 3000}" for i in range(6000)], dtype=object)
    looked_up = Counter[str]()

    class Watched(Categorical):
        def _known(self, text: str | None) -> str | None:
            looked_up[str(text)] += 1
            return super()._known(text)

    kind = Watched.learn("town", names)
    rows = np.array(["town 7", "new", None, "new", "town 2999"], dtype=object)
    found = kind.inputs(rows)
    share = np.full(3000, 1 / 3000)
    expected = np.zeros((5, 3000))
    for row, name in ((0, "town 7"), (4, "town 2999")):
        expected[row] = (np.array(kind.categories) == name) - share
    np.testing.assert_array_equal(found, expected)
    assert looked_up == {"new": 1, "None": 1}
    assert "2 of 5 rows hold a category that no training row has, such as 'new'" in caplog.text


def test_categories_that_fill_the_memory_are_told(caplog, monkeypatch) -> None:
    table = {"id": [f"{i // 2} a" for i in range(40)], "town": ["a", "b"] * 20, "y": np.arange(40) / 7}
    monkeypatch.setattr("pyrobbb.data.columns.LARGE", 40 * 22 * 8)
    from_table(table, target="y")
    assert not caplog.records
    from_table(table | {"flag": [True, False] * 20}, target="y")
    assert "make 24 inputs, 7.68e-06 GB in double precision: column 'id' has 20; leave it out" in caplog.text


def test_numbers_for_codes_that_no_number_tells_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="holds numbers here but text such as '007' in the training rows"):
        codes().inputs({"code": [7, 12]})
    data = from_table({"code": [7, 12, 7, 12], "y": [0.5, 1, 2, 3]}, target="y", categorical=["code"])
    assert torch.equal(data.inputs({"code": ["7", "12.0"]}), data.inputs({"code": [7, 12]}))


def test_words_for_missing_values_may_be_categories(tmp_path: Path) -> None:
    words = ["none", "NA", "low", "high"]
    data = codes({"code": words * 3, "y": np.arange(12.0) ** 2})
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["code", *words, "?"]), encoding="utf-8")
    assert torch.equal(data.inputs(path), data.inputs({"code": [*words, None]}))


def test_rows_of_numbers_and_text_keep_their_numbers() -> None:
    rows = [[i / 3, 10 - i, "even" if i % 2 else "odd"] for i in range(12)]
    kinds = from_table(rows).columns.kinds
    assert [type(kind) for kind in kinds] == [Numeric, Numeric]


def test_a_first_line_of_numbers_is_a_row_also_where_one_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "table.csv"
    path.write_text("NA,158.7\n2,3\n4,5\n", encoding="utf-8")
    assert {name: len(column) for name, column in as_frame("table", path).items()} == {"0": 3, "1": 3}
    assert "table.csv: the first line holds only numbers, so it is read as a row" in caplog.text


@pytest.mark.parametrize("form", ["{:,}", "{} EUR", "{}%", "$ {}", "{}.5 km"])
def test_numbers_that_are_written_with_more_are_told(form: str, caplog: pytest.LogCaptureFixture) -> None:
    table = {"pay": [form.format(1000 + i // 2) for i in range(60)], "y": [i / 7 for i in range(60)]}
    assert from_table(table, target="y").train.x.shape[1] == 30
    assert "column 'pay' is treated as categorical because its values are text, such as" in caplog.text
    caplog.clear()
    mixed = [f"{500 + 50 * (i // 2):,}" for i in range(60)]  # 950 beside 1,050
    from_table({**table, "pay": mixed}, target="y")
    assert "column 'pay' is treated as categorical" in caplog.text
    caplog.clear()
    dates = [f"2024.01.{i // 2 + 1:02d}" for i in range(60)]
    from_table({**table, "pay": dates}, target="y")
    from_table(table, target="y", categorical=["pay"])
    codes = {"room": [f"{i // 2}-{i % 3}b" for i in range(60)], "y": table["y"]}
    from_table({**codes, "few": [form.format(i % 5) for i in range(60)]}, target="y", drop=["room"])
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("form", "most", "told"),
    [("{}", 30, True), ("{}.5", 30, True), ("0{}", 30, False), ("100{:02}", 30, False), ("{}", 10, False)],
    ids=["whole", "fractions", "codes", "codes of one length", "few"],
)
def test_numbers_as_text_are_told_where_they_are_many(
    form: str, most: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"pay": [form.format(i % most) for i in range(60)], "y": [i / 7 for i in range(60)]}
    assert from_table(table, target="y").spec.features == (most,)
    assert ("if they are numbers, make them numbers, as pandas.to_numeric does" in caplog.text) is told
    caplog.clear()
    from_table(table, target="y", categorical=["pay"])
    assert caplog.text == ""


def test_a_row_whose_category_is_missing_holds_no_number() -> None:
    codes = ["007", "012", "7a", None] * 10
    data = from_table({"code": codes, "y": [i / 7 for i in range(40)]}, target="y")
    alone, beside = (data.inputs({"code": given}) for given in ([None], [None, "007"]))
    assert torch.equal(alone[0], beside[0])
    assert alone.abs().sum() > 0


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


def test_a_slip_in_a_column_of_numbers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    from_table({"age": [20.0, 21.0, 20.0, 21.0, "unknown", 20.0], "y": SIZE}, target="y", task="regression")
    assert (
        "column 'age' is treated as categorical because 1 of its 6 values cannot be read as numbers, such as "
        "'unknown' in row 4, counted from 0"
    ) in caplog.text
    caplog.clear()
    codes(categorical=["code"])
    assert not caplog.records


@pytest.mark.parametrize(
    ("column", "task", "message"),
    [
        (
            "size",
            None,
            "column 'size' is numeric, but 1 of its 30 values .* '1.2.3' in row 7, counted",
        ),
        ("price", None, "column 'price' is numeric, but 1 of its 30 values .* '1.2.3' in row 7, coun"),
        ("price", "regression", "the table: target 'price' holds the text '1.2.3' in row 7, counted from 0"),
    ],
)
def test_a_bad_cell_of_a_file_is_named(tmp_path: Path, column: str, task: Any, message: str) -> None:
    path, rows = tmp_path / "table.csv", [f"{i / 7},{i / 3}" for i in range(30)]
    rows[7] = "1.2.3,2.5" if column == "size" else "2.5,1.2.3"
    path.write_text("\n".join(["size,price", *rows]), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        from_table(path, task=task, test=0.2)


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


def test_numbers_may_be_too_large() -> None:
    with pytest.raises(ValueError, match="column 'x' holds a whole number that is too large"):
        from_table({"x": [10**400, 1], "y": [0.5, 1.5]})


def test_a_column_that_is_not_used_may_hold_dates() -> None:
    dates = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]").astype(object)  # 60
    frame = {"date": dates, "a": np.arange(60.0), "y": np.arange(60.0)}
    data = from_table(frame, target="y", task="regression", drop=["date"], test=frame)
    assert data.train.x.shape == (60, 1)
    torch.testing.assert_close(data.columns.inputs(frame), data.test.x.double())
    with pytest.raises(ValueError, match=r"column 'date' holds values of type date; .* or leave them out"):
        from_table(frame, target="y", task="regression")


def test_a_raw_column_comes_as_it_stands_and_last() -> None:
    frame = {"years": [3.0, 0.5, 7.0, 1.0], "town": list("abab"), "a": [1.0, 2, 3, 5], "n": [0, 2, 1, 4]}
    data = from_table(frame, target="n", task="regression", raw=["years"])
    torch.testing.assert_close(data.train.x[:, -1], torch.tensor(frame["years"]))
    columns = from_plain(json.loads(json.dumps(data.columns.plain())))
    torch.testing.assert_close(columns.inputs(frame), data.train.x.double())
    for years, message in (
        ([1.0, None], "'years' is raw, but has no value in row 1, counted from 0"),
        (["a", "b"], "'years' is raw and must hold numbers, but here 'a' in row 0"),
    ):
        with pytest.raises(ValueError, match=message):
            columns.inputs({"years": years, "town": ["a", "b"], "a": [1, 2]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"raw": ["yers"]}, "raw: the table has no column 'yers'; it has years, a, n"),
        ({"raw": ["n"]}, "target: n must not be in drop or raw"),
        ({"weights": "n"}, "weights: 'n' is the target; name another column"),
        ({"raw": ["a", "a"]}, "raw: a, a: name each once, and nowhere else"),
        ({"raw": ["a"], "drop": ["a"]}, "raw: a: name each once, and nowhere else"),
        ({"raw": "a"}, "raw must be a list of column names, got 'a'"),
    ],
)
def test_raw_columns_are_numbers_of_the_table(options: dict[str, Any], message: str) -> None:
    frame = {"years": [3.0, 0.5], "a": [1.0, 2], "n": [0, 2]}
    with pytest.raises(ValueError, match=message):
        from_table(frame, target="n", task="regression", **options)


@pytest.mark.parametrize("written", [(True, False), ("TRUE", "FALSE"), ("True", "False"), ("true", "false")])
@pytest.mark.parametrize(
    "given",
    [(True, False), ("True", "False"), ("TRUE", "false"), ("TRUE", 0), ("1", "0"), (1, 0), (1.0, 0.0)],
)
def test_a_truth_value_is_one_however_it_is_written(written: Any, given: Any) -> None:
    yes, no = written
    data = from_table({"a": [yes, no, yes, no], "n": [1.5, 2.0, 3.0, 4.5]}, target="n")
    assert data.train.x.any()
    assert torch.equal(data.inputs({"a": [*given]}), data.train.x[:2])
    classes = from_table({"n": [1.5, 2.0, 3.0, 4.5], "a": [yes, no, yes, no]}, target="a").columns
    if given != (1.0, 0.0):  # which are no truth values to a column of texts
        assert classes.labels("y", [*given]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="y is None, a class not in the training rows"):
        classes.labels("y", [yes, None])


def test_a_column_of_zeros_and_ones_takes_booleans() -> None:
    data = from_table({"a": [0, 1, 1, 0, 0], "n": [1.5, 2.0, 3.0, 4.5, 1.0]}, target="n")
    assert torch.equal(data.inputs({"a": [False, True]}), data.train.x[:2])
    assert torch.equal(data.inputs({"a": [False, None]}), data.inputs({"a": [0, None]}))


def test_a_mask_in_another_order_is_refused() -> None:
    frame = pandas.DataFrame({"a": [1.0, 2, 3, 4], "n": [1.5, 2.5, 3.5, 4.5]})
    turned, mask = frame.iloc[::-1], frame.a < 3
    with pytest.raises(ValueError, match="the table and test have different row labels"):
        from_table(turned, target="n", test=mask)
    with pytest.raises(ValueError, match="the table and test have different row labels"):
        from_table(turned[["a"]], turned.n, test=mask)
    assert from_table(turned, target="n", test=turned.a < 3).test.y.flatten().tolist() == [2.5, 1.5]


def test_a_series_of_numbers_is_read_whole() -> None:
    """As lists they had taken thirty times as long."""
    n = [1.5, 2.0, np.nan, 4.5]
    frame = pandas.DataFrame({"f": pandas.Series(n), "i": [1, 2, 3, 5], "b": [True, False, True, True]})
    frame["I"] = pandas.Series([1, None, 3, 4], dtype="Int64")
    columns = as_frame("x", frame)
    assert {name: column.dtype.kind for name, column in columns.items()} == {
        "f": "f", "i": "f", "b": "O", "I": "f",
    }  # fmt: skip
    np.testing.assert_array_equal(columns["f"], n)
    np.testing.assert_array_equal(columns["I"], [1, np.nan, 3, 4])
    assert columns["b"].tolist() == ["True", "False", "True", "True"]


def test_a_target_of_numbers_as_text_is_refused() -> None:
    n = [f"{i / 10}" for i in range(30)]
    with pytest.raises(ValueError, match=r"target 'n' holds 30 numbers written as text: .*to_numeric"):
        from_table({"a": np.arange(30.0), "n": n}, target="n")
    for form in ("{},034", "{}%", "{},5", "{} EUR"):
        with pytest.raises(ValueError, match=r"'n' holds 30 numbers written as text: .*1034\.5"):
            from_table({"a": np.arange(30.0), "n": [form.format(i) for i in range(30)]}, target="n")
    few = from_table({"a": np.arange(30.0), "n": ["1", "2", "3"] * 10}, target="n")
    assert few.spec.task == "classification"


def test_what_is_left_out_may_hold_anything_where_y_is_given_apart() -> None:
    x = pandas.DataFrame({"a": SIZE, "day": pandas.date_range("2024-01-01", periods=6)})
    pair = (x, SIZE)
    data = from_table(x, SIZE, task="regression", drop=["day"], validation=pair, test=pair)
    for split in (data.train, data.validation, data.test):
        assert split is not None
        assert torch.equal(split.x, from_table(x[["a"]], SIZE, task="regression").train.x)


@pytest.mark.parametrize(
    "values", [pandas.cut([*SIZE[:5], np.nan], 2), pandas.to_datetime([0, 0, 1, 1, 2, None])]
)
def test_categories_of_any_kind_go_by_their_text(values: Any) -> None:
    frame = pandas.DataFrame({"a": pandas.Categorical(values), "y": SIZE})
    data = from_table(frame, task="regression")
    texts = frame.assign(a=[None if pandas.isna(value) else str(value) for value in values])
    assert data.train.x.shape[1] > 2
    for rows in (frame, texts):
        assert torch.equal(data.inputs(rows), data.train.x)


@pytest.mark.parametrize("form", ["2024-{:02d}-{:02d}", "{1:02d}/{0:02d}/2024"])
def test_dates_as_text_are_told(form: str, caplog: pytest.LogCaptureFixture) -> None:
    dates = [form.format(month, day) for month in range(1, 6) for day in range(1, 7)] * 3
    from_table({"when": dates, "n": np.arange(90) / 7}, target="n")
    assert "dates say more as numbers, such as days since the first" in caplog.text


def test_a_row_that_counts_nothing_may_lack_its_target() -> None:
    table = {"a": [1.0, 2, 3, 4], "n": [1.5, 2.5, np.nan, 4.5], "w": [1, 1, 0, 2]}
    data = from_table(table, target="n", weights="w")
    assert data.train.y.flatten().tolist() == [1.5, 2.5, 4.5]
    with pytest.raises(ValueError, match="test: target 'n' is missing in 1 rows"):
        from_table(table, target="n", weights="w", test=[2])
    with pytest.raises(ValueError, match="the first of them row 3, counted from 0;"):
        from_table(table | {"n": [1.5, 2.5, np.nan, np.nan]}, target="n", weights="w")


def test_rows_held_back_count_as_often_as_their_column_says() -> None:
    table = {"a": [1.0, 2, 3, 4, 5], "n": [1.5, 2.5, 3.5, 4.5, 5.5], "w": [1, 0, 3, 4, 0]}
    data = from_table(table, target="n", weights="w", validation=[1, 2], test=table)
    assert [data.validation.weights.tolist(), data.test.weights.tolist()] == [[0, 3], [1, 0, 3, 4, 0]]
    other = {name: table[name] for name in ("a", "n")}
    assert from_table(table, target="n", weights="w", test=other).test.weights is None
    advice = "those for validation or test may also come as a table without this column, and count once"
    for absent in (0.0, np.nan):
        blank = table | {"w": [1, absent, 3, 4, absent]}
        with pytest.raises(ValueError, match=rf"test: column 'w'.* (all 0|not finite).*; {advice}"):
            from_table(blank, target="n", weights="w", test=[1, 4])


def test_weights_may_be_booleans() -> None:
    table = {"a": [1.0, 2, 3, 4], "n": [1.5, 2.5, 3.5, 4.5]}
    counts = [True, True, False, True]
    of_column = from_table(table | {"w": counts}, target="n", weights="w")
    for given in (counts, np.array(counts), pandas.Series(counts)):
        beside = from_table({"a": table["a"]}, table["n"], weights=given)
        for data in (of_column, beside):
            assert data.train.weights.tolist() == [1.0, 1.0, 1.0]
            assert data.train.y.flatten().tolist() == [1.5, 2.5, 4.5]


def test_booleans_that_are_said_to_be_values_are_zeros_and_ones() -> None:
    table = {"a": [1.0, 2, 3, 4], "n": [True, False, False, True]}
    data = from_table(table, target="n", task="regression", test=table)
    for part in (data.train, data.test):
        assert part.y.tolist() == [[1.0], [0.0], [0.0], [1.0]]


def test_parts_may_be_masks_and_pairs_are_explained() -> None:
    table = {"a": [1.0, 2, 3, 4], "n": [1.5, 2.5, 3.5, 4.5]}
    mask = [False, True, False, False]
    for given in (mask, np.array(mask), pandas.Series(mask)):
        assert from_table(table, target="n", test=given).test.y.tolist() == [[2.5]]
    with pytest.raises(ValueError, match="whole numbers from 0 to 3, the rows of the table, or 4 booleans"):
        from_table(table, target="n", test=[True, False])
    with pytest.raises(ValueError, match=r"test is a pair \(x, y\), which goes with from_table\(x, y\)"):
        from_table(pandas.DataFrame(table), target="n", test=(pandas.DataFrame(table), table["n"]))


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_masked_dates_are_no_numbers(unit: str) -> None:
    days = np.array(["2026-01-01", "2026-01-02"], dtype=f"datetime64[{unit}]")
    with pytest.raises(ValueError, match=f"day holds datetime64\\[{unit}\\]"):
        as_column("day", np.ma.masked_array(days, [False, True]))
