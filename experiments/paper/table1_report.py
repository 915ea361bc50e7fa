"""Table 1, Fig. 2 and Fig. 3 from what `experiments.paper.table1` recorded: its tables and pictures."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from omegaconf import OmegaConf

from experiments._runner.tables import Writer, estimate, mean_sd, seeds_by_name, table, verdict
from experiments.paper.figures import Curve, error_by_epoch, weights_by_method

DECLARED: Any = OmegaConf.load(Path(__file__).with_name("table1.yaml"))
Record = Mapping[str, Any]
PAIRS = (("sgd", "mixture"), ("gaussian", "mixture"), ("dropout", "mixture"))
LAST = 20  # epochs
NEAR_ZERO = 0.01


def errors(record: Record, row: str, width: int, part: str = "test", key: str = "error") -> list[float]:
    """A score of a cell by seed."""
    return [cell["metrics"][part][key] for cell in _cells(record, row, width)]


def differences(record: Record, worse: str, better: str, width: int) -> list[float]:
    """Test errors of one method less those of another, seed by seed, where both have been run."""
    a, b = (
        {cell["seed"]: cell["metrics"]["test"]["error"] for cell in _cells(record, row, width)}
        for row in (worse, better)
    )
    return [a[seed] - b[seed] for seed in a if seed in b]


def _cells(record: Record, row: str, width: int) -> list[Any]:
    cells = [c for c in record["cells"] if (c["row"], c["width"]) == (row, width)]
    return sorted(cells, key=lambda cell: cell["seed"])


def shown_width(record: Record) -> int:
    """The width of the figures: the greatest of those at which most methods were run."""
    rows = {
        width: len({c["row"] for c in record["cells"] if c["width"] == width}) for width in record["widths"]
    }
    return max(rows, key=lambda width: (rows[width], width))


def errors_table(record: Record, write: Writer = table, more: bool = False) -> str:
    """Errors in percent, published and ours, as mean and standard deviation over seeds.

    `more` adds the course's end, the time, and what others published of other methods.
    """
    rows = [name for name in DECLARED.rows if name in record["rows"]]
    sources = list(dict.fromkeys(s for name in rows for s in DECLARED.rows[name].reported))
    lines = []
    for name in rows:
        row = DECLARED.rows[name]
        for width in record["widths"]:
            if not _cells(record, name, width):
                continue
            numbers = (row.reported.get(s, {}).get(width) for s in sources)
            given = ["-" if number is None else f"{number:.2f}" for number in numbers]
            of_mean = [] if "point" in row else errors(record, name, width, key="error_mean_weights")
            each = (errors(record, name, width), of_mean, errors(record, name, width, "validation"))
            ours = [mean_sd(values, 2) for values in each]
            lines.append([row.title, width, *given, *ours, *(_end(record, name, width) if more else ())])
    if more:
        for other in DECLARED.published:
            quoted = [other.reported.get(source, "-") for source in sources]
            lines.append([other.title, other.width, *quoted, *["-"] * 5])
    ours = [f"ours, {record['epochs']} epochs", "ours, mean weights", "ours, validation"]
    return write(["method", "units", *sources, *ours, *([f"last {LAST} epochs", "min"] * more)], lines)


def _measured(cell: Mapping[str, Any]) -> tuple[Sequence[int], list[float]]:
    """The epochs after which the validation error was measured, by default every one, and the errors."""
    errors = cell["validation_errors"]
    return cell.get("epochs", range(1, len(errors) + 1)), errors


def _last(cell: Mapping[str, Any]) -> list[float]:
    """The validation errors that were measured in the last epochs."""
    epochs, errors = _measured(cell)
    return [error for epoch, error in zip(epochs, errors, strict=True) if epoch > epochs[-1] - LAST]


def _end(record: Record, row: str, width: int) -> tuple[str, str]:
    """Validation error over the last epochs, and minutes."""
    cells = _cells(record, row, width)
    settled = record["epochs"] > 2 * LAST  # before, it would be a mean over the whole course
    tail = mean_sd([fmean(_last(c)) for c in cells], 2) if settled else "-"
    return tail, f"{fmean(c['metrics']['train_seconds'] for c in cells) / 60:.1f}"


def gaps(record: Record, write: Writer = table) -> str:
    """Paired differences in test error, with 95 % intervals over seeds, next to the paper's."""
    rows, lines = DECLARED.rows, []
    for pair, width in product(PAIRS, record["widths"]):
        ours = differences(record, *pair, width)
        if ours:
            paper = [rows[name].reported.paper.get(width) for name in pair]
            given = "-" if None in paper else f"{paper[0] - paper[1]:+.2f}"
            titles = " less ".join(rows[name].title for name in pair)
            lines.append([titles, width, given, estimate(ours, 2, sign=True), verdict(ours)])
    head = ["test error, points", "units", "paper", "ours, 95 % interval", "above 0"]
    return write(head, lines) if lines else ""


