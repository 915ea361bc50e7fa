"""Table 1, Fig. 2 and Fig. 3: SGD, dropout and Bayes by Backprop on MNIST at 400, 800 and 1200 units.

`python -m experiments.table1 [--folder F] [form=short|full] [rows=[...]] [widths=[...]] [seeds=[...]]
[epochs=E] [draws=S] [key=value ...]` trains what is not there yet, prints the table beside the published
numbers, and draws both figures. Other keys (data.limit=, device=) go to every run. `table1.yaml` says what
the forms and rows are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments import plain
from experiments.build import ConfigError, build
from experiments.compose import command_line, compose
from experiments.folder import claimed, read_metrics
from experiments.mnist_figures import error_by_epoch, weights_by_method
from experiments.points import mean_sd, settings, table
from experiments.reopen import reopen
from pyrobbb import figures, history
from pyrobbb.files import write_text
from pyrobbb.progress import Printed

Cell = dict[str, Any]
DECLARATION = Path(__file__).with_name("table1.yaml")
NEAR_ZERO = 0.01


@dataclass
class Part:
    """experiments.table1"""

    form: str = "short"
    rows: list[str] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    epochs: int = 0
    draws: int = 0
    validation_draws: int = 0


def choose(arguments: list[str]) -> tuple[Part, list[str]]:
    """The form that was asked for, with what the command line changes in it.

    Raises:
        ConfigError: An unknown form or row.
    """
    asked, rest = settings(Part, arguments)
    declared = OmegaConf.load(DECLARATION)
    if asked.form not in declared.forms:
        raise ConfigError(f"form must be one of {', '.join(declared.forms)}, got {asked.form!r}")
    form = declared.forms[asked.form]
    part = Part(asked.form, *((getattr(asked, k) or form[k]) for k in ("rows", "widths", "seeds")))
    for key in ("epochs", "draws", "validation_draws"):
        setattr(part, key, getattr(asked, key) or form[key])
    unknown = [name for name in part.rows if name not in declared.rows]
    if unknown:
        raise ConfigError(f"rows: {unknown[0]!r} is none of {', '.join(declared.rows)}")
    return part, rest


def train(part: Part, overrides: list[str], folder: Path) -> list[Cell]:
    """Every cell of the table, the narrow networks first; a finished one is read back."""
    rows = OmegaConf.load(DECLARATION).rows
    cells = []
    for width in part.widths:
        for seed in part.seeds:
            for name in part.rows:
                target = folder / part.form / f"{name}-{width}-{seed}"
                print(f"{target}", flush=True)
                common = [f"epochs={part.epochs}", f"draws={part.draws}", f"seed={seed}", *overrides]
                common[:0] = [f"model.hidden=[{width},{width}]", f"validation_draws={part.validation_draws}"]
                cell = {"row": name, "width": width, "seed": seed, "folder": str(target)}
                if "plain" in rows[name]:
                    metrics = _plain(rows[name].plain, width, common, target)
                else:
                    metrics = _bayesian(compose(rows[name].experiment, common, folder=target))
                curve = [row.validation_error for row in history.read(target / "history.csv")]
                cells.append(cell | {"metrics": metrics, "validation_errors": curve})
                print(f"  test error {metrics['test']['error']:.2f} %, {metrics['train_seconds']:.0f} s")
    return cells


def _bayesian(config: DictConfig) -> dict[str, Any]:
    run = build(config)
    with claimed(config) as folder:
        if not (folder / "metrics.json").exists():
            run.execute(folder, Printed())
        return read_metrics(folder)


def _plain(recipe: DictConfig, width: int, overrides: list[str], folder: Path) -> dict[str, Any]:
    """A plain run shares the data and the scalars that a Bayesian one would have with the same overrides."""
    shared = compose("table1_mixture", overrides, folder=folder)
    scalars = ("data", "epochs", "batch_size", "seed", "device", "checkpoint_seconds")
    config = OmegaConf.merge({key: shared[key] for key in scalars}, recipe)
    config.network.hidden = [width, width]
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return plain.execute({str(k): v for k, v in resolved.items()}, folder, Printed())


def report(cells: list[Cell], part: Part) -> str:
    """Test error in percent: published, and ours as mean and standard deviation over the seeds."""
    rows = OmegaConf.load(DECLARATION).rows
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
            tail = mean_sd([mean(c["validation_errors"][-20:]) for c in own], 2)
            minutes = mean(c["metrics"]["train_seconds"] for c in own) / 60
            test, validation = ours
            cells_ = [rows[name].title, width, *given, test, means, validation, tail, f"{minutes:.1f}"]
            lines.append([str(c) for c in cells_])
    head = ["method", "units", *sources, "ours: test", "mean weights", "validation", "last 20 epochs", "min"]
    seeds = f"{len(part.seeds)} seed{'s' if len(part.seeds) > 1 else ''}"
    middle = mean(c["metrics"]["test"]["error"] for c in cells)
    title = (
        f"Test error (%) on MNIST after {part.epochs} epochs, {seeds}, {part.draws} draws. The binomial "
        f"standard error of one test of 10,000 images is {math.sqrt(middle * (100 - middle) / 1e4):.2f}.\n"
        f'"last 20 epochs" is the mean validation error over them, of {part.validation_draws} draws each.'
    )
    return f"{title}\n{table(head, lines)}"


def gaps(cells: list[Cell], part: Part) -> str:
    """Differences in mean test error, in percentage points, beside the paper's."""
    published = OmegaConf.load(DECLARATION).rows
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
    """All weights of a cell: one draw from q for Bayes by Backprop, the test-time weights otherwise."""
    folder = Path(cell["folder"])
    if (folder / "plain.pt").exists():
        return plain.plain_weights(folder)
    draw = next(reopen(folder).posterior.each_draw(1))
    return torch.cat([value.flatten().cpu() for value in draw.values()])


