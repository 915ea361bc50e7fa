"""The charts: valid Vega-Lite, with the numbers that they were given."""

import json
from math import nan

import altair as alt
import pytest
import vl_convert

from pyrobbb.report import charts
from pyrobbb.report.sweep import _axis

CURVE = [{"epoch": i, "loss (nats)": 3.0 - i, "chain": f"chain {c}"} for c in range(2) for i in range(3)]
SHARES = [{"said": 0.5, "came": 0.4, "examples": 3}, {"said": 0.9, "came": 1.0, "examples": 7}]
BAND = [{"x": float(i), "mean": 0.0, "low50": -1, "high50": 1, "low90": -2, "high90": 2} for i in range(4)]
AXES = [{"axis": a, "place": p, "words": str(p)} for a in ("lr", "score") for p in (0.0, 1.0)]
LINES = [
    {"run": f"run {i}", "axis": a, "place": 0.5, "score": 1.0, "summary": "1"}
    for i in (1, 2)
    for a in ("lr", "score")
]
DRAWN = {
    "curves": charts.curves(CURVE, "epoch", "loss (nats)", "chain", line=(1.5, "ignoring the inputs: 1.5")),
    "bars": charts.bars([{"layer": "0.weight", "KL (nats)": 3.0, "weights": 8}], "KL (nats)", ["weights"]),
    "diagonal": charts.against_diagonal(SHARES, "said", "came", ["examples"]),
    "density": charts.density([{"at": 0.1, "density": 2.0, "of": "prior"}], "at", mark=0.0),
    "band": charts.band(BAND, "size [m2]", "a.b", [{"x": 1.0, "y": 0.3}]),
    "parallel": charts.parallel(AXES, LINES),
}


def values(spec):
    """Every number and word among the inline data."""
    found = set()
    for layer in [spec, *spec.get("layer", [])]:
        for row in layer.get("data", {}).get("values", []):
            found |= set(row.values())
    for rows in spec.get("datasets", {}).values():
        for row in rows:
            found |= set(row.values())
    return found


@pytest.mark.parametrize("name", DRAWN)
def test_each_is_valid_vega_lite(name):
    kind = alt.LayerChart if "layer" in DRAWN[name] else alt.Chart
    kind.from_dict(DRAWN[name], validate=True)
    json.dumps(DRAWN[name], allow_nan=False)


def test_the_tenth_epoch_is_called_ten():
    rows = [{"epoch": i, "loss": 11.0 - i, "chain": "chain 0"} for i in range(1, 11)]
    svg = vl_convert.vegalite_to_svg(charts.curves(rows, "epoch", "loss", "chain"))
    assert ">9</text>" in svg
    assert ">10</text>" in svg
    assert "e+" not in svg


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("curves", {3.0, 1.0, 1.5, "ignoring the inputs: 1.5", "chain 1"}),
        ("bars", {"0.weight", 3.0, 8}),
        ("diagonal", {0.5, 0.4, 3, 7}),
        ("density", {0.1, 2.0, "prior"}),
        ("band", {-2, 2, 0.3}),
        ("parallel", {"lr", "run 2"}),
    ],
)
def test_the_numbers_are_those_given(name, given):
    assert given <= values(DRAWN[name])


def test_names_of_a_table_are_titles_and_no_paths_into_the_data():
    for layer in DRAWN["band"]["layer"]:
        assert (layer["encoding"]["x"]["field"], layer["encoding"]["x"]["title"]) == ("x", "size [m2]")
    tips = [(tip["field"], tip["title"]) for tip in layer["encoding"]["tooltip"]]
    assert tips == [("x", "size [m2]"), ("y", "a.b")]


@pytest.mark.parametrize("name", DRAWN)
def test_marks_are_left_to_the_table_beside_them(name):
    assert DRAWN[name]["config"]["mark"] == {"aria": False}


def scale_of_y(rows, **options):
    spec = charts.curves(rows, "epoch", "y", "chain", **options)
    return spec["layer"][0]["encoding"]["y"]["scale"].get("type", "linear")


@pytest.mark.parametrize(
    ("ys", "line", "kind"),
    [
        ([1.0, 5.0], None, "linear"),
        ([1.0, 50.0], None, "log"),
        ([-1.0, 50.0], None, "linear"),
        ([1.0, 5.0], (50.0, "level"), "log"),
    ],
)
def test_an_axis_is_logarithmic_where_the_values_span_much(ys, line, kind):
    rows = [{"epoch": i, "y": y, "chain": "chain 0"} for i, y in enumerate(ys)]
    assert scale_of_y(rows, line=line) == kind


def test_what_is_not_finite_is_left_blank():
    rows = [{"layer": "a", "KL": nan}, {"layer": "b", "KL": 2.0}]
    assert None in values(charts.bars(rows, "KL", []))


@pytest.mark.parametrize(
    ("given", "places", "ends"),
    [
        ([1.0, 2.0, 3.0], [0, 0.5, 1], ["1", "2", "3"]),
        ([0.001, 0.01, 0.1], [0, 0.5, 1], ["0.001", "0.01", "0.1"]),
        (["Normal", "Laplace", "Normal"], [1, 0, 1], ["Laplace", "Normal"]),
        (["a.csv", "b.csv"], [0, 1], ["a.csv", "b.csv"]),
        ([2, 2], [0.5, 0.5], ["2"]),
        ([0.0, 0.01, 1.0, 0.99], [0, 0.01, 1, 0.99], ["0", "1"]),  # words that would overlap are left out
        ([None, 3], [1, 0], ["3", "none"]),
    ],
)
def test_places_on_an_axis_of_parallel_coordinates(given, places, ends):
    found, marks_of_axis = _axis(given)
    assert found == pytest.approx(places)
    assert [words for words, _ in marks_of_axis] == ends
