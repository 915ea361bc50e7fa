"""The charts as Vega-Lite: each function turns rows of numbers into a specification that a page embeds.

Marks are hidden from assistive technology, which reads the table beside a chart.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, TypeAlias

import altair as alt

# Okabe and Ito's palette, of which each has a contrast of 3 to 1 on white and on the dark page
BLUE, ORANGE, RED, GREY = "#0E7BBB", "#C77C00", "#D55E00", "#7F7F7F"
CHAINS = [BLUE, ORANGE, "#009E73", "#B8629A", RED, "#8A6FBF", "#6B8E23", GREY]
HEIGHT = 240
FEW = 10  # ticks
WIDE = 20.0  # a factor between the largest and the smallest value from which an axis is logarithmic
INK = "currentColor"  # that of the page, light or dark
DASHED: dict[str, Any] = {"strokeDash": [5, 4], "strokeWidth": 1.5}
TIGHT = alt.Scale(zero=False, nice=False)  # from the first value to the last

X, Y = partial(alt.X, type="quantitative"), partial(alt.Y, type="quantitative")

Row: TypeAlias = Mapping[str, Any]
Spec: TypeAlias = dict[str, Any]


def curves(rows: Sequence[Row], x: str, y: str, by: str, *, line: tuple[float, str] | None = None) -> Spec:
    """`y` over `x`, a curve for each value of `by`; `line` is a level to compare with, and its words."""
    values = [row[y] for row in rows] + ([line[0]] if line else [])
    scale = alt.Scale(type="log") if logarithmic(values) else alt.Scale(zero=False)
    base = alt.Chart(_data(rows)).encode(
        x=X(field=x, axis=_whole(rows, x), scale=TIGHT),
        y=Y(field=y, scale=scale),
        color=_colour(rows, by),
        tooltip=[*_tips(rows, None, x), *_tips(rows, ".4~g", y, by)],
    )
    layers = [base.mark_line(strokeWidth=2), base.mark_point(size=90, opacity=0, filled=True)]
    if len(rows) <= 30 * len(_names(rows, by)):
        layers.append(base.mark_point(size=22, filled=True, tooltip=None))
    if line:
        level, words = line
        end = alt.Chart(_data([{y: level, x: max(row[x] for row in rows), "words": words}]))
        end = end.encode(y=Y(field=y, scale=scale))
        above: Any = {"align": "right", "baseline": "bottom", "dy": -3, "fontSize": 12}
        layers.append(end.mark_rule(color=INK, **DASHED))
        layers.append(end.mark_text(color=INK, **above).encode(x=X(field=x), text="words:N"))
    return _spec(alt.layer(*layers))


def bars(rows: Sequence[Row], x: str, tooltip: Sequence[str]) -> Spec:
    """Horizontal bars in the order of the rows, named by their `layer`."""
    chart = alt.Chart(_data(rows)).mark_bar(color=BLUE).encode(
        x=X(field=x, axis=alt.Axis(format="~s")),
        y=alt.Y(field="layer", type="nominal", sort=None, axis=alt.Axis(title=None, labelLimit=160)),
        tooltip=_tips(rows, ",.4~g", "layer", *tooltip),
    )  # fmt: skip
    return _spec(chart, height=max(70, 34 * len(rows)))


def against_diagonal(rows: Sequence[Row], x: str, y: str, tooltip: Sequence[str]) -> Spec:
    """Points beside the line on which `x` and `y`, both shares, are equal, and the gap to it."""
    low = max(0.0, min(0.9, *(min(row[x], row[y]) for row in rows)) - 0.05) if rows else 0.0
    scale = alt.Scale(domain=[low, 1], nice=False)
    base = alt.Chart(_data(rows)).encode(
        x=X(field=x, scale=scale, axis=alt.Axis(format="%")),
        tooltip=[*_tips(rows, ".1%", x, y), *_tips(rows, ",", *tooltip)],
    )
    upright = Y(field=y, title=y, scale=scale, axis=alt.Axis(format="%"))
    ends = _data([{x: low, y: low}, {x: 1.0, y: 1.0}])
    diagonal = alt.Chart(ends).mark_line(color=GREY, **DASHED)
    layers = [
        diagonal.encode(x=X(field=x), y=Y(field=y)),
        base.mark_rule(color=RED, strokeWidth=3, opacity=0.55).encode(
            y=upright, y2=alt.Y2(field=x, title=None), tooltip=alt.value(None)
        ),
        base.mark_point(size=90, filled=True, color=BLUE, opacity=1).encode(y=upright),
    ]
    return _spec(alt.layer(*layers), height=300)


def density(rows: Sequence[Row], x: str, *, mark: float | None = None) -> Spec:
    """The `density` of each name in `of`, as steps over the left edges of bins; `mark` is an upright line."""
    base = alt.Chart(_data(rows)).encode(
        x=X(field=x, scale=TIGHT),
        y=Y(field="density"),
        color=_colour(rows, "of"),
        tooltip=_tips(rows, ".3~g", "of", x, "density"),
    )
    layers = [
        base.mark_area(interpolate="step-after", opacity=0.25, line=False, tooltip=None).encode(
            y=Y(field="density", stack=None)
        ),
        base.mark_line(interpolate="step-after", strokeWidth=1.8),
        base.mark_point(size=60, opacity=0, filled=True),
    ]
    if mark is not None:
        line = alt.Chart(_data([{x: mark}])).mark_rule(color=RED, **DASHED)
        layers.append(line.encode(x=X(field=x)))
    return _spec(alt.layer(*layers))


def band(rows: Sequence[Row], x: str, y: str, points: Sequence[Row]) -> Spec:
    """A curve within its 50 % and 90 % intervals, and data.

    Args:
        rows: With the columns `x`, `mean`, `low90`, `low50`, `high50` and `high90`.
        x: What the axis of the column `x` is called.
        y: The same of the others.
        points: The data, with the columns `x` and `y`.
    """
    called = {"x": x, "y": y}
    shape = alt.Chart(_data(rows)).encode(x=X(field="x", title=x, scale=TIGHT))
    dots = alt.Chart(_data(points)).mark_point(color=ORANGE, filled=True, size=26, opacity=0.85)
    layers = [
        *(
            shape.mark_area(color=BLUE, opacity=opacity).encode(
                y=alt.Y(f"low{level}:Q", title=y), y2=f"high{level}:Q"
            )
            for level, opacity in ((90, 0.2), (50, 0.3))
        ),
        shape.mark_line(color=BLUE, strokeWidth=2).encode(y=alt.Y("mean:Q", title=y)),
        shape.mark_point(size=90, opacity=0, filled=True).encode(
            y="mean:Q", tooltip=_tips(rows, ".4~g", "x", "mean", "low90", "high90", called=called)
        ),
        dots.encode(
            x=X(field="x", title=x),
            y=alt.Y("y:Q", title=y),
            tooltip=_tips(points, ".4~g", "x", "y", called=called),
        ),
    ]
    return _spec(alt.layer(*layers), height=320)


def parallel(axes: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> Spec:
    """A line for each run over several axes, coloured by its score; hovering singles one out.

    Args:
        axes: For each tick: `axis`, `place` from 0 to 1 and `words`.
        lines: For each run and axis: `run`, `axis`, `place`, `words`, `score` and `summary`.
    """
    order = _names(axes, "axis")
    x = alt.X("axis:N", sort=order, scale=alt.Scale(type="point", padding=0.3),
              axis=alt.Axis(title=None, labelAngle=0, labelLimit=140, domain=False, ticks=False, grid=False,
                            orient="top", labelFontWeight="bold"))  # fmt: skip
    shares = alt.Scale(domain=[-0.03, 1.07], nice=False)
    y = alt.Y("place:Q", axis=None, scale=shares)
    hover = alt.selection_point(
        fields=["run"], on="pointerover", nearest=False, empty=True, clear="pointerout"
    )
    rule = alt.Chart(_data([{"axis": a, "low": 0, "high": 1} for a in order]))
    runs = alt.Chart(_data(lines)).encode(
        x=x, y=y, detail="run:N",
        color=alt.Color("score:Q", scale=alt.Scale(range=[BLUE, ORANGE], interpolate="lab"), legend=None),
        tooltip=[alt.Tooltip("summary:N", title="run")],
    )  # fmt: skip
    layers = [
        rule.mark_rule(color=GREY, strokeWidth=1).encode(
            x=x, y=alt.Y("low:Q", axis=None, scale=shares), y2="high:Q"
        ),
        runs.mark_line(strokeWidth=2.5).encode(
            opacity=alt.condition(hover, alt.value(0.9), alt.value(0.12))
        ).add_params(hover),
        runs.mark_point(size=70, filled=True, opacity=1),
        alt.Chart(_data(axes))
        .mark_text(align="left", dx=6, dy=-9, fontSize=11, color=INK)
        .encode(x=x, y=y, text="words:N"),
    ]  # fmt: skip
    return _spec(alt.layer(*layers), height=340)


def logarithmic(values: Sequence[float]) -> bool:
    """Whether an axis over these values is logarithmic."""
    return min(values) > 0 and max(values) > WIDE * min(values)


def _spec(chart: Any, height: int = HEIGHT) -> Spec:
    """As wide as its place on the page, in the page's own colours."""
    made = chart.properties(
        width="container", height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
    )
    looks = {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "mark": {"aria": False},
        "axis": {
            **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor"), INK),
            **{"gridColor": GREY, "gridOpacity": 0.25, "labelFontSize": 12, "titleFontSize": 12},
            **{"titleFontWeight": "normal", "titlePadding": 8},
        },
        "legend": {"labelColor": INK, "titleColor": INK, "orient": "top", "labelFontSize": 12, "title": None},
    }
    spec: Spec = made.to_dict(validate=False)  # the tests do; it takes longer than all the rest
    spec["config"] = looks
    spec.pop("$schema", None)
    return spec


