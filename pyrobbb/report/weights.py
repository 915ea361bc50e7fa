"""The sections on the weights: where they are, which carry a signal, and what their removal costs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyrobbb.evaluation import arviz_plots, leave_one_out
from pyrobbb.evaluation.layer_summary import weight_draws
from pyrobbb.report import charts
from pyrobbb.report.page import Cell, Chart, Charts, Picture, Pictures, Section, Table, Text
from pyrobbb.report.words import cell, number, percent

Density = Callable[[np.ndarray], np.ndarray]
BINS = 60
SIZE, SIGNAL = "log10 |weight|", "signal-to-noise (dB)"
READ = {
    "forest": (
        "Some weights (plot_forest)",
        "Each line is a weight's interval that holds 94 % of its posterior, the thick part half of it.",
    ),
    "ppc": (
        "Data and predictions of them (plot_ppc)",
        "The training targets, and what the posterior predicts for the same inputs; they should agree.",
    ),
    "khat": (
        "Is leave-one-out to be trusted? (plot_khat)",
        "A point for each training example; above the limit named below, its leave-one-out estimate is not "
        "to be trusted.",
    ),
}


def weights(variational: Any, prior: Density | None, which: str = "") -> Section:
    """Histograms by size and by signal-to-noise ratio, and a table by layer.

    Args:
        variational: The group of `posterior.nc`.
        prior: w -> p(w), where all weights have the same prior; None leaves its curve out.
        which: Of which chain, in words.
    """
    loc, scale = (np.asarray(variational[name].values, dtype=float) for name in ("loc", "scale"))
    sizes = charts.density(_by_size(loc, weight_draws(variational).astype(float), prior), SIZE)
    words = "By order of magnitude: −1 is 0.1."
    if prior is not None:
        words += " Where draws lie left of the prior, weights were pulled to 0."
    drawn = [Chart("Sizes of the weights", sizes, words)]
    if (scale > 0).all():
        ratio = np.abs(loc) / scale
        signal = charts.density(_by_signal(ratio), SIGNAL, mark=0.0)
        words = (
            f"10 log10(|mean| / sd) of each weight; {100 * float((ratio > 1).mean()):.0f} % lie right of the "
            "dashed line, where the mean exceeds the standard deviation. Most of the others could be removed."
        )
        drawn.append(Chart("Signal and noise", signal, words))
    words = "A Bayesian network has a distribution for each weight: a mean and a standard deviation (sd)."
    return Section(f"Weights{which}", words, [Charts(drawn, _by_layer(variational))])


def pruning(found: Mapping[str, Any]) -> Section:
    """What `experiments.paper.pruning` has measured."""
    if not found["rows"]:
        raise IndexError("rows is empty")
    removed, error = "weights removed (%)", "test error (%)"
    orders = {"snr": "lowest signal-to-noise first", "magnitude": "smallest first"}
    rows, lines = [], []
    for row in found["rows"]:
        for by, name in orders.items():
            rows.append({removed: 100 * row["removed"], error: row[by]["mean"], "order": name})
        left = cell(row["left"])
        lines.append([percent(row["removed"], 0), left, *(cell(row[by]["mean"]) for by in orders)])
    caption = "Test error after removing weights, of the mean weights, in percent"
    head = ["Removed", "Weights left", *map(str.capitalize, orders.values())]
    table = Table(caption, head, lines, folded=True)
    spec = charts.curves(rows, removed, error, "order")
    chart = Chart("Error by weights removed", spec, "Of the mean weights.")
    return Section("Pruning", "Weights that carry little signal are set to 0.", [Charts([chart], table)])


def arviz(data: Any) -> Section | None:
    """ArviZ's own plots, and its leave-one-out estimate."""
    left_out = leave_one_out.loo(data)
    drawn = arviz_plots.pictures(data, left_out)
    if not drawn:
        return None
    there = {name: png for name, png in drawn.items() if isinstance(png, bytes)}
    parts: list[Any] = [Pictures([Picture(READ[name][0], png, READ[name][1]) for name, png in there.items()])]
    parts += [
        Text(f"{READ[name][0]} is missing, for ArviZ failed: {said}.")
        for name, said in drawn.items()
        if isinstance(said, str)
    ]
    if left_out is not None:
        found = leave_one_out.numbers(left_out)
        rows = data["observed_data"]["y"].shape[0]
        said = (
            f"Leave-one-out (az.loo) of the {rows:,} training rows in the file: expected log density of all "
            f"of them {number(found['elpd'])} ± {number(found['se'], 2)} nats, {number(found['p'], 3)} "
            f"effective parameters, which are fewer than those of all training rows if there are more; "
            f"{100 * found['k_bad']:.1f} % of these rows have k above {number(found['k_limit'], 2)}, the "
            "limit for so many draws. It takes the draws for those of the exact posterior, so for a mean "
            "field it leans towards the fit of the training rows, even where k is low."
        )
        if "row_weight" in data["constant_data"]:
            said += " Of rows that count several times it leaves out one copy, which flatters it, too."
        parts.append(Text(said))
    words = "Of the file posterior.nc: az.from_netcdf opens it, and nearly all functions of ArviZ work on it."
    return Section("In ArviZ", words, parts)


def _by_size(loc: np.ndarray, draws: np.ndarray, prior: Density | None) -> list[dict[str, Any]]:
    samples = {"posterior draws": draws, "posterior means": loc}
    sizes = np.abs(np.concatenate([draws, loc]))
    high = float(np.log10(max(sizes.max(), 1e-12))) + 0.2
    low = float(np.log10(np.quantile(sizes[sizes > 0], 0.005))) if (sizes > 0).any() else high - 1
    low = min(low, high - 1)
    edges = np.linspace(low, high, BINS + 1)
    heights = {name: _heights(np.log10(np.abs(of[of != 0])), edges, len(of)) for name, of in samples.items()}
    if prior is not None:
        size = 10 ** ((edges[:-1] + edges[1:]) / 2)
        heights["prior"] = (prior(size) + prior(-size)) * size * np.log(10)
    return _rows(SIZE, edges, heights)


def _by_signal(ratio: np.ndarray) -> list[dict[str, Any]]:
    decibel = 10 * np.log10(ratio[ratio > 0])
    if not len(decibel):
        return []
    low, high = np.quantile(decibel, [0.002, 1.0])
    edges = np.linspace(low - 0.1, high + 0.1, BINS + 1)
    return _rows(SIGNAL, edges, {"weights": _heights(decibel, edges, len(ratio))})


def _heights(values: np.ndarray, edges: np.ndarray, count: int) -> np.ndarray:
    return np.histogram(values, edges)[0] / (count * np.diff(edges))


def _rows(axis: str, edges: np.ndarray, heights: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    return [
        {axis: float(edge), "density": float(value), "of": name}
        for name, each in heights.items()
        for edge, value in zip(edges, each, strict=False)
    ]


def _by_layer(variational: Any) -> Table:
    layers = [str(name) for name in variational["layer"].values]
    columns = {
        "Weights": variational["size"].values,
        "Mean of the means": variational["loc_mean"].values,
        "Spread of the means": variational["loc_sd"].values,
        "Mean sd": variational["scale_mean"].values,
        "Median |mean| / sd": variational["snr_quantile"].values[:, 2],
    }
    rows = [
        [Cell(layer), *(cell(values[i].item(), 3) for values in columns.values())]
        for i, layer in enumerate(layers)
    ]
    return Table("The weights by layer", ["Layer", *columns], rows, folded=True)
