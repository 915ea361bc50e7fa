"""The README's table and sentence on tables of your own, from their records, and what was aimed at."""

from math import inf
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
    return markdown(["table", "`fit_table`", "the best scikit-learn model tried"], rows)


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
    process, published = _ahead(record)
    found = [name for name in process if process[name] > -NEAR or published[name] > 0]
    return f"{len(found)} of {len(process)}", "reached" if len(found) >= 6 else "missed"


def uci(records: Records) -> str:
    """Where `fit_table` is above or near a Gaussian process, and above published ensembles, and where not."""
    record = records.get("own_tables_uci")
    if record is None:
        return "On the UCI tables it was not run."
    process, published = _ahead(record)
    near = _listed([name for name, gap in process.items() if gap > -NEAR])
    above = _listed([name for name, gap in published.items() if gap > 0])
    return (
        f"`fit_table` is above scikit-learn's Gaussian process, or less than {NEAR:g} nats a row below, on "
        f"{near} ({_below(process, -NEAR)}), and above the deep ensembles that DUN (cambridge-mlg) reports "
        f"on {above} ({_below(published, 0)})"
    )


def _ahead(record: Record) -> list[dict[str, float]]:
    """By how many nats a row `fit_table` is above the Gaussian process, and above the published ensembles."""
    each = {name.removeprefix("uci/"): record[name] for name in record["tables"]}
    ours = {name: _mean(runs[OURS]) for name, runs in each.items()}
    ensembles = {name: PUBLISHED[f"uci/{name}"].get("ensemble of 5", inf) for name in each}
    return [
        {name: score - _mean(each[name][PROCESS]) for name, score in ours.items()},
        {name: score - ensembles[name] for name, score in ours.items()},
    ]


def _below(gaps: dict[str, float], limit: float) -> str:
    return (
        f"below by {_listed([f'{-gap:.2f} on {name}' for name, gap in gaps.items() if -inf < gap <= limit])}"
    )


def _mean(runs: list[Record]) -> float:
    return fmean(one["log_likelihood"] for one in runs)


def _listed(words: list[str]) -> str:
    *most, last = words or ["none"]
    return f"{', '.join(most)} and {last}" if most else last
