"""The sections on the training: learning curves, where the KL goes, and the posterior as a code."""

from collections.abc import Mapping, Sequence
from math import isfinite, log
from statistics import fmean
from typing import Any

from pyrobbb.report import charts
from pyrobbb.report.page import Cell, Chart, Charts, Section, Table, Text
from pyrobbb.report.words import cell, evenly_spaced, number, percent
from pyrobbb.training.history import Epoch, by_chain, final_mean

POINTS = 250  # of one curve
LINES = 60  # of a table
NATS = "nats per example"


def learning(
    rows: Sequence[Epoch],
    trivial: float | None,
    error: str,
    *,
    bound: bool,
    chain_weights: Sequence[float] | None = None,
) -> Section:
    """Free energy, or another loss, its two parts and the validation error, by epoch.

    Args:
        rows: The history.
        trivial: The free energy of ignoring the inputs, if known.
        error: The name and unit of the validation error.
        bound: Whether the loss is a free energy.
        chain_weights: Of each chain in the mixture that predicts; None weighs them alike.
    """
    chains = by_chain(rows).values()
    weights = chain_weights if len(chain_weights or ()) == len(chains) else None  # a history may be cut off
    energy, kl, nll = (
        fmean([final_mean(own, name) for own in chains], weights) for name in ("free_energy", "kl", "nll")
    )
    whole, part, far = (
        ("Free energy", "KL", "How far the posterior is from the prior")
        if bound
        else ("Loss", "Prior", "How unlikely the weights are under the prior")
    )
    level = None if trivial is None else (trivial, f"ignoring the inputs: {number(trivial, 3)}")
    drawn = [
        (f"{whole.lower()} ({NATS})", "free_energy", whole, level,
         "What training lowers. " + _beside(energy, trivial)),
        (f"{part} ({NATS})", "kl", f"{part}: the cost of the weights", None,
         f"{far}; {number(kl)} {NATS} at the end."),
        (f"negative log-likelihood ({NATS})", "nll", "Misfit to the training data", None,
         f"How surprising the training answers still are; {number(nll)} {NATS} at the end."),
        (error, "validation_error", "Error on validation data", None,
         "Rows that training does not see. " + _lowest(rows)),
    ]  # fmt: skip
    parts = []
    for label, column, heading, line, words in drawn:
        points = _points(rows, column, label)
        if points:
            spec = charts.curves(points, "epoch", label, "chain", line=line)
            parts.append(Chart(heading, spec, words))
    words = (
        f"An epoch is one pass over the training data. The {whole.lower()} is the sum of "
        f"{'KL' if bound else 'the prior'} and misfit, in nats (1 nat is 1.44 bits) per training example."
    )
    return Section("How training went", words, [Charts(parts, _table(rows, error, whole, part))])


def ledger(entries: Mapping[str, Mapping[str, Any]], which: str = "") -> Section:
    """The KL by layer; `which` says of which chain."""
    nats, each, share = "KL (nats)", "KL (bits per weight)", "weights with |mean| > sd (%)"
    rows = [
        {
            "layer": name,
            nats: entry["nats"],
            each: entry["bits_per_weight"],
            "weights": entry["weights"],
            share: None if entry["informative"] is None else 100 * entry["informative"] / entry["weights"],
        }
        for name, entry in entries.items()
    ]
    total = sum(row[nats] for row in rows)
    mixture = any(entry.get("slab") is not None for entry in entries.values())
    head = ["Layer", "Weights", "KL (nats)", "± (nats)", "Share of the KL", "Bits per weight", "|mean| > sd"]
    lines = [
        [
            Cell(name),
            cell(entry["weights"]),
            cell(entry["nats"]),
            cell(entry["mcse"], 2),
            percent(entry["nats"] / total if total > 0 else None),
            cell(entry["bits_per_weight"], 3),
            percent(None if entry["informative"] is None else entry["informative"] / entry["weights"]),
            *([percent(entry.get("slab")), percent(entry.get("slab_mcse"))] if mixture else []),
        ]
        for name, entry in entries.items()
    ]
    table = Table("The KL by layer", [*head, *(["From the wide component", "±"] if mixture else [])], lines)
    tips = [nats, each, "weights", *([share] if all(row[share] is not None for row in rows) else [])]
    words = (
        "The KL is the price, in information, of moving the weights from the prior to the posterior. A layer "
        "that costs bits but has few weights whose mean exceeds their standard deviation (sd) is paid for "
        "and not used."
    )
    parts = [
        Chart("By layer", charts.bars(rows, nats, tips), "In nats, over all its weights."),
        Chart("By weight", charts.bars(rows, each, tips), "In bits, for one weight."),
    ]
    return Section(f"Where the KL{which} goes", words, [Charts(parts, table)])


def code(length: Mapping[str, float]) -> Section:
    """The posterior as a code for the training labels."""
    sent, plain, ratio = length["bits"] / 1000, length["plain_bits"] / 1000, length["compression"]
    how = "shorter" if ratio >= 1 else "longer"
    words = (
        "A network that has found a pattern can send the training labels to somebody who has the inputs in "
        "fewer bits than the labels themselves take. Sent with this posterior, weights included, they take "
        f"{number(sent)} kilobits, {max(ratio, 1 / ratio):,.1f} times {how} than the {number(plain)} that "
        "they take one by one."
    )
    rows = [
        [Cell("with this posterior"), cell(sent), cell(1000 * sent * log(2), 4)],
        [Cell("one by one, without a model"), cell(plain), cell(1000 * plain * log(2), 4)],
    ]
    table = Table("Length of the training labels as a code", ["Sent", "Kilobits", "Nats"], rows)
    return Section("As a code", "", [Text(words), table])


def _beside(energy: float, trivial: float | None) -> str:
    words = f"It ends at {number(energy)} {NATS}"
    if trivial is None:
        return words + "."
    if energy > trivial:
        return words + ", above the dashed line: by this measure, ignoring the inputs would be better."
    return words + ", below the dashed line, which is what ignoring the inputs would give."


def _lowest(rows: Sequence[Epoch]) -> str:
    known = [row for row in rows if isfinite(row.validation_error)]
    if not known:
        return ""
    best = min(known, key=lambda row: row.validation_error)
    return f"Lowest: {number(best.validation_error)} at epoch {best.epoch}."


def _points(rows: Sequence[Epoch], column: str, label: str) -> list[dict[str, Any]]:
    found = []
    for chain, own in by_chain(rows).items():
        known = [row for row in own if isfinite(getattr(row, column))]
        some, name = evenly_spaced(known, POINTS), f"chain {chain}"
        found += [{"epoch": row.epoch, label: getattr(row, column), "chain": name} for row in some]
    return found


def _table(rows: Sequence[Epoch], error: str, whole: str, part: str) -> Table:
    head = ["Epoch", "Chain", whole, part, "Misfit", error.capitalize(), "Learning rate", "Seconds"]
    names = ("epoch", "chain", "free_energy", "kl", "nll", "validation_error", "lr", "seconds")
    shown = evenly_spaced(rows, LINES)
    left = "" if len(shown) == len(rows) else f"; {len(shown)} of {len(rows)} rows"
    lines = [[cell(getattr(row, name)) for name in names] for row in shown]
    return Table(f"The training by epoch, in {NATS}{left}", head, lines)