def _names(rows: Sequence[Row], by: str) -> list[str]:
    """The different values of a column, in the order of the rows."""
    return list(dict.fromkeys(str(row[by]) for row in rows))


def _colour(rows: Sequence[Row], by: str) -> Any:
    names = _names(rows, by)
    columns = 2 if max(map(len, names), default=0) > 10 else 4
    legend = alt.Legend(title=None, columns=columns) if len(names) > 1 else None
    colours = (CHAINS * (1 + len(names) // len(CHAINS)))[: len(names)]
    scale = alt.Scale(domain=names, range=colours)
    return alt.Color(field=by, type="nominal", sort=names, scale=scale, legend=legend)


def _data(rows: Sequence[Row]) -> alt.Data:
    """Rows as inline data; a number that is not finite has no place in JSON."""

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and not isfinite(value) else value

    return alt.Data(values=[{name: plain(value) for name, value in row.items()} for row in rows])


def _whole(rows: Sequence[Row], x: str) -> Any:
    """An axis without ticks between the whole numbers where there are only a few."""
    values = sorted({row[x] for row in rows})
    return alt.Axis(values=values, format="d") if len(values) <= FEW else alt.Axis(format="~s")


def _tips(
    rows: Sequence[Row], form: str | None, *names: str, called: Mapping[str, str] | None = None
) -> list[Any]:
    """What hovering shows of these columns: numbers in that format, everything else as it is."""
    number: Any = {"type": "quantitative", "format": form or alt.Undefined}
    return [
        alt.Tooltip(field=name, title=(called or {}).get(name, name), **number)
        if all(isinstance(row[name], int | float) for row in rows)
        else alt.Tooltip(field=name, type="nominal")
        for name in names
    ]
