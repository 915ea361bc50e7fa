"""Table 1, Fig. 2 and Fig. 3: SGD, dropout and Bayes by Backprop on MNIST at 400, 800 and 1200 units.

`python -m experiments.paper.table1 [form=short|full] [rows=[...]] [widths=[...]] [seeds=[...]]
[epochs=E] [draws=S] [key=value ...]` trains what is missing, prints the table next to the published
numbers, and draws both figures. Other keys (data.limit=, device=) go to every run. `table1.yaml` says what
the forms and rows are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments._runner.build import ConfigError, build, key_of, loggers
from experiments._runner.command import command, part_of, refuse
from experiments._runner.compose import compose
from experiments._runner.folder import again, claimed, read_metrics
from experiments._runner.reopen import check_finished, reopen
from experiments._runner.side_by_side import train_side_by_side
from experiments._runner.study import Outputs, Study
from experiments.paper.table1_report import DECLARED, NEAR_ZERO, figure2, figure3, report
from pyrobbb._support.files import write_text
from pyrobbb.training import history
from pyrobbb.training.progress import Printed

Cell = dict[str, Any]
Weights = dict[str, Any]
OF_BAYES = ("prior", "likelihood", "guide", "kl", "samples", "vectorize", "fast", "chains", "rates")
REACH = 0.2  # of Fig. 3


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


STUDY = Study(
    "experiments.paper.table1",
    "table1",
    Part,
    sets=("seed", "model"),
    instead="say seeds=[...] or widths=[...]",
    named=("epochs", "draws", "validation_draws"),
    choices={"form": DECLARED.forms, "rows": DECLARED.rows},
)


def choose(asked: Part, rest: list[str]) -> Part:
    """The requested form, with the changes from the command line."""
    given = {key: value for key, value in asdict(asked).items() if value not in (None, [])}
    form: Any = OmegaConf.to_container(DECLARED.forms[asked.form])
    part = Part(**{**form, **given})
    absent = [key for key in map(key_of, rest) if key.partition(".")[0] in {*DECLARED.rows} - {*part.rows}]
    if absent:
        raise ConfigError(f"{absent[0]}: its row was not requested; rows are {', '.join(part.rows)}")
    shared = compose("table1_mixture", of_every_row(rest), folder="")
    if shared.data.get("validation") == 0:
        raise ConfigError("data.validation: Fig. 2 and the table need validation data, got 0")
    points = [name for name in part.rows if "point" in DECLARED.rows[name]]
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
    return part


def of_every_row(overrides: Sequence[str]) -> list[str]:
    """The overrides that are not of one row, as `sgd.optim.lr=0.1` is."""
    return [word for word in overrides if key_of(word).partition(".")[0] not in DECLARED.rows]


def of_row(name: str, overrides: Sequence[str]) -> list[str]:
    """The overrides of this row alone, without its name."""
    own = [word for word in overrides if key_of(word).startswith(f"{name}.")]
    return [word.replace(f"{name}.", "", 1) for word in own]


def train(part: Part, overrides: list[str], folder: Path) -> list[Cell]:
    """Every cell of the table, the narrow networks first; a finished one is read back.

    On CUDA the seeds of a cell are trained side by side.
    """
    rows, every = DECLARED.rows, of_every_row(overrides)
    cells = []
    for width in part.widths:
        configs = {}
        for seed, name in product(part.seeds, part.rows):
            common = [f"model.hidden=[{width},{width}]", f"validation_draws={part.validation_draws}"]
            common += [f"epochs={part.epochs}", f"draws={part.draws}", f"seed={seed}", *every]
            target = folder / part.form / f"{name}-{width}-{seed}"
            own = of_row(name, overrides)
            configs[name, seed] = config = compose(rows[name].experiment, [*common, *own], folder=target)
            if config.chains > 1:
                raise ConfigError(f"chains: each cell of the table is one training, got {config.chains}")
        for name in part.rows:
            train_side_by_side([configs[name, seed] for seed in part.seeds], Printed())
        for (name, seed), config in configs.items():
            print(f"{config.folder}", flush=True)
            cell = {"row": name, "width": width, "seed": seed, "folder": str(config.folder)}
            metrics = _trained(config)
            path = Path(config.folder) / "history.csv"
            epochs = history.read(path)
            if not epochs or epochs[-1].epoch != metrics["epochs"]:
                raise ConfigError(f"{path} is cut off; {again(config.folder)}")
            curve = {
                "epochs": [e.epoch for e in epochs],
                "validation_errors": [e.validation_error for e in epochs],
            }
            cells.append(cell | {"metrics": metrics} | curve)
            print(f"  test error {metrics['test']['error']:.2f} %, {metrics['train_seconds']:.0f} s")
    return cells


def _trained(config: DictConfig) -> dict[str, Any]:
    run = build(config)
    with claimed(config) as folder:
        if (folder / "metrics.json").exists():
            check_finished(folder, config)
        else:
            run.execute(folder, Printed(), callbacks=loggers(config))
        return read_metrics(folder)


def weights_of(cells: list[Cell], part: Part) -> dict[str, Weights]:
    """The weights of each row at the greatest width, with the first seed.

    They are one draw from q for Bayes by Backprop, the point estimates otherwise.
    """
    found = {}
    for cell in cells:
        if (cell["width"], cell["seed"]) == (max(part.widths), part.seeds[0]):
            network = reopen(Path(cell["folder"]), trust=True).posterior.function()  # of this very command
            flat = torch.cat([value.detach().flatten().cpu() for value in network.parameters()])
            found[DECLARED.rows[cell["row"]].title] = weights_in_short(flat)
    return found


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


def main(arguments: Sequence[str]) -> None:
    """Train, print, draw."""
    asked, overrides, study = STUDY.begin(arguments)
    part = choose(asked, overrides)
    cells = train(part, overrides, study.fits)
    form = DECLARED.forms[part.form]
    out = Outputs(study.fits / part.form, part_of(part, form, ("rows", "widths", "seeds")), study.command)
    record = {**asdict(part), "cells": cells, "weights": weights_of(cells, part)}
    out.record(record)
    out.figure("figure2.png", figure2(record))
    out.figure("figure3.png", figure3(record))
    words = report(record)
    write_text(out.path("table1.txt"), f"{words}\n")
    out.end(words, f"; the fits are in {out.fits}")


if __name__ == "__main__":
    command(main, __doc__)
