"""Table 1, Fig. 2 and Fig. 3: SGD, dropout and Bayes by Backprop on MNIST at 400, 800 and 1200 units.

`python -m experiments.paper.table1 [form=short|full] [rows=[...]] [widths=[...]] [seeds=[...]]
[epochs=E] [draws=S] [key=value ...]` trains what is missing, prints the table next to the published
numbers, and draws both figures. Other keys (data.limit=, device=) go to every run. `table1.yaml` says what
the forms and rows are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments._runner.build import ConfigError, build, key_of
from experiments._runner.command import command, part_of, place, refuse, settings
from experiments._runner.compose import compose
from experiments._runner.folder import claimed, read_metrics
from experiments._runner.record import command_line
from experiments._runner.reopen import reopen
from experiments._runner.study import Outputs
from experiments._runner.tables import mean_sd, table
from experiments.paper.figures import error_by_epoch, weights_by_method
from pyrobbb._support import checks
from pyrobbb.training import history
from pyrobbb.training.progress import Printed

Cell = dict[str, Any]
Weights = dict[str, Any]
NEAR_ZERO = 0.01
OF_BAYES = ("prior", "likelihood", "guide", "kl", "samples", "vectorize", "fast", "chains", "rates")
LAST = 20  # epochs
REACH = 0.2  # of Fig. 3


@lru_cache
def declaration() -> DictConfig:
    """`table1.yaml`."""
    found = OmegaConf.load(Path(__file__).with_name("table1.yaml"))
    assert isinstance(found, DictConfig)
    return found


@dataclass
class Part:
    """Which part of the table; the form decides what is left empty."""

    form: str = "short"
    rows: list[str] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    epochs: int | None = None
    draws: int | None = None
    validation_draws: int | None = None


def choose(arguments: list[str]) -> tuple[Part, list[str]]:
    """The requested form, with the changes from the command line.

    Raises:
        ConfigError, ValueError: An unknown form or row, or keys that do not go with it.
    """
    asked, rest = settings(Part, arguments)
    declared = declaration()
    checks.one_of("form", asked.form, declared.forms)
    form = declared.forms[asked.form]
    rows, widths, seeds = (list(getattr(asked, key) or form[key]) for key in ("rows", "widths", "seeds"))
    part = Part(asked.form, rows, widths, seeds)
    for key in ("epochs", "draws", "validation_draws"):
        value = getattr(asked, key)
        setattr(part, key, form[key] if value is None else value)
    checks.each_of("rows", part.rows, declared.rows)
    refuse(rest, ("seed", "model"), "say seeds=[...] or widths=[...]")
    absent = [key for key in map(key_of, rest) if key.partition(".")[0] in {*declared.rows} - {*part.rows}]
    if absent:
        raise ConfigError(f"{absent[0]}: its row was not requested; rows are {', '.join(part.rows)}")
    shared = compose("table1_mixture", of_every_row(rest), folder="")
    if shared.data.get("validation") == 0:
        raise ConfigError("data.validation: Fig. 2 and the table need validation data, got 0")
    points = [name for name in part.rows if "point" in declared.rows[name]]
    unclear = [key for key in map(key_of, rest) if key.partition(".")[0] in ("optim", "schedule")]
    if points == part.rows:
        refuse(of_every_row(rest), OF_BAYES, f"row {points[0]} is not a Bayesian network")
    for name in part.rows:
        refuse(of_row(name, rest), ("model.hidden", "seed"), "say widths=[...] or seeds=[...]")
    if points and unclear:
        raise ConfigError(
            f"{unclear[0]}: the point estimates of row {points[0]} have their own; leave out such rows, or "
            f"say which row is meant, as in mixture.{unclear[0]}"
        )
    return part, rest


def of_every_row(overrides: Sequence[str]) -> list[str]:
    """The overrides that are not of one row, as `sgd.optim.lr=0.1` is."""
    return [word for word in overrides if key_of(word).partition(".")[0] not in declaration().rows]


def of_row(name: str, overrides: Sequence[str]) -> list[str]:
    """The overrides of this row alone, without its name."""
    own = [word for word in overrides if key_of(word).startswith(f"{name}.")]
    return [word.replace(f"{name}.", "", 1) for word in own]


def train(part: Part, overrides: list[str], folder: Path) -> list[Cell]:
    """Every cell of the table, the narrow networks first; a finished one is read back."""
    rows, every = declaration().rows, of_every_row(overrides)
    cells = []
    for width in part.widths:
        for seed in part.seeds:
            for name in part.rows:
                target = folder / part.form / f"{name}-{width}-{seed}"
                print(f"{target}", flush=True)
                own = of_row(name, overrides)
                common = [f"model.hidden=[{width},{width}]", f"validation_draws={part.validation_draws}"]
                common += [f"epochs={part.epochs}", f"draws={part.draws}", f"seed={seed}", *every]
                cell = {"row": name, "width": width, "seed": seed, "folder": str(target)}
                config = compose(rows[name].experiment, [*common, *own], folder=target)
                metrics = _trained(config)
                curve = [row.validation_error for row in history.read(target / "history.csv")]
                cells.append(cell | {"metrics": metrics, "validation_errors": curve})
                print(f"  test error {metrics['test']['error']:.2f} %, {metrics['train_seconds']:.0f} s")
    return cells


def _trained(config: DictConfig) -> dict[str, Any]:
    run = build(config)
    with claimed(config) as folder:
        if not (folder / "metrics.json").exists():
            run.execute(folder, Printed())
        return read_metrics(folder)


def report(cells: list[Cell], part: Part) -> str:
    """Test error in percent: published, and ours as mean and standard deviation over the seeds."""
    rows = declaration().rows
    sources = list(dict.fromkeys(s for name in part.rows for s in rows[name].reported))
    lines = []
    for name in part.rows:
        for width in part.widths:
            own = [c for c in cells if (c["row"], c["width"]) == (name, width)]
            numbers = (rows[name].reported.get(s, {}).get(width) for s in sources)
            given = ["-" if number is None else f"{number:.2f}" for number in numbers]
            ours = (mean_sd([c["metrics"][p]["error"] for c in own], 2) for p in ("test", "validation"))
            of_mean = [c["metrics"]["test"].get("error_mean_weights") for c in own]
            means = "-" if None in of_mean else mean_sd(of_mean, 2)
            settled = (part.epochs or 0) > 2 * LAST  # before, it would be a mean over the whole course
            tail = mean_sd([mean(c["validation_errors"][-LAST:]) for c in own], 2) if settled else "-"
            minutes = mean(c["metrics"]["train_seconds"] for c in own) / 60
            test, validation = ours
            cells_ = [rows[name].title, width, *given, test, means, validation, tail, f"{minutes:.1f}"]
            lines.append([str(c) for c in cells_])
    for other in declaration().published:
        quoted = [str(other.reported.get(s, "-")) for s in sources]
        lines.append([other.title, str(other.width), *quoted, *["-"] * 5])
    head = [
        "method",
        "units",
        *sources,
        "ours: test",
        "mean weights",
        "validation",
        f"last {LAST} epochs",
        "min",
    ]
    seeds = f"{len(part.seeds)} seed{'s' if len(part.seeds) > 1 else ''}"
    middle = mean(c["metrics"]["test"]["error"] for c in cells)
    title = (
        f"Test error (%) on MNIST after {part.epochs} epochs, {seeds}, {part.draws} draws. The binomial "
        f"standard error of one test of 10,000 images is {math.sqrt(middle * (100 - middle) / 1e4):.2f}.\n"
        f'"last {LAST} epochs": mean validation error over them, of {part.validation_draws} draws each, '
        f"if there are more than {2 * LAST}."
    )
    return f"{title}\n{table(head, lines)}"


def gaps(cells: list[Cell], part: Part) -> str:
    """Differences in mean test error, in percentage points, next to the paper's."""
    published = declaration().rows
    lines = []
    for worse, better in (("sgd", "mixture"), ("dropout", "mixture"), ("gaussian", "mixture")):
        if not {worse, better} <= set(part.rows):
            continue
        for width in part.widths:
            means = {
                name: mean(
                    c["metrics"]["test"]["error"] for c in cells if (c["row"], c["width"]) == (name, width)
                )
                for name in (worse, better)
            }
            paper = {name: published[name].reported.paper.get(width) for name in (worse, better)}
            given = "-" if None in paper.values() else f"{paper[worse] - paper[better]:+.2f}"
            lines.append([f"{worse} - {better}", str(width), given, f"{means[worse] - means[better]:+.2f}"])
    return table(["test error, points", "units", "paper", "ours"], lines) if lines else ""


