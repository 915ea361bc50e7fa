"""The README's table and sentence on tables of your own, from their records."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from experiments._runner.tables import markdown
from experiments.results.records import Record, Records
from experiments.studies.own_tables import PUBLISHED

NEAR = 0.1  # nats a row
METHODS = {"BayesianRidge": "Bayesian ridge"}


def scores(record: Record) -> str:
    """Test log-likelihood per row beside scikit-learn's best."""
    rows = []
    for name in record["tables"]:
        means = {who: _mean(runs) for who, runs in record[name].items()}
        ours = f"{means.pop('fit_table'):.3f}"
        covered: list[Any] = [one["coverage"] for one in record[name]["fit_table"]]
        if None not in covered:
            ours += f" (95 % intervals cover {100 * fmean(covered):.1f} %)"
        best = max(means, key=lambda who: means[who])
        rows.append([name.replace("_", " "), ours, f"{means[best]:.3f}, {METHODS.get(best, best)}"])
    return markdown(["table", "`fit_table`", "scikit-learn's best of four"], rows)


def uci(records: Records) -> str:
    """On which tables `fit_table` is above or near a Gaussian process, and above published ensembles."""
    record = records.get("own_tables_uci")
    if record is None:
        return "On the UCI tables it was not run."
    ours = {name: _mean(record[name]["fit_table"]) for name in record["tables"]}
    near = [name for name in ours if ours[name] > _mean(record[name]["Gaussian process"]) - NEAR]
    above = [name for name in ours if ours[name] > PUBLISHED[name].get("ensemble of 5", 1e9)]
    return (
        f"`fit_table` is above scikit-learn's Gaussian process, or less than {NEAR:g} nats a row below, on "
        f"{_listed(near)}, and above the published deep ensembles on {_listed(above)}"
    )


def _mean(runs: list[Record]) -> float:
    return fmean(one["log_likelihood"] for one in runs)


def _listed(names: list[str]) -> str:
    words = [name.removeprefix("uci/") for name in names] or ["none"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