def weights(record: Record, write: Writer = table) -> str:
    """Fig. 3 in numbers."""
    lines = [
        [name, f"{w['sd']:.4f}", f"{100 * w['near zero']:.0f} %", f"{100 * w['beyond']:.2f} %"]
        for name, w in record["weights"].items()
    ]
    reach = next(iter(record["weights"].values()))["reach"]
    head = ["weights of", "sd", f"share within {NEAR_ZERO:g} of 0", f"share beyond {reach:g}"]
    return write(head, lines)


def course(record: Record, write: Writer = table) -> str:
    """Of each cell with a free energy: where it ended, and where the validation error was least."""
    lines = []
    for (name, row), width in product(DECLARED.rows.items(), record["widths"]):
        for cell in _cells(record, name, width):
            metrics = cell["metrics"]
            trivial = metrics.get("trivial_free_energy")
            if trivial is None:
                continue
            (epochs, errors), last = _measured(cell), _last(cell)
            least = min(range(len(errors)), key=errors.__getitem__)
            end = f"{fmean(last):.2f}" + f" (epoch {epochs[-1]})" * (len(last) < LAST)
            energies = [f"{energy:.2f}" for energy in (metrics["free_energy"], trivial)]
            lowest = [f"{errors[least]:.2f}", epochs[least]]
            lines.append([row.title, width, cell["seed"], *energies, *lowest, end])
    head = [
        "method", "units", "seed", "free energy, nats per datum", "of ignoring the inputs",
        "least validation error", "after epoch", f"over the last {LAST}",
    ]  # fmt: skip
    return write(head, lines)


def report(record: Record) -> str:
    """What the command prints."""
    middle = fmean(cell["metrics"]["test"]["error"] for cell in record["cells"])
    title = (
        f"Test error (%) on MNIST after {record['epochs']} epochs, {seeds_by_name(record['seeds'])}, "
        f"{record['draws']} draws. The binomial standard error of one test of 10,000 images is "
        f"{math.sqrt(middle * (100 - middle) / 1e4):.2f}.\n"
        f'"last {LAST} epochs": mean validation error over them, of {record["validation_draws"]} draws each, '
        f"if there are more than {2 * LAST}."
    )
    parts = [f"{title}\n{errors_table(record, more=True)}", gaps(record), weights(record)]
    return "\n\n".join(filter(None, parts))


def figure2(record: Record) -> Figure:
    """Validation error by epoch, at one width."""
    width, rows = shown_width(record), DECLARED.rows
    curves: dict[str, list[Curve]] = {row.title: [] for row in rows.values()}  # a method keeps its colour
    cells = [cell for cell in record["cells"] if cell["width"] == width]
    for cell in cells:
        epochs, errors = _measured(cell)
        curves[rows[cell["row"]].title].append((list(epochs), errors))
    epochs = record["epochs"]
    first = f"the first {epochs} epochs of the paper's 600" if epochs < 600 else "by epoch"
    seeds = seeds_by_name(sorted({cell["seed"] for cell in cells}))
    return error_by_epoch(curves, title=f"Fig. 2: validation error, {first}, 2x{width}, {seeds}")


def figure3(record: Record) -> Figure:
    """Densities of the weights."""
    seeds = {kept.get("seed", record["seeds"][0]) for kept in record["weights"].values()}
    network = f"2x{shown_width(record)}, {seeds_by_name(sorted(seeds))}"
    title = f"Fig. 3: weights after {record['epochs']} epochs, {network}"
    weights = {row.title: record["weights"].get(row.title) for row in DECLARED.rows.values()}
    return weights_by_method(weights, title=f"{title}; one draw of Bayes by Backprop")
