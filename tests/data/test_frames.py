"""Whatever holds a table gives the same columns: arrays, mappings, frames of pandas, files."""

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from pyrobbb.data import Table, from_arrays, from_table
from pyrobbb.data.columns import Categorical, Numeric
from pyrobbb.data.frames import as_column, as_frame
from table_cases import SIZE, TABLE, codes, load


def test_numbers_in_arrays_of_objects_are_numbers():
    """As pandas and numpy keep a column of which a value is None."""
    data = from_table({"size": [1.0, 2.0, None, 4.0], "town": ["a", "b", None, "a"], "y": [0.5, 2, 3, 5]})
    new = {"size": [80.0, None], "town": ["b", None]}
    objects = {name: np.array(column, dtype=object) for name, column in new.items()}
    assert torch.equal(data.columns.inputs(objects), data.columns.inputs(new))


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


def test_a_file_of_another_kind(tmp_path: Path):
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(ValueError, match=r"must end in \.csv"):
        Table(source=tmp_path / "t.xlsx").load()


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


def test_a_file_read_by_pandas_has_the_same_categories(tmp_path: Path) -> None:
    """Which keeps the blanks around a text."""
    path = tmp_path / "towns.csv"
    path.write_text("town,y\nUlm, no\n Ulm,yes\nHof , yes\n")
    ours, theirs = (from_table(table, target="y") for table in (path, pandas.read_csv(path)))
    assert ours.columns == theirs.columns
    assert ours.columns.kinds[0].categories == ("Hof", "Ulm")
    assert torch.equal(ours.train.x, theirs.train.x)


def test_a_blank_cell_is_missing_as_in_a_file() -> None:
    data = from_table({"size": [1.5, " ", 2.5, 3.0], "town": ["Ulm", "", None, "Hof"], "y": np.arange(4) / 3})
    assert [type(kind).__name__ for kind in data.columns.kinds] == ["Numeric", "Categorical"]
    assert data.columns.kinds[1].categories == ("Hof", "Ulm", None)


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


@pytest.mark.parametrize("form", ["2024-{:02d}-{:02d}", "{1:02d}/{0:02d}/2024"])
def test_dates_as_text_are_told(form: str, caplog: pytest.LogCaptureFixture) -> None:
    dates = [form.format(month, day) for month in range(1, 6) for day in range(1, 7)] * 3
    from_table({"when": dates, "n": np.arange(90) / 7}, target="n")
    assert "dates say more as numbers, such as days since the first" in caplog.text


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_masked_dates_are_no_numbers(unit: str) -> None:
    days = np.array(["2026-01-01", "2026-01-02"], dtype=f"datetime64[{unit}]")
    with pytest.raises(ValueError, match=f"day holds datetime64\\[{unit}\\]"):
        as_column("day", np.ma.masked_array(days, [False, True]))