def weights(cell: Cell) -> torch.Tensor:
    """All weights of a cell: one draw from q for Bayes by Backprop, the point estimates otherwise."""
    network = reopen(Path(cell["folder"])).posterior.function()
    return torch.cat([value.detach().flatten().cpu() for value in network.parameters()])


def weights_of(cells: list[Cell], part: Part) -> dict[str, Weights]:
    """The weights of each row at the greatest width, with the first seed."""
    rows = declaration().rows
    wide = [c for c in cells if c["width"] == max(part.widths) and c["seed"] == part.seeds[0]]
    return {rows[c["row"]].title: weights_in_short(weights(c)) for c in wide}


def weights_in_short(w: torch.Tensor) -> Weights:
    """Standard deviation, share near 0, and the density between evenly spaced edges."""
    edges = torch.linspace(-REACH, REACH, 102, dtype=torch.float64)
    heights = torch.histc(w.double(), 101, -REACH, REACH) / (len(w) * edges.diff())
    return {
        "sd": float(w.std()),
        "near zero": float((w.abs() < NEAR_ZERO).double().mean()),
        "beyond": float((w.abs() > REACH).double().mean()),
        "reach": REACH,
        "density": [float(f"{height:.5g}") for height in heights.tolist()],
    }


def spreads(shown: dict[str, Weights]) -> str:
    """The widths of the weights' distributions in words."""
    return "weights: " + "; ".join(
        f"{name} sd {w['sd']:.4f}, {100 * w['near zero']:.0f} % within {NEAR_ZERO} of 0"
        for name, w in shown.items()
    )


