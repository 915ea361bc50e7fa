"""Table 1 and Fig. 3 from a record of `experiments.paper.table1`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from experiments._runner.tables import markdown, mean_sd
from experiments.paper.table1 import LAST, NEAR_ZERO, declaration
from experiments.results.records import Record, estimate, verdict

PAIRS = (("sgd", "mixture"), ("gaussian", "mixture"), ("dropout", "mixture"))


def errors(record: Record, row: str, width: int, part: str = "test", key: str = "error") -> list[float]:
    """A score of a cell by seed."""
    cells = [c for c in record["cells"] if (c["row"], c["width"]) == (row, width)]
    return [c["metrics"][part][key] for c in sorted(cells, key=lambda cell: cell["seed"])]


def differences(record: Record, worse: str, better: str, width: int) -> list[float]:
    """Test errors of one method less those of another, seed by seed."""
    return [
        a - b for a, b in zip(errors(record, worse, width), errors(record, better, width), strict=True)
    ]  # fmt: skip


def table(record: Record) -> str:
    """Test errors, published and ours, as mean and standard deviation over seeds."""
    rows, lines = declaration().rows, []
    sources = list(dict.fromkeys(s for name in record["rows"] for s in rows[name].reported))
    for name in record["rows"]:
        for width in record["widths"]:
            numbers = (rows[name].reported.get(s, {}).get(width) for s in sources)
            given = ["-" if number is None else f"{number:.2f}" for number in numbers]
            point = "point" in rows[name]
            means = "-" if point else mean_sd(errors(record, name, width, key="error_mean_weights"), 2)
            ours = [mean_sd(errors(record, name, width, part), 2) for part in ("test", "validation")]
            lines.append([rows[name].title, width, *given, ours[0], means, ours[1]])
    head = [
        "method",
        "units",
        *sources,
        f"ours, {record['epochs']} epochs",
        "ours, mean weights",
        "ours, validation",
    ]
    return markdown(head, lines)


def gap(record: Record, worse: str, better: str, width: int) -> tuple[float | None, list[float]]:
    """The paper's difference in points, and ours by seed."""
    rows = declaration().rows
    paper = [rows[name].reported.paper.get(width) for name in (worse, better)]
    return (None if None in paper else paper[0] - paper[1]), differences(record, worse, better, width)


def gaps(record: Record) -> str:
    """Paired differences in test error, with 95 % intervals over seeds."""
    lines: list[Sequence[Any]] = []
    for worse, better in PAIRS:
        if {worse, better} <= set(record["rows"]):
            for width in record["widths"]:
                paper, ours = gap(record, worse, better, width)
                given = "-" if paper is None else f"{paper:+.2f}"
                titles = [declaration().rows[name].title for name in (worse, better)]
                lines.append(
                    [" less ".join(titles), width, given, estimate(ours, 2, sign=True), verdict(ours)]
                )
    return markdown(["test error, points", "units", "paper", "ours, 95 % interval", "above 0"], lines)


def weights(record: Record) -> str:
    """Fig. 3 in numbers."""
    near = f"share within {NEAR_ZERO:g} of 0"
    rows = [
        [name, f"{w['sd']:.4f}", f"{100 * w['near zero']:.0f} %", f"{100 * w['beyond']:.2f} %"]
        for name, w in record["weights"].items()
    ]
    reach = next(iter(record["weights"].values()))["reach"]
    return markdown(["weights of", "sd", near, f"share beyond {reach:g}"], rows)


def course(record: Record) -> str:
    """Of each cell with a free energy: where it ended, and where the validation error was least."""
    said = []
    for cell in record["cells"]:
        metrics, errors = cell["metrics"], cell["validation_errors"]
        trivial = metrics.get("trivial_free_energy")
        if trivial is None:
            continue
        least = min(range(len(errors)), key=errors.__getitem__)
        said.append(
            f"{declaration().rows[cell['row']].title}, 2x{cell['width']}, seed {cell['seed']}: free energy "
            f"{metrics['free_energy']:.2f} nats per datum (ignoring the inputs: {trivial:.2f}); validation "
            f"error {errors[least]:.2f} % at its least, after epoch {least + 1}, and "
            f"{fmean(errors[-LAST:]):.2f} % over the last {LAST}"
        )
    return "; ".join(said) + "."
