"""KL shares, starting values, optimisers, and what goes wrong.

`python -m experiments.reproductions.training_choices [groups=[...]] [key=value ...]` fits one network for
each line of `training_choices.yaml`, which changes one thing of the centre (2x400, prior (1/2, 1, e^-6),
Kaiming means, rho = -5, Adam 1e-3, KL/M). Ghia reports that the shares 2^(M-i) / (2^M - 1) and plain SGD end
in NaN, that some starting values give 90 % error, and ends at 9-12 % error itself; the group `controls` holds
the published errors by name. A training whose loss becomes infinite or NaN is stopped with a clear
message, which is recorded. Writes `record.json` and one figure. Points that are finished are
not run again.

groups=[shares,means,scales,controls]    which groups
quick=true                               small networks on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=10 seed=2.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_points
from experiments._runner.study import Study
from experiments._runner.tables import Writer, table
from pyrobbb.figures.style import CHAINS, caption, label, new_figure, styled

DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CENTRE: str = DECLARED["centre"]
GROUPS: dict[str, dict[str, list[str]]] = {name: group["lines"] for name, group in DECLARED["groups"].items()}
STYLES = ("-", "--", ":", "-.")
ELSEWHERE: dict[str, str] = DECLARED["elsewhere"]
OF_LINES = (
    "kl", "optim", "prior", "likelihood", "guide", "samples", "vectorize", "fast", "draws", "data.scale",
)  # fmt: skip


@dataclass
class Settings:
    """The study of training choices."""

    groups: list[str] = field(default_factory=lambda: list(GROUPS))
    quick: bool = False


STUDY = Study(
    "experiments.reproductions.training_choices",
    "training_choices",
    Settings,
    sets=OF_LINES,
    instead="its lines are made of these; python -m experiments.run takes any",
    parts=("groups",),
    choices={"groups": GROUPS},
)


def measure(fitted: Fitted) -> Result:
    """Nothing but the history, which every point keeps."""
    return {"validation_nll": fitted.history[-1].validation_nll}


def words(result: Result) -> str:
    """The errors of a result by epoch, and how it ended."""
    errors = ", ".join(f"{error:.2f}" for error in result["validation_errors"])
    if "stopped" not in result:
        return errors
    place = f"not finite in epoch {result['stopped_epoch']}, step {result['stopped_step']}"
    return f"{errors}, {place}" if errors else place


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """All lines next to what Ghia saw."""
    results = record["found"]
    rows = []
    for name, result in results.items():
        nll = f"{result['validation_nll']:.4f}" if "validation_nll" in result else "-"
        rows.append((name, words(result), nll, ELSEWHERE.get(name, "-")))
    head = ("what", "validation error (%) after epoch 1, 2, ...", "NLL at the end (nats)", "Ghia")
    stopped = [f"{name}: {result['stopped']}" for name, result in results.items() if "stopped" in result]
    blocks = [write(head, rows), *stopped]
    centre, full = results.get(CENTRE), results.get("the whole KL on every minibatch")
    if centre and full and "stopped" not in centre | full:
        pairs = list(zip(full["validation_errors"], centre["validation_errors"], strict=True))
        ratios = ", ".join(f"{a / b:.2f}" for a, b in pairs)
        blocks.append(f"error with the whole KL on every minibatch / with KL/M, by epoch: {ratios}")
    return "\n\n".join(blocks)


@styled
def error_curves(panels: Mapping[str, Mapping[str, Result]], title: str) -> Figure:
    """The validation error by epoch, one panel for each group, one line for each training.

    A cross of its colour at the upper edge marks a training whose free energy became infinite or NaN, at
    the epoch (with fraction) where that was.
    """
    rows = -(-len(panels) // 2)
    figure = new_figure(7.2 * min(len(panels), 2), 0.6 + 3.4 * rows)
    grid = list(figure.subplots(rows, min(len(panels), 2), squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    shown = [e for lines in panels.values() for r in lines.values() for e in r["validation_errors"]]
    top, bottom = 115.0, max(0.8 * min(filter(np.isfinite, shown), default=1.0), 0.1)
    for axes, (heading, lines) in zip(grid, panels.items(), strict=False):
        for i, (name, result) in enumerate(lines.items()):
            errors, broke = result["validation_errors"], "stopped" in result
            style, colour = STYLES[i // len(CHAINS) % len(STYLES)], CHAINS[i % len(CHAINS)]
            words = name + " (not finite)" * broke
            epochs = np.arange(1, len(errors) + 1)
            axes.plot(epochs, errors, style, color=colour, marker="o", ms=3.5, label=words)
            if broke:
                at = result["stopped_epoch"] - 1 + result["stopped_share"]
                axes.plot([at], [100.0], "x", color=colour, ms=8, mew=2, clip_on=False)
        axes.set_yscale("log")
        axes.set_ylim(bottom, top)
        ticks = [t for t in (0.5, 1, 2, 3, 5, 10, 20, 50, 90) if bottom <= t <= top]
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(heading)
        label(axes, "epoch", "validation error (%)")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5, handlelength=3.5)
    caption(figure, title)
    return figure


def main(arguments: Sequence[str]) -> dict[str, Result]:
    """Fit what is missing of the study, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    lines = {name: changes for group in chosen.groups for name, changes in GROUPS[group].items()}
    configs = {
        name: compose("training_choices", [*overrides, *changes], folder=out.fits / folder_name(name))
        for name, changes in lines.items()
        if not (chosen.quick and "data.scale" in " ".join(changes))
    }
    results = fit_points(configs, measure, words)
    record = {"seeds": [next(iter(configs.values())).seed], "found": results}
    out.record(record)
    out.figure("curves.png", figure(record))
    out.end(report(record))
    return results


def figure(record: Mapping[str, Any]) -> Figure:
    """A panel for each group of which something was run."""
    found = record["found"]
    panels = {
        DECLARED["groups"][group]["heading"]: {
            pretty(name): found[name]
            for name in sorted(lines, key=lambda name: name != CENTRE)  # of one colour in every panel
            if name in found
        }
        for group, lines in GROUPS.items()
        if any(name in found for name in lines if name != CENTRE)
    }
    title = "Validation error by epoch: one thing changed at a time (cross: not finite, stopped)"
    return error_curves(panels, title)


def pretty(name: str) -> str:
    """A line's name as a legend."""
    name += " (centre)" * (name == CENTRE)
    name = re.sub(r"sigma2 = e\^(-\d)", r"$\\sigma_2 = e^{\1}$", name)
    return name.replace("2^-i", "$2^{-i}$").replace("0.1^2", "$0.1^2$").replace("s^2", "$s^2$")


def folder_name(name: str) -> str:
    """A line's name, safe for shells and file systems."""
    kept = name.replace(" = ", "=").replace("^", "").replace("/", "_over_").replace(" ", "_")
    return "".join(c for c in kept if c.isalnum() or c in "=-_.,+")


if __name__ == "__main__":
    command(main, __doc__)
