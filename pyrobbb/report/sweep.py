"""The page of a sweep: every run in a table to sort, and all of them as lines over what was varied."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from statistics import fmean, stdev
from typing import Any

from pyrobbb.report import charts
from pyrobbb.report.page import Cell, Chart, Charts, Fact, Page, Section, Table, render
from pyrobbb.report.words import cell, component, is_number, number

MOST = 200  # lines of a chart
NAMES = 12  # ticks of an axis of names, or one with few numbers
NEAR = 0.05  # of an axis: the words of nearer ticks would overlap


@dataclass(frozen=True)
class Line:
    """One run of a sweep.

    Args:
        name: Its folder.
        link: Its report, if there is one.
        settings: What was varied, by key.
        scores: What it found, by name with the unit, first what runs are judged by; empty if it failed.
        problem: Why it has no scores.
    """

    name: str
    link: str | None
    settings: Mapping[str, Any]
    scores: Mapping[str, float]
    problem: str = ""
    ranked: bool = True  # whether the first score is one to be best in


def sweep_page(title: str, lines: Sequence[Line]) -> str:
    """The page of the runs beneath a folder, as one HTML document.

    Args:
        title: Of the page.
        lines: The runs, those with a score best first.
    """
    done = [line for line in lines if line.scores]
    failed = [line for line in lines if not line.scores]
    facts = [Fact("Finished runs", number(len(done)))]
    facts += [Fact("Without result", number(len(failed)))] if failed else []
    sections = []
    if done:
        measure, best = next(iter(done[0].scores.items()))
        ranked = done[0].ranked
        several = _settings([line for line in done if measure in line.scores]) if ranked else []
        if any(len(runs) > 1 for runs in several):
            values = [line.scores[measure] for line in several[0]]
            facts = [Fact(f"Best mean {measure}", number(fmean(values)), _of_seeds(values)), *facts]
            sections += [_means(several, measure)] if len(several) > 1 else []
        elif ranked:
            facts = [Fact(f"Best {measure}", number(best), "run 1"), *facts]
        sections.append(_all(done))
        if len(done) > 1 and ranked:
            sections.append(_parallel(done))
    if failed:
        rows = [[Cell(line.name, link=line.link), Cell(line.problem)] for line in failed]
        table = Table("Failed and unfinished runs", ["Run", "Why"], rows)
        sections.append(Section("Without result", "", [table]))
    words = "Several runs that differ in their settings, or in the seed of the random numbers alone."
    return render(Page(title, words, facts=facts, sections=sections))


def _settings(lines: Sequence[Line]) -> list[list[Line]]:
    """Runs that differ in their seed alone, together; the least mean of their first scores first."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(str({key: v for key, v in line.settings.items() if key != "seed"}), []).append(line)
    return sorted(found.values(), key=lambda runs: fmean(next(iter(run.scores.values())) for run in runs))


def _of_seeds(values: Sequence[float]) -> str:
    """Over how many seeds, and how far apart they are."""
    return f"± {number(stdev(values), 2)}, {len(values)} seeds" if len(values) > 1 else "one seed"


def _means(several: Sequence[Sequence[Line]], measure: str) -> Section:
    keys = [key for key in _keys([runs[0] for runs in several]) if key != "seed"]
    others = [name for name in _scores([run for runs in several for run in runs]) if name != measure]
    rows = []
    for runs in several:
        values = [run.scores[measure] for run in runs]
        spread = cell(stdev(values), 2) if len(values) > 1 else Cell("–")
        settings = (_setting(runs[0].settings.get(key)) for key in keys)
        beside = (_mean(runs, name) for name in others)
        rows.append([*settings, cell(fmean(values)), spread, cell(len(values)), *beside])
    head = [*keys, f"Mean {measure}", "Standard deviation", "Seeds", *(f"Mean {name}" for name in others)]
    words = (
        "Best mean first. Two settings whose means are no further apart than their seeds have not been told "
        "apart. The standard deviation is of the seeds alone: runs on the same data are scored on the same "
        "rows, and how they would rank on other rows it does not say."
    )
    table = Table("Settings by their mean over seeds", head, rows, sortable=True)
    return Section("Settings", words, [table])


