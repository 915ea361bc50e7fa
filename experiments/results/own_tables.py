"""The README's table and sentence on tables of your own, from their records, and what was aimed at."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from experiments._runner.tables import markdown
from experiments.results.records import Record, Records
from experiments.studies.own_tables import OURS, PUBLISHED

NEAR = 0.1  # nats a row
PROCESS = "Gaussian process"
METHODS = {"BayesianRidge": "Bayesian ridge"}
AIMS = {"diabetes": -5.45, "breast_cancer": -0.095, "wine": -0.055, "digits": -0.104}
COVERED = (0.92, 0.97)  # of diabetes' 95 % intervals


def scores(record: Record) -> str:
    """Test log-likelihood per row beside scikit-learn's best."""
    rows = []
    for name in record["tables"]:
        means = {who: _mean(runs) for who, runs in record[name].items()}
        ours = f"{means.pop(OURS):.3f}"
        covered: list[Any] = [one["coverage"] for one in record[name][OURS]]
        if None not in covered:
            ours += f" (95 % intervals cover {100 * fmean(covered):.1f} %)"
        best = max(means, key=lambda who: means[who])
        rows.append([name.replace("_", " "), ours, f"{means[best]:.3f}, {METHODS.get(best, best)}"])
    return markdown(["table", "`fit_table`", "scikit-learn's best of four"], rows)


def reached(record: Record) -> tuple[str, str]:
    """The log-likelihoods beside `AIMS`, and the share of targets within their intervals."""
    ours = {name: _mean(record[name][OURS]) for name in AIMS}
    covered = fmean(one["coverage"] for one in record["diabetes"][OURS])
    missed = [f"{name} by {aim - ours[name]:.4f}" for name, aim in AIMS.items() if ours[name] < aim]
    if not COVERED[0] <= covered <= COVERED[1]:
        missed.append("coverage")
    words = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in ours.items())
    return f"{words}; {100 * covered:.1f} % covered", f"missed: {', '.join(missed)}" if missed else "reached"


def reached_on_uci(record: Record) -> tuple[str, str]:
    """How many of the eight tables are near a Gaussian process or the published ensembles."""
    found = {*_near(record), *_above(record)}
    return f"{len(found)} of {len(record['tables'])}", "reached" if len(found) >= 6 else "missed"


def uci(records: Records) -> str:
    """On which tables `fit_table` is above or near a Gaussian process, and above published ensembles."""
    record = records.get("own_tables_uci")
    if record is None:
        return "On the UCI tables it was not run."
    return (
        f"`fit_table` is above scikit-learn's Gaussian process, or less than {NEAR:g} nats a row below, on "
        f"{_listed(_near(record))}, and above the published deep ensembles on {_listed(_above(record))}"
    )


def _near(record: Record) -> list[str]:
    means = {name: [_mean(record[name][who]) for who in (OURS, PROCESS)] for name in record["tables"]}
    return [name for name, (ours, process) in means.items() if ours > process - NEAR]


def _above(record: Record) -> list[str]:
    published = {name: PUBLISHED[name].get("ensemble of 5", 1e9) for name in record["tables"]}
    return [name for name, score in published.items() if _mean(record[name][OURS]) > score]


def _mean(runs: list[Record]) -> float:
    return fmean(one["log_likelihood"] for one in runs)


def _listed(names: list[str]) -> str:
    words = [name.removeprefix("uci/") for name in names] or ["none"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
