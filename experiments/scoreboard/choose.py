"""Which method when, and what it costs: one Markdown table from the records of all parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from experiments._runner.build import ConfigError
from experiments._runner.fit_points import Result
from experiments._runner.tables import markdown as table
from experiments.scoreboard.compare import Row, difference, joined, values
from experiments.scoreboard.compare import chosen as rows_of
from experiments.scoreboard.parts import PARTS
from pyrobbb._support.files import read_json

PLAIN = "plain network"
WHEN = {  # method -> how it is said to `experiments.run`, and when to take it
    "plain network": ("`inference=map`", "a first answer, and what the others must beat"),
    "ensemble of 5": ("`inference=ensemble`", "better predictions at five times the cost"),
    "dropout": ("`inference=dropout`", "a baseline"),
    "SWAG": ("`inference=swag`", "a baseline"),
    "mean field": ("`inference=svi`", "large networks, any prior, a bound to watch, pruning"),
    "5 mean fields": ("`inference=svi chains=5`", "the same, with several modes"),
    "5 mean fields, Laplace": (
        "the same, then `Laplace(...).around(posterior, rows)`",
        "tables with regions without rows",
    ),
    "low rank": ("`guide=auto_low_rank_multivariate_normal`", "weights whose correlations matter"),
    "full covariance": ("`guide=auto_multivariate_normal`", "a few hundred weights"),
    "last layer": ("a prior on the last layer", "a trained network, or features that are good already"),
    "natural gradient": ("`inference=natural_gradient`", "the mean field of a large network"),
    "Laplace, last layer": ("`inference=laplace`, `layers=last`", "a trained network, at once"),
    "Laplace, diagonal": ("`inference=laplace`, `structure=diagonal`", "many weights, little memory"),
    "Laplace, Kronecker": ("`inference=laplace`", "after any fit with a normal prior"),
    "Laplace, full": ("`inference=laplace`, `structure=full`", "up to some thousand weights"),
    "SGHMC": ("`inference=sghmc`", "draws from large networks, with patience for its rate"),
    "NUTS": ("`inference=nuts`", "the posterior itself, of up to hundreds of weights"),
}


def markdown(records: Mapping[str, Result]) -> str:
    """A line for each method that a record has, from the records by part."""
    regressions, detection, agreement = (records[part]["rows"] if part in records else [] for part in PARTS)
    found = [regressions, agreement, detection]
    names = [name for name in WHEN if any(rows_of(rows, method=name) for rows in found)]
    head = ["method", "how", "take it for"]
    gaps = rows_of(regressions, kind="gap")
    if regressions:
        head += ["log-likelihood above the plain network's", "in 95 % interval", "time of a fit"]
    head += ["in 95 % interval, within gaps"] if gaps else []
    head += ["six points, sd at 0, 1.5 and 5"] if agreement else []
    head += ["Fashion-MNIST, AUROC"] if detection else []
    lines = []
    for name in names:
        line = [name, *WHEN[name]]
        if regressions:
            line += _of_tables(rows_of(regressions, kind="standard"), name)
        if gaps:
            line.append(_mean(rows_of(gaps, method=name), "coverage_95", "{:.0%}").replace("%", " %"))
        if agreement:
            line.append(_spreads(agreement, name))
        if detection:
            line.append(_mean(rows_of(detection, method=name), "auroc Fashion-MNIST", "{:.3f}"))
        lines.append(line)
    return table(head, lines)


def spent(record: Result) -> str:
    """What a part compares, on how much, and what each method could spend."""
    rows = record["rows"]
    if record["part"] == "regressions":
        counts = Counter((row["table"], row["kind"]) for row in rows_of(rows, method=PLAIN))
        over = ", ".join(f"{table} ({count} {kind})" for (table, kind), count in counts.items())
    elif record["part"] == "agreement":
        nuts = {row["model"]: row["r_hat"] for row in rows if "r_hat" in row}
        said = (f"{name.replace('_', ' ')} (NUTS: R-hat at most {r_hat:.2f})" for name, r_hat in nuts.items())
        over = ", ".join(said)
    else:
        counts = Counter((row["network"], "seeds") for row in rows_of(rows, method=PLAIN))
        over = ", ".join(f"{network} ({count} {kind})" for (network, kind), count in counts.items())
    words = ", ".join(f"{key} {value}" for key, value in record["budget"].items() if key != "settings")
    return f"{record['part']}: {over}; {words}."


def _of_tables(rows: Sequence[Row], name: str) -> list[str]:
    """Difference to the plain network over the splits of all tables, coverage, and time as its multiple.

    Splits with a gap are left out: a single one, thousands of nats off, would decide any mean.
    """
    numbered = [{**row, "place": (row["table"], row["kind"], row["split"])} for row in rows]
    own, plain = rows_of(numbered, method=name), rows_of(numbered, method=PLAIN)
    if not values(own, "log_likelihood"):
        return ["-", "-", "-"]
    apart = "" if name == PLAIN else difference(own, plain, "log_likelihood", "place")
    both = {row["place"] for row in own if "seconds" in row}
    time = fmean(values(own, "seconds")) / fmean(
        [row["seconds"] for row in plain if row["place"] in both and "seconds" in row]
    )
    return [apart, f"{100 * fmean(values(own, 'coverage_95')):.0f} %", f"{time:.1f} x"]


def _spreads(rows: Sequence[Row], name: str) -> str:
    found = [row["sd_at"] for row in rows_of(rows, model="six_points", method=name) if "sd_at" in row]
    return ", ".join(f"{sd:.2g}" for sd in found[0].values()) if found else "-"


def _mean(rows: Sequence[Row], measure: str, form: str) -> str:
    found = values(rows, measure)
    return form.format(fmean(found)) if found else "-"


def read(folder: Path) -> dict[str, Result]:
    """The records of a folder by part."""
    found = [read_json(path) for path in sorted(folder.glob("scoreboard_*.json"))]
    if not found:
        raise ConfigError(f"record: {folder} holds no scoreboard_*.json")
    parts = {name: [record for record in found if record["part"] == name] for name in PARTS}
    return {
        name: {**each[0], "rows": joined([record["rows"] for record in each])}
        for name, each in parts.items()
        if each
    }
