"""Fig. 5 from what `experiments.paper.regression` recorded: the table and the picture."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments._runner.tables import mean_sd, table
from pyrobbb.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, caption, label, new_figure, styled

AIM = 3.0  # times the interquartile range on the data
NAMES = {
    "mixture": "mixture (1/2, 1, e^-6)",
    "wide_mixture": "mixture (1/2, 1, e^-3)",
    "gaussian": "Gaussian, sd 1",
    "fan_in": "Gaussian, variance 2 / fan-in",
}
HEAD = ("networks", "held-out log score", "prior IQR at -0.3, 0.25, 1.2", "rmse", "IQR on the data",
        "IQR at -0.3 / on the data", "IQR at 1.2 / on the data", "both at least 3")  # fmt: skip


def rows(record: Mapping[str, Any]) -> list[list[str]]:
    """A row for each prior, two for the smaller network, one for plain ones; means and spreads over seeds."""
    found = []
    for prior, each in record["bayesian"].items():
        chosen = " (chosen)" if prior == record["chosen"] else ""
        score = mean_sd(record["held-out log score"][prior], 2)
        ranges = ", ".join(f"{value:.1f}" for value in record["prior predictive"]["IQR"][prior])
        found.append([f"Bayes by Backprop, {NAMES[prior]}{chosen}", score, ranges, *_cells(each)])
    small = f"1-50-2, {NAMES[record['nuts']['prior']]}"
    found.append([f"Bayes by Backprop, {small}", "-", "-", *_cells(record["smaller"])])
    found.append([f"NUTS, {small}", "-", "-", *_cells([record["nuts"]])])
    found.append(["plain networks: the Gaussian that they say", "-", "-", *_cells(record["plain"])])
    return found


def _cells(each: Sequence[Mapping[str, Any]]) -> list[str]:
    numbers = [("rmse inside", 3), ("IQR inside", 3)]
    cells = [mean_sd([one[name] for one in each], digits) for name, digits in numbers]
    cells += [", ".join(f"{one['ratio'][i]:.1f}" for one in each) for i in (0, 2)]
    return [*cells, f"{sum(wide(one) for one in each)} of {len(each)}"]


def wide(one: Mapping[str, Any]) -> bool:
    """Whether a network's interquartile range meets the aim on both sides of the data."""
    return bool(one["ratio"][0] >= AIM and one["ratio"][2] >= AIM)


def report(record: Mapping[str, Any]) -> str:
    """The table, whether the truth lies in the 95 % band off the data, and NUTS' agreement."""
    chosen = record["bayesian"][record["chosen"]]
    lines = [table(HEAD, rows(record)), prior_predictive(record)]
    for i, x in enumerate(record["at"]):
        inside = sum(one["truth within"][i] for one in chosen)
        medians = ", ".join(f"{one['median'][i]:.2f}" for one in chosen)
        lines.append(
            f"x = {x:g}: truth {record['truth'][i]:.2f}, medians {medians}; in the 95 % band of {inside} of "
            f"{len(chosen)}; NUTS {record['nuts']['median'][i]:.2f}, R-hat {record['nuts']['R-hat'][i]:.2f}"
        )
    mean = fmean(one["ratio"][2] for one in chosen)
    lines.append(
        f"interquartile ranges are of E[y | x, w] over draws of w; at 1.2 {mean:.1f} times those on the data"
    )
    return "\n".join(lines)


def prior_predictive(record: Mapping[str, Any]) -> str:
    """What the prior's ranges are held against."""
    seen = record["prior predictive"]["IQR of y"]
    return f"The interquartile range of y in the training rows is {seen:.2f}."


@styled
def figure(record: Mapping[str, Any]) -> Figure:
    """Median and interquartile range of three networks of each kind, and of NUTS, on [-0.4, 1.2]."""
    curves, chosen = record["curves"], record["chosen"]
    panels = {f"BbB, {NAMES[p]}{' (chosen)' * (p == chosen)}": c for p, c in curves["bayesian"].items()}
    mixed = f"R-hat {max(record['nuts']['R-hat']):.2f}"
    panels |= {f"1-50-2: NUTS ({mixed}, purple) and BbB": [curves["smaller"], curves["nuts"]]}
    panels |= {"plain networks; the band is their noise": curves["plain"]}
    rows = -(-len(panels) // 3)
    drawn = new_figure(11.0, 0.4 + 2.7 * rows)
    grid = drawn.subplots(rows, 3, sharex=True, sharey=True, squeeze=False)
    for axes, (name, bands) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, record, bands, (BLUE, PURPLE) if "NUTS" in name else (BLUE, ORANGE, GREEN))
        axes.set_title(name.replace("e^-6", "$e^{-6}$").replace("e^-3", "$e^{-3}$"))
        label(axes, "x" if axes in grid[-1] else "", "y" if axes in grid[:, 0] else "")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    grid[0, 0].legend(loc="upper left", fontsize=8)
    caption(drawn, "Fig. 5: median and interquartile range; seeds 1 (blue), 2 (orange) and 3 (green) of five")
    return drawn


def _panel(axes: Axes, record: Mapping[str, Any], bands: Sequence[Any], colours: Sequence[str]) -> None:
    x, (x_seen, y_seen) = np.asarray(record["curves"]["x"]), record["data"]
    axes.scatter(x_seen, y_seen, s=5, color=GREY, alpha=0.6, lw=0, label="data (100 of them)")
    axes.plot(x, record["curves"]["truth"], "--", color=BLACK, lw=1.0, label="truth")
    for colour, (low, median, high) in zip(colours, bands, strict=False):
        axes.fill_between(x, low, high, color=colour, alpha=0.22, lw=0)
        axes.plot(x, median, color=colour, lw=1.4)
    axes.set_xlim(x.min(), x.max())
    axes.set_ylim(-1.2, 2.2)
