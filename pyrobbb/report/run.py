"""The page of one run, from the files of its folder and what the caller knows besides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyrobbb._support.files import expected_structure, read_json
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.layer_summary import of_chain
from pyrobbb.predictive import error_among
from pyrobbb.report import predictions, training, weights
from pyrobbb.report.page import Cell, Code, Fact, Page, Part, Section, Table, Text, render
from pyrobbb.report.words import PARTS, SCORES, number, score, seconds
from pyrobbb.training import history

NOT_CHECKED = "Not checked yet"
CHECKS = ("optimum", "trivial bound", "calibration", "restarts")
RESULTS = {"good": "passed", "bad": "fault", "": "not\u00a0known"}


@dataclass(frozen=True)
class About:
    """What the files that every run leaves do not say.

    Args:
        name: The run's title.
        lead: What a run of this kind is, in a sentence.
        settings: What was run: name, words, and what it is.
        config: The whole configuration, as text.
        again: The command that repeats the run.
        check: The command that checks it.
        recorded: Findings of the checks that need no command, as in `check.json`.
        published: What others printed of this experiment: a text, or for a table the `score`, such as
            `test.error`, `of` what, and `rows` of source, value and perhaps a note.
        made: Versions, machine and date, by name.
        prior: w -> p(w) on arrays, where all weights have the same prior.
    """

    name: str = "Run"
    lead: str = "A Bayesian neural network."
    settings: Sequence[tuple[str, str, str]] = ()
    config: str = ""
    again: str = ""
    check: str = ""
    recorded: Sequence[Mapping[str, Any]] = ()
    published: str | Mapping[str, Any] = ""
    made: Mapping[str, str] = field(default_factory=dict)
    prior: weights.Density | None = None


def run_page(folder: Path | str, about: About | None = None) -> str:
    """The report of a finished run as one HTML document.

    Args:
        folder: With `metrics.json`, and `history.csv`, `posterior.nc`, `check.json` and
            `pruning/record.json` as far as the run has them.
        about: What these files do not say.

    Raises:
        ValueError, OSError: `metrics.json` is missing, or a file is damaged.
    """
    folder, about = Path(folder), about or About()
    metrics = read_json(folder / "metrics.json")
    if not metrics:
        raise ValueError(f"{folder / 'metrics.json'} has no numbers: the run is not finished")
    checked, pruned = (read_json(folder / name) for name in ("check.json", "pruning/record.json"))
    there = (folder / "posterior.nc").exists()  # a point estimate has none
    data = arviz_io.load_of(folder, metrics) if there else None
    with expected_structure(folder / "check.json"):
        verdict, checks = _verdict(checked, about), _checks(checked, about)
    with expected_structure(folder / "pruning/record.json"):
        pruning = weights.pruning(pruned) if pruned else None
    page = Page(
        title=about.name,
        lead=about.lead,
        verdict=verdict,
        facts=_facts(metrics),
        sections=[
            _what(about, metrics),
            checks,
            _scores(metrics, about.published, _without_inputs(data)),
            *_training(folder, metrics),
            *_posterior(data, pruning, metrics, about.prior),
            _made(about.made, metrics, folder),
        ],
    )
    return render(page)


def _verdict(checked: Mapping[str, Any], about: About) -> Text:
    if checked:
        said = str(checked["verdict"])
        return Text(f"{said[0].upper()}{said[1:]}.", "good" if said.startswith("no fault") else "bad")
    faults = [str(finding["name"]) for finding in about.recorded if _tone(finding) == "bad"]
    more = "To check it:" if not about.recorded else "To check the rest:"
    if faults:
        return Text(f"Do not trust this posterior yet: {', '.join(faults)}. {more}", "bad", about.check)
    passed = [str(finding["name"]) for finding in about.recorded if _tone(finding) == "good"]
    known = f"No fault found in {' and '.join(passed)}" if passed else NOT_CHECKED
    return Text(f"{known}. {more}", "", about.check) if about.check else Text(f"{known}.")


def _facts(metrics: Mapping[str, Any]) -> list[Fact]:
    part = next((name for name in PARTS if name in metrics), None)
    facts = []
    if part is not None:
        shown = [name for name in ("error", "rmse", "nll", "ece") if name in metrics[part]]
        facts += [
            Fact(f"{SCORES[n][0]}, {PARTS[part].lower()}", score(n, metrics[part][n], 3)) for n in shown
        ]
    if "free_energy" in metrics:
        trivial = metrics.get("trivial_free_energy")
        beside = "" if trivial is None else f"ignoring the inputs: {number(trivial)}"
        facts.append(Fact("Free energy, nats per example", number(metrics["free_energy"]), beside))
    facts.append(Fact("Weights", number(metrics["parameters"])))
    how_often = f"{metrics['epochs']:,} passes over the data" if metrics["epochs"] else ""
    facts.append(Fact("Training time", seconds(metrics["train_seconds"]), how_often))
    return facts


def _what(about: About, metrics: Mapping[str, Any]) -> Section:
    parts: list[Part] = []
    if about.settings:
        rows = [[Cell(name, note=note), Cell(words)] for name, words, note in about.settings]
        parts.append(Table("The parts of the run", ["Part", "Setting"], rows))
    else:
        parts.append(Text(f"{metrics['parameters']:,} weights, {metrics['epochs']:,} epochs."))
    if about.again:
        parts.append(Code("The command that repeats it", about.again))
    if about.config:
        parts.append(Code("The whole configuration", about.config, folded=True))
    return Section("What was run", "", parts)


def _checks(checked: Mapping[str, Any], about: About) -> Section:
    words = (
        "The checks look for the usual faults: is training at its minimum, has the network learned more than "
        "ignoring the inputs would, are held-out predictions as sure as they should be, do restarts agree?"
    )
    found = {str(finding["name"]): finding for finding in checked.get("findings", about.recorded)}
    rows = []
    for name in found if checked else CHECKS:
        finding = found.get(name)
        if finding is None:
            rows.append([Cell(name.capitalize()), Cell("not\u00a0checked"), Cell("by the command below")])
            continue
        tone = _tone(finding)
        rows.append([Cell(name.capitalize()), Cell(RESULTS[tone], tone=tone), Cell(str(finding["words"]))])
    parts: list[Part] = [Text(f"Note: {note}.") for note in checked.get("notes", [])]
    if checked or (found and about.check):
        parts.insert(0, Table("The checks", ["Check", "Result", "Found"], rows))
    if not checked and about.check:
        parts.append(Code("The command that runs every check, and writes this page again", about.check))
    elif not checked:
        parts.append(Text("The checks have not been run."))
    return Section("Can it be trusted?", words, parts)


def _tone(finding: Mapping[str, Any]) -> str:
    value = finding["value"]
    return "" if value is None else "good" if value <= finding["limit"] else "bad"


def _without_inputs(data: Any) -> str:
    if data is None or not {"predictions_constant_data", "observed_data"} <= arviz_io.group_names(data):
        return ""
    seen = np.asarray(data["observed_data"]["y"].values)
    counts = arviz_io.row_weights(arviz_io.group(data, "constant_data"))
    return predictions.without_inputs(data["predictions_constant_data"], seen, counts)


def _scores(metrics: Mapping[str, Any], published: str | Mapping[str, Any], without_inputs: str) -> Section:
    there = [part for part in PARTS if part in metrics]
    names = [name for name in SCORES if any(name in metrics[part] for part in there)]
    rows = [
        [
            Cell(SCORES[name][0], note=SCORES[name][2]),
            *(Cell(score(name, metrics[part][name]) if name in metrics[part] else "–") for part in there),
        ]
        for name in names
    ]
    parts: list[Part] = []
    if isinstance(published, Mapping):
        parts.append(_of_others(published, metrics))
    elif published:
        parts.append(Text(f"Published by others: {published}."))
    if rows:
        head = ["Score", *(PARTS[part] for part in there)]
        parts.append(Table("Scores on data that training did not see", head, rows))
        parts += [Text(without_inputs)] if without_inputs else []
    else:
        parts.append(Text("The run has no held-out data to be scored on."))
    return Section("How good it is", "", parts)


def _of_others(published: Mapping[str, Any], metrics: Mapping[str, Any]) -> Table:
    """A row for each source, under one of this run if it has such a score."""
    part, _, name = published["score"].partition(".")
    what, unit, _ = SCORES.get(name, (name, "", ""))
    own = metrics.get(part, {}).get(name)
    rows = [] if own is None else [[Cell("This run"), Cell(score(name, own))]]
    for source, value, *note in published["rows"]:
        named = source.capitalize() if source.islower() and source.isalpha() else source  # a handle as it is
        rows.append([Cell(named, note=" ".join(map(str, note))), Cell(f"{value} {unit}".strip())])
    caption = f"{what} on {part} data beside what others published: {published['of']}"
    return Table(caption, ["Source", what], rows)


def _training(folder: Path, metrics: Mapping[str, Any]) -> list[Section]:
    sections = []
    rows = history.read_finished(folder / "history.csv", metrics)
    if rows:
        error = error_among(metrics.get("validation", metrics.get("test", {})))
        trivial, label = metrics.get("trivial_free_energy"), f"validation {error.label}"
        weights = metrics.get("chain_weights")
        bound = "free_energy" in metrics
        sections.append(training.learning(rows, trivial, label, bound=bound, chain_weights=weights))
    if metrics.get("kl_ledger"):
        sections.append(training.ledger(metrics["kl_ledger"], of_chain(metrics)))
    if "code_length" in metrics:
        sections.append(training.code(metrics["code_length"]))
    return sections


def _posterior(
    data: Any, pruning: Section | None, metrics: Mapping[str, Any], prior: weights.Density | None
) -> list[Section]:
    """What `posterior.nc` shows; nothing for a point estimate, which has none."""
    if data is None:
        return []
    sections: list[Section] = []
    if "predictions_constant_data" in arviz_io.group_names(data):
        test = data["predictions_constant_data"]
        if "probs" in test:
            sections += predictions.of_classes(test)
        elif np.ndim(test["y"]) == 1:
            sections += predictions.of_values(data, metrics.get("chain_weights"))
    sections.append(weights.weights(data["variational"], prior, of_chain(metrics)))
    return [*sections, *filter(None, (pruning, weights.arviz(data)))]


def _made(made: Mapping[str, str], metrics: Mapping[str, Any], folder: Path) -> Section:
    rows = {
        **made,
        "Device": metrics.get("device"),
        "Processes": metrics.get("processes"),
        "Seed": metrics.get("seed"),
    }
    lines = [[Cell(name), Cell(str(words))] for name, words in rows.items() if words is not None]
    files = {
        "config.yaml": "every setting",
        "metrics.json": "the scores above",
        "history.csv": "the training by epoch",
        "posterior.nc": "the posterior, for ArviZ",
        "check.json": "the checks",
        "figures": "figures as PNG",
    }
    there = [[Cell(name, link=name), Cell(what)] for name, what in files.items() if (folder / name).exists()]
    tables = [
        Table("Made with", ["What", "Which"], lines),
        Table("Files beside this page", ["File", "What"], there),
    ]
    return Section("Versions, hardware and files", "", tables)
