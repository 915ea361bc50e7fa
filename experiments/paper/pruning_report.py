"""Table 2 and Fig. 4 from what `experiments.paper.pruning` recorded: the table and the pictures."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments._runner.tables import Writer, mean_sd, table
from experiments.paper.figures import Curve, error_by_removed
from pyrobbb.compression.pruning import By
from pyrobbb.figures.style import CHAINS, GREY, RED, caption, label, new_figure, styled

Record = Mapping[str, Any]
PAPER = {0.0: 1.24, 0.5: 1.24, 0.75: 1.24, 0.95: 1.29, 0.98: 1.39}
OTHERS = {  # test error in percent by share removed, mean weights
    "Gluon, 400": {0.1: 2.23, 0.25: 2.21, 0.5: 2.44, 0.75: 3.98, 0.95: 27.41, 0.99: 62.47, 1.0: 90.2},
    "saxena-mayur, 1200": {0.5: 3.84, 0.75: 19.3, 0.95: 82.4},
    "JINKEHE, 1200": {0.0: 1.32, 0.5: 2.19, 0.75: 5.45, 0.95: 13.0, 0.98: 18.9},
}
MORE = {"saxena-mayur, 400": {0.5: 1.77, 0.75: 1.76, 0.95: 2.61, 0.98: 13.8}}
ORDERS: tuple[By, ...] = ("snr", "magnitude")


def errors_table(record: Record, write: Writer = table, more: bool = False) -> str:
    """Error by share removed, published and ours; `more` adds another network of others, sizes and times."""
    each, lines = record.get("each", [record]), []
    for i, row in enumerate(record["rows"]):
        share = row["removed"]
        given = [column.get(share) for column in (PAPER, *OTHERS.values(), *(MORE.values() if more else ()))]
        runs = [one["rows"][i] for one in each]
        ours = [[one[by].get(what) for one in runs] for by in ORDERS for what in ("mean", "draws")]
        ours.append([one.get("rho = 0") for one in runs])
        line = [f"{100 * share:g} %", f"{row['left']:,}"]
        line += ["-" if value is None else f"{value:.2f}" for value in given]
        line += ["-" if None in values else mean_sd(values, 2) for values in ours]
        if more:
            line += [f"{value:.0f}" for value in (row["bytes"] / 1000, row["dense_ms"], row["sparse_ms"])]
        lines.append(line)
    head = ["removed", "left", "paper, 2x1200, 600 epochs", *OTHERS, *(MORE if more else ())]
    head += ["SNR, mean weights", "SNR, draws", "magnitude, mean weights", "magnitude, draws"]
    head += ["rho = 0, draws", *(["file KB", "dense ms", "sparse ms"] if more else ())]
    return write(head, lines)


def shape(record: Record) -> str:
    """Where the density of the signal-to-noise ratio has its modes, its valley, and the 75 % line."""
    peaks = " and ".join(f"{at:.1f}" for at, _ in record["modes"])
    modes = "modes" if len(record["modes"]) > 1 else "mode"
    words = f"Seed {record['seed']}: the density of the signal-to-noise ratio has its {modes} at {peaks} dB"
    if record["valley"] is not None:
        words += f" and its valley at {record['valley']:.1f} dB"
    return f"{words}; 75 % of the weights lie below {record['cut_75']:.1f} dB."


def report(record: Record) -> str:
    """What the command prints."""
    biases = "count as weights" if record["biases_count"] else "all stay"
    lines = [
        f"{record['folder']}: test error in % after removing weights, {record['epochs']} epochs",
        errors_table(record, more=True),
        f"biases {biases}; {record['draws']} draws; times are for all test images, on the CPU",
        "rho = 0 is a negative control, draws of a network whose removed weights keep sigma = log(1 + e^0)",
        shape(record),
    ]
    return "\n".join(lines)


def network(record: Record) -> str:
    """Which network was pruned, in a caption."""
    cold = "" if record["temperature"] == 1 else f" at temperature {record['temperature']:g}"
    return f"{record['weights']:,} weights, {record['epochs']} epochs{cold}, seed {record['seed']}"


def error_figure(record: Record) -> Figure:
    """Error by share removed."""
    rows = record["rows"]
    removed = [row["removed"] for row in rows]
    curves: dict[str, Curve] = {
        f"by {words}, {what}": (removed, [row[by][key] for row in rows])
        for by, words in (("snr", "signal-to-noise"), ("magnitude", "magnitude"))
        for key, what in (("mean", "mean weights"), ("draws", f"{record['draws']} draws"))
        if key in rows[0][by]
    }
    curves["paper, 2x1200, 600 epochs"] = (list(PAPER), list(PAPER.values()))
    return error_by_removed(curves, title=f"Table 2: test error after removing weights, {network(record)}")


@styled
def figure4(record: Record) -> Figure:
    """Density of 10 log10(|mu| / sigma), the line below which 75 % of the weights lie, and the valley."""
    decibel, density = record["density"]["dB"], record["density"]["per dB"]
    figure = new_figure(7.0, 3.6)
    axes = figure.subplots()
    axes.fill_between(decibel, density, color=CHAINS[0], alpha=0.35, lw=0)
    axes.plot(decibel, density, color=CHAINS[0])
    cut, valley = record["cut_75"], record["valley"]
    axes.axvline(cut, color=RED, ls="--", lw=1.3, label=f"75 % below {cut:.1f} dB".replace("-", "\u2212"))
    if valley is not None:
        words = f"valley, {valley:.1f} dB".replace("-", "\u2212")
        axes.axvline(valley, color=GREY, ls=":", lw=1.5, label=words)
    axes.set_xlim(decibel[0], decibel[-1])
    axes.set_ylim(bottom=0)
    label(axes, r"signal-to-noise ratio, $10\,\log_{10}(|\mu|/\sigma)$ (dB)", "density (1/dB)")
    axes.legend(loc="upper left")
    caption(figure, f"Fig. 4: {network(record)}")
    return figure