def draw(cells: list[Cell], part: Part, folder: Path) -> str:
    """Fig. 2 and Fig. 3 at the greatest width; returns the widths of the weights' distributions in words."""
    rows, width = OmegaConf.load(DECLARATION).rows, max(part.widths)
    wide = [c for c in cells if c["width"] == width]
    curves: dict[str, list[tuple[list[float], list[float]]]] = {}
    for cell in wide:
        errors = cell["validation_errors"]
        epochs = [float(e) for e in range(1, len(errors) + 1)]
        curves.setdefault(rows[cell["row"]].title, []).append((epochs, errors))
    title = f"Validation error by epoch, two layers of {width} units (paper Fig. 2: test error)"
    figures.save(error_by_epoch(curves, title=title), folder / "figure2.png")
    shown = {rows[c["row"]].title: weights(c) for c in wide if c["seed"] == part.seeds[0]}
    title = (
        f"Weights after training, two layers of {width} units; one draw of Bayes by Backprop (paper Fig. 3)"
    )
    figures.save(
        weights_by_method({k: v.numpy() for k, v in shown.items()}, title=title), folder / "figure3.png"
    )
    return "weights: " + "; ".join(
        f"{name} sd {float(w.std()):.4f}, {100 * float((w.abs() < NEAR_ZERO).double().mean()):.0f} % "
        f"within {NEAR_ZERO} of 0"
        for name, w in shown.items()
    )


def main(folder: Path, arguments: list[str]) -> None:
    """Train, print, draw."""
    part, overrides = choose(arguments)
    cells = train(part, overrides, folder)
    target = folder / part.form
    write_text(target / "table1.json", json.dumps(cells, indent=1) + "\n")
    words = "\n".join([report(cells, part), gaps(cells, part), draw(cells, part, target)])
    write_text(target / "table1.txt", words + "\n")
    print(words)
    print(f"{target}: table1.json, table1.txt, figure2.png, figure3.png, and a folder for each cell")


if __name__ == "__main__":
    command_line("experiments.table1", main, __doc__)
