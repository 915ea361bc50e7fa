"""What the records say of the targets in docs/targets.md, by target."""

from __future__ import annotations

from statistics import fmean

from experiments._runner.tables import mean_sd
from experiments.paper.regression_report import NAMES
from experiments.reproductions import training_choices
from experiments.results import table1_texts
from experiments.results.claims import cost_of
from experiments.results.records import NOT_RUN, Record, of, seeds
from experiments.results.tables import Text
from experiments.tutorial.worked_example import PRINTED


def a1(record: Record) -> str:
    worst = max(abs(record["ours"][name] - value) for name, value in PRINTED.items())
    return f"{_short(worst)}, with one more digit of the noise than was printed"


def a12(record: Record) -> str:
    each = record["each"]
    first, median = ([r["loss"][name] for r in each] for name in ("first", "median of last 100"))
    widening = [r["sd of the draws"]["5.0"] / r["sd of the draws"]["1.5"] for r in each]
    return f"{seeds(len(each))}: {_range(first, 0)}, {_range(median, 0)}, {_range(widening, 1)}"


def a13(record: Record) -> str:
    return _short(min(one["20000"] for one in record["plain"]["mse"]))


def a14(record: Record) -> str:
    words = []
    for prior, each in record["bayesian"].items():
        rmse, ratio = [one["rmse inside"] for one in each], [one["ratio"][2] for one in each]
        words.append(f"{NAMES[prior]} {_range(rmse, 3)}, {_range(ratio, 1)}")
    return f"{len(record['seeds'])} seeds: {'; '.join(words)}"


def a15(record: Record) -> str:
    run = record["found"]["gluon_as_printed"]
    return f"{run['pruned'][0]['snr']['mean']:.2f} %, {run['epochs'][-1]['loss']:.2f}"


def a16(record: Record) -> str:
    errors = {row["removed"]: row["snr"]["mean"] for row in record["found"]["gluon_as_printed"]["pruned"]}
    return ", ".join(f"{errors[share]:.2f}" for share in (0.5, 0.75, 0.95))


def a17(record: Record) -> str:
    errors = [run["metrics"]["test"]["error"] for run in record["runs"]]
    epochs = record["runs"][0]["metrics"]["epochs"]
    return f"after {epochs} epochs, {seeds(len(errors))}: {_range(errors, 2)} %"


def a18(record: Record) -> str:
    costs = [fmean(cost_of(share, record)) for share in (0.5, 0.75)]
    rows = [row for one in record["each"] for row in one["rows"] if row["removed"] == 0.95]
    better = fmean(row["magnitude"]["mean"] - row["snr"]["mean"] for row in rows)
    modes = " and ".join(str(len(one["modes"])) for one in record["each"])
    return f"{costs[0]:+.2f} and {costs[1]:+.2f}; {better:.1f} better; {modes} modes by seed"


def b5(record: Record) -> str:
    leads = []
    for worse in ("sgd", "dropout", "gaussian"):
        found = table1_texts.differences(record, worse, "mixture", min(record["widths"]))
        leads.append(f"{fmean(found):+.2f} to {worse}")
    after = f"after {record['epochs']} epochs, {seeds(len(record['seeds']))}"
    return f"{NOT_RUN}; at 2x400 {after}: {', '.join(leads)}"


def b6(record: Record) -> str:
    costs = ", ".join(f"{fmean(cost_of(share, record)):+.2f}" for share in (0.5, 0.75, 0.95, 0.98))
    return f"{NOT_RUN}; 2x400 after {record['epochs']} epochs, {seeds(len(record['each']))}: {costs}"


def b9(record: Record) -> str:
    each = record["agents"]["Bayes by Backprop"]["percent of uniform"]
    return f"{fmean(each):.1f} % ({len(each)} seeds, {_range(each, 1)})"


def b10(record: Record) -> str:
    means = [fmean(one["error"] for one in record["found"][way]) for way in ("drawn", "closed")]
    return f"{abs(means[0] - means[1]):.3f} points, {seeds(len(record['found']['drawn']))}"


def of_row(row: str, *widths: int) -> Text:
    """Test errors of a row of Table 1 at its full length."""

    def words(record: Record) -> str:
        each = {width: table1_texts.errors(record, row, width) for width in widths}
        if not any(each.values()):
            return NOT_RUN
        found = (f"{mean_sd(errors, 2)} %" if errors else NOT_RUN for errors in each.values())
        told = ", ".join(f"2x{width} {words}" for width, words in zip(each, found, strict=True))
        return f"{record['epochs']} epochs, {seeds(len(record['seeds']))}: {told}"

    return of("table1_full", words, NOT_RUN)


def a19(record: Record) -> str:
    full, centre = (
        record["lines"][name]["validation_errors"][1]
        for name in ("the whole KL on every minibatch", training_choices.CENTRE)
    )
    return f"{full / centre:.2f}"


def a20(record: Record) -> str:
    stopped = [name for name, result in record["lines"].items() if "stopped" in result]
    return f"not finite: {'; '.join(stopped) or 'none'}"


def a22(record: Record) -> str:
    found = record["agents"]["Bayes by Backprop"]
    eaten = found["eaten in the first 50"]
    return f"{_range(found['expected']['500'], 0)}, {min(eaten)} to {max(eaten)} eaten; {len(eaten)} seeds"


def b7(record: Record) -> str:
    if {"sgd", "dropout"} - {*record["rows"]}:
        return NOT_RUN
    return ", ".join(f"{name} {w['sd']:.3f}" for name, w in record["weights"].items())


def b8(record: Record) -> str:
    words = []
    for name in ("Bayes by Backprop", "1 % greedy", "5 % greedy"):
        found = record["agents"][name]
        words.append(f"{name} {fmean(found['expected']['50000']):,.0f}")
    last = fmean(record["agents"]["Bayes by Backprop"]["expected in the last fifth"])
    return f"{', '.join(words)}; {last:,.0f} in the last fifth"


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _range(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


TARGETS: dict[str, Text] = {
    "A1": of("worked_example", a1, NOT_RUN),
    "A12": of("toy_regression", a12, NOT_RUN),
    "A13": of("toy_regression", a13, NOT_RUN),
    "A14": of("regression", a14, NOT_RUN),
    "A15": of("gluon", a15, NOT_RUN),
    "A16": of("gluon", a16, NOT_RUN),
    "A17": of("mnist", a17, NOT_RUN),
    "A18": of("pruning", a18, NOT_RUN),
    "B5": of("table1_400", b5, NOT_RUN),
    "B6": of("pruning", b6, NOT_RUN),
    "B9": of("showdown", b9, NOT_RUN),
    "B10": of("closed_form", b10, NOT_RUN),
    "A19": of("training_choices", a19, NOT_RUN),
    "A20": of("training_choices", a20, NOT_RUN),
    "A22": of("bandit", a22, NOT_RUN),
    "B1": of_row("mixture", 1200),
    "B2": of_row("mixture", 800, 400),
    "B3": of_row("sgd", 1200),
    "B4": of_row("dropout", 1200),
    "B7": of("table1_full", b7, NOT_RUN),
    "B8": of("bandit", b8, NOT_RUN),
}