def draw(cells: list[Cell], part: Part, shown: dict[str, Weights], out: Outputs) -> None:
    """Fig. 2 and Fig. 3 at the greatest width."""
    rows, width = declaration().rows, max(part.widths)
    wide = [c for c in cells if c["width"] == width]
    curves: dict[str, list[tuple[list[float], list[float]]]] = {}
    for cell in wide:
        errors = cell["validation_errors"]
        epochs = [float(e) for e in range(1, len(errors) + 1)]
        curves.setdefault(rows[cell["row"]].title, []).append((epochs, errors))
    draws = f"Bayes by Backprop with {part.validation_draws} draws"
    length = f"the first {part.epochs} epochs" if (part.epochs or 0) < 600 else "by epoch"
    title = f"Validation error, {length}, two layers of {width} units, {draws} (paper: Fig. 2)"
    out.figure("figure2.png", error_by_epoch(curves, title=title))
    title = f"Weights after {part.epochs} epochs, two layers of {width} units; one draw of Bayes by Backprop"
    out.figure("figure3.png", weights_by_method(shown, title=f"{title} (paper: Fig. 3)"))


def main(arguments: Sequence[str]) -> None:
    """Train, print, draw."""
    folder, rest = place(arguments, "runs/table1", shared=("form", "rows", "widths", "seeds"))
    part, overrides = choose(rest)
    cells = train(part, overrides, folder)
    form = declaration().forms[part.form]
    command = command_line("experiments.paper.table1", arguments)
    out = Outputs(folder / part.form, part_of(part, form, ("rows", "widths", "seeds")), command)
    shown = weights_of(cells, part)
    out.json("table1.json", cells)
    out.record({**asdict(part), "cells": cells, "weights": shown})
    draw(cells, part, shown, out)
    words = "\n".join([report(cells, part), gaps(cells, part), spreads(shown)])
    out.text("table1.txt", words)
    out.end(words, f"; the fits are in {out.fits}")


if __name__ == "__main__":
    command(main, __doc__)
