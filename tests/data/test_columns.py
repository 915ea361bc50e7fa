"""Columns become inputs and targets: categories, codes, truth values, what is missing."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from pyrobbb.data import from_table
from pyrobbb.data.columns import Categorical, Numeric, from_plain
from pyrobbb.data.texts import as_text
from table_cases import SIZE, TABLE, TEST_ROWS, codes, load


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


@pytest.mark.parametrize("options", [{"target": 0, "weights": 3}, {"target": 0, "drop": [3]}, {"target": 1}])
def test_columns_without_names_are_all_there_or_the_last_are_absent(options: dict[str, Any]) -> None:
    """Of inputs alone each would be another column than in training."""
    table = np.random.default_rng(0).normal(size=(20, 4)) ** 2
    columns = from_table(table, task="regression", **options).columns
    torch.testing.assert_close(
        columns.inputs(table[:3]), columns.inputs(dict(zip("0123", table[:3].T, strict=True)))
    )
    gone = [options["target"], *([3] if len(options) > 1 else [])]
    message = (
        r"the rows have . columns without names, those of training had 4, .*give all 4 in the same order"
    )
    for rows in (np.delete(table[:3], gone, axis=1), np.delete(table[:3], gone[:1], axis=1)):
        with pytest.raises(ValueError, match=message):
            columns.inputs(rows)
    again = from_plain(columns.plain())
    with pytest.raises(ValueError, match=message):
        again.inputs(table[:3, 1:])
    last = from_table(table, target=2, weights=3, task="regression").columns
    torch.testing.assert_close(last.inputs(table[:3, :2]), last.inputs(table[:3]))


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


def test_unknown_categories_are_told(caplog: pytest.LogCaptureFixture) -> None:
    data = load()
    data.inputs({"size": [1.0, 2.0], "rooms": [1, 2], "town": ["Rom", "Ulm"]})
    assert "column 'town': 1 of 2 rows hold a category that no training row has, such as 'Rom'" in caplog.text


def test_whole_numbers_of_16_digits_are_categories_and_classes_of_their_own() -> None:
    ids = [1234567890123456 + i % 3 for i in range(60)]
    data = from_table({"a": np.arange(60.0), "id": ids, "y": ids}, task="classification", categorical=["id"])
    names = ("1234567890123456", "1234567890123457", "1234567890123458")
    assert data.columns.classes == data.columns.kinds[1].categories == names
    assert data.train.y.tolist() == [i % 3 for i in range(60)]


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


def test_the_names_of_categories_stay_as_saved_posteriors_have_them() -> None:
    values = [-3.0, 0.1 + 0.2, 0.3, 2.0, 1e15, 12.5, 999999999999999.0]
    names = ["-3", "0.3", "0.3", "2", "1e+15", "12.5", "999999999999999"]
    assert list(as_text("a", np.array(values))) == names
    data = from_table({"a": SIZE, "y": [0.3, 0.1 + 0.2, 2.0, 2.0, 0.3, 2.0]}, task="classification")
    assert data.columns.classes == ("0.3", "2")
    assert data.train.y.tolist() == [0, 0, 1, 1, 0, 1]


def test_a_number_beside_text_is_one_category_however_it_is_kept() -> None:
    codes = [1, 1.0, np.float32(1), "1", "a", -0.0, 0, 0.5, np.float32(0.1), "0.1"]
    (kind,) = from_table({"code": codes, "y": np.arange(10) / 3}).columns.kinds
    assert kind.categories == ("0", "0.1", "0.5", "1", "a")


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


def test_a_row_whose_category_is_missing_holds_no_number() -> None:
    codes = ["007", "012", "7a", None] * 10
    data = from_table({"code": codes, "y": [i / 7 for i in range(40)]}, target="y")
    alone, beside = (data.inputs({"code": given}) for given in ([None], [None, "007"]))
    assert torch.equal(alone[0], beside[0])
    assert alone.abs().sum() > 0


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