def _mean(runs: Sequence[Line], name: str) -> Cell:
    """Of a score that all of the runs have."""
    return cell(fmean(run.scores[name] for run in runs) if all(name in run.scores for run in runs) else None)


def _all(lines: Sequence[Line]) -> Section:
    keys = _keys(lines)
    scores = _scores(lines)
    rows = [
        [
            Cell(f"run\u00a0{rank}", float(rank), line.link),
            *(_setting(line.settings.get(key)) for key in keys),
            *(cell(line.scores.get(name)) for name in scores),
        ]
        for rank, line in enumerate(lines, 1)
    ]
    head = ["Run", *keys, *scores]
    folders = [
        [Cell(row[0].words, row[0].value), Cell(line.name)] for row, line in zip(rows, lines, strict=True)
    ]
    order = "Best first. " if lines[0].ranked else ""
    words = f"{order}A column's name sorts by it, and once more the other way round."
    table = Table("Runs by their score", head, rows, sortable=True)
    return Section(
        "All runs", words, [table, Table("The folder of each run", ["Run", "Folder"], folders, folded=True)]
    )


def _parallel(lines: Sequence[Line]) -> Section:
    keys = _keys(lines)
    measure = next(iter(lines[0].scores))
    shown = [line for line in lines if measure in line.scores][:MOST]
    ticks: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for axis in (*keys, measure):
        values = [line.scores[measure] if axis == measure else line.settings.get(axis) for line in shown]
        places, marks = _axis(values)
        ticks += [{"axis": axis, "place": place, "words": words} for words, place in marks]
        for rank, (line, place) in enumerate(zip(shown, places, strict=True), 1):
            score = line.scores[measure]
            said = {"run": f"run {rank}", "summary": f"{rank}, {line.name}: {number(score)}"}
            points.append({"axis": axis, "place": place, "score": score, **said})
    many = f" The best {MOST} of {len(lines)} runs." if len(lines) > MOST else ""
    words = f"A line is a run; its colour is the {measure}, blue the lowest and orange the highest.{many}"
    chart = Chart("Settings and score", charts.parallel(ticks, points), words)
    lead = "Follow the lines that end low on the last axis."
    return Section("Which settings do well", lead, [Charts([chart])])


def _axis(values: Sequence[Any]) -> tuple[list[float], list[tuple[str, float]]]:
    """Places from 0 to 1 for the values, and the words at some of them; logarithmic if they span much."""
    if all(map(is_number, values)):
        span: Callable[[float], float] = log10 if charts.logarithmic(values) else float
        low, high = span(min(values)), span(max(values))
        places = [(span(v) - low) / (high - low) if high != low else 0.5 for v in values]
        marks = sorted(
            {(number(v), place) for v, place in zip(values, places, strict=True)}, key=lambda m: m[1]
        )
        few = marks if len(marks) <= NAMES else [marks[0], marks[len(marks) // 2], marks[-1]]
        return places, _apart(few)
    words = [component(v) for v in values]
    names = sorted(set(words))
    place = {name: 0.5 if len(names) == 1 else i / (len(names) - 1) for i, name in enumerate(names)}
    return [place[word] for word in words], list(place.items())[:: max(1, len(names) // NAMES)]


def _apart(marks: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The marks without those whose words would overlap; the first and the last stay."""
    kept = [marks[0]]
    for mark in marks[1:]:
        if mark[1] - kept[-1][1] >= NEAR:
            kept.append(mark)
    if len(kept) > 1:
        kept[-1] = marks[-1]
    return kept


def _keys(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(key for line in lines for key in line.settings))


def _scores(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line.scores))


def _setting(value: Any) -> Cell:
    return cell(value) if value is None or is_number(value) else Cell(component(value))
