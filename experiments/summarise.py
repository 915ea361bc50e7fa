"""All runs beneath a folder, best first: `python -m experiments.summarise runs/mnist`.

Writes `summary.csv` (a line for each run), `record.json` (their metrics), `summary.png`, `summary.html` (a
page that links to each run's) and, where posteriors of the same data can be compared, `compare.csv` into that
folder. Only numbers and text are read: no code of the folder is run.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from textwrap import shorten
from typing import Any

from matplotlib.figure import Figure

from experiments import report as page
from experiments._runner.build import free_to_change
from experiments._runner.command import folder_command
from experiments._runner.find_runs import RunFolder, distinct, find, label, shown, varied
from experiments._runner.record import command_line
from experiments._runner.study import Outputs
from experiments._runner.sweep import UNRANKED, WORDS
from experiments._runner.tables import table
from pyrobbb._support.files import replacing, write_text
from pyrobbb._support.settings import flat
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.leave_one_out import compare, has_loo
from pyrobbb.figures import style

SHOWN = 40  # settings in the figure
COMPARED = 20  # runs in one comparison by az.compare
Group = list[RunFolder]
Keys = Mapping[str, Mapping[str, str]]  # as `shown` gives them


def groups(runs: Sequence[RunFolder]) -> dict[str, list[Group]]:
    """The finished runs by measure, grouping those that differ only by seed, best first."""
    by_setting: dict[tuple[str, str], Group] = {}
    for run in runs:
        if run.metrics:
            by_setting.setdefault((run.measure, run.setting), []).append(run)
    found: dict[str, list[Group]] = {}
    for (measure, _), group in by_setting.items():
        found.setdefault(measure, []).append(sorted(group, key=lambda run: run.value))
    return {m: sorted(of, key=lambda g: mean(run.value for run in g)) for m, of in sorted(found.items())}


def write_csv(runs: Sequence[RunFolder], out: Outputs) -> None:
    """`summary.csv`: a line for each run, best first, then those without metrics."""
    keys = varied([run.config for run in runs if run.config])
    skipped = ("seed", "kl_ledger")  # a network's layers are not columns that all runs share
    each = [{key: value for key, value in run.metrics.items() if key not in skipped} for run in runs]
    metrics = {key: None for found in each for key in flat(found)}
    order = sorted(runs, key=lambda run: (False, run.measure, run.value) if run.metrics else (True,))
    rows = []
    for run in order:
        found = flat(run.metrics)
        settings = (run.config.get(key, "") for key in (*keys, "seed"))
        scores = (found.get(key, "") for key in metrics)
        rows.append([run.folder.relative_to(out.fits), run.state, *settings, *scores, run.error])
    with (
        replacing(out.path("summary.csv")) as part,
        part.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        csv.writer(file).writerows([["folder", "state", *keys, "seed", *metrics, "problem"], *rows])


def _keys(runs: Sequence[RunFolder]) -> Keys:
    """What tells the runs apart."""
    configs = [run.config for run in runs]
    return shown(varied(configs), configs)


def record(finished: Sequence[RunFolder], keys: Keys, out: Outputs) -> None:
    """The metrics of the finished runs, each with its values of the `keys` that were varied and its seed."""
    found = []
    for run in finished:
        metrics = {key: value for key, value in run.metrics.items() if key != "kl_ledger"}
        found.append({"setting": label(run.config, keys), "seed": run.config["seed"], "metrics": metrics})
    out.record({"runs": found})


def report(runs: Sequence[RunFolder], keys: Keys, root: Path) -> str:
    """The settings in the order of their mean, then failed and unfinished runs."""
    blocks = []
    for measure, of in groups(runs).items():
        rows = [_row(group, keys) for group in of]
        head = ("setting", measure, "sd", "runs", "NLL (nats)", "F (ignoring x)", "train (s)")
        blocks.append(table(head, rows))
        best = min((run for group in of for run in group), key=lambda run: run.value)
        if measure != UNRANKED:
            blocks.append(f"best run: {best.folder}, {measure} {best.value:.4g}")
    for state in ("failed", "unfinished"):
        these = [run for run in runs if run.state == state]
        if these:
            lines = (f"  {run.folder.relative_to(root)}: {shorten(run.error, WORDS)}" for run in these)
            blocks.append("\n".join([f"{len(these)} {state}:", *lines]))
    return "\n".join(blocks)


def _row(group: Group, keys: Keys) -> tuple[object, ...]:
    part = group[0].measure.partition(" ")[0]
    values = [run.value for run in group]
    nll = [run.metrics[part]["nll"] for run in group if "nll" in run.metrics.get(part, {})]
    seconds = [run.metrics["train_seconds"] for run in group if "train_seconds" in run.metrics]
    return (
        label(group[0].config, keys),
        "-" if group[0].measure == UNRANKED else f"{mean(values):#.4g}",
        "-" if len(values) == 1 or group[0].measure == UNRANKED else f"{stdev(values):.2g}",
        len(values),
        f"{mean(nll):.4f}" if nll else "-",
        _bound(group),
        f"{mean(seconds):.3g}" if seconds else "-",
    )


def _bound(group: Group) -> str:
    """The mean free energy, and beside it that of a posterior which ignores the inputs, in nats per datum."""
    energy = [run.metrics["free_energy"] for run in group if "free_energy" in run.metrics]
    trivial = [t for run in group if (t := run.metrics.get("trivial_free_energy")) is not None]
    beside = f" ({mean(trivial):.3g})" if trivial else ""
    return f"{mean(energy):.4g}{beside}" if energy else "-"


@style.styled
def figure(runs: Sequence[RunFolder]) -> Figure | None:
    """The settings of the measure that most runs have, the best of them if there are many, a row for each.

    A dot is a run; bars are the mean and one standard deviation of several (with n - 1).
    """
    runs = [run for run in runs if run.metrics and run.measure != UNRANKED]
    if not runs:
        return None
    keys = _keys(runs)
    measure, of = max(groups(runs).items(), key=lambda item: sum(map(len, item[1])))
    names = [label(group[0].config, keys) for group in of[:SHOWN]]
    longest = max(map(len, names))
    figure = style.new_figure(min(4.6 + 0.075 * longest, 12.0), 1.3 + 0.3 * len(names))
    axes = figure.subplots()
    for row, group in enumerate(of[:SHOWN]):
        values = [run.value for run in group]
        axes.plot(values, [row] * len(values), "o", color=style.BLUE, ms=5, mew=0, alpha=0.6)
        if len(values) > 1:
            spread = stdev(values)
            axes.errorbar(
                mean(values), row, xerr=spread, fmt="|", color=style.ORANGE, ms=11, mew=2, capsize=3
            )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    style.label(axes, measure, "")
    many = f", the best {SHOWN} of {len(of)} settings" if len(of) > SHOWN else ""
    repeated = "; bars: mean and one standard deviation over seeds" if any(len(g) > 1 for g in of) else ""
    name = measure.partition(" (")[0].capitalize()
    style.caption(figure, f"{name} by setting{many}; a dot is a run{repeated}")
    return figure


def comparisons(finished: Sequence[RunFolder], keys: Keys, root: Path) -> list[Any]:
    """A table of `az.compare` for each set of runs whose log-likelihoods are of the same observations.

    Points and few draws, of which there is no LOO, are left out.
    """
    same: dict[tuple[str, bytes], dict[str, Any]] = {}
    for run in sorted(finished, key=lambda run: run.value):
        try:
            tree = arviz_io.load_of(run.folder, run.metrics)
            y, places = tree["observed_data"]["y"].values, tree["constant_data"]["training_row"].values
            if not has_loo(tree):
                continue
        except (OSError, ValueError, KeyError, AttributeError):
            continue
        kind = str(run.config.get("data._target_"))
        named = [key for key in run.config if key.startswith("data.") and not free_to_change(key, kind)]
        data = sorted((key, str(run.config[key])) for key in named)
        of = same.setdefault((str(data), y.tobytes() + places.tobytes()), {})
        if len(of) < COMPARED:
            name = label(run.config, {**keys, "seed": {}})
            of[name if name not in of else str(run.folder.relative_to(root))] = tree
    return [compare(of) for of in same.values() if len(of) > 1]


def summarise(root: Path) -> str:
    """Write the files and return the words."""
    every = find(root)
    out = Outputs(root, command=command_line("experiments.summarise", [str(root)]))
    write_csv(every, out)
    runs = distinct(every)
    finished = [run for run in runs if run.metrics]
    keys = _keys(finished)
    record(finished, keys, out)
    words = report(runs, keys, root)
    drawn = figure(runs)
    if drawn is not None:
        out.figure("summary.png", drawn)
    problem = page.summary(runs, root)
    out.names += [] if problem else ["summary.html"]
    tables = comparisons(finished, keys, root)
    if tables:
        parts = [
            found.assign(same_data=number).to_csv(header=number == 1, index_label="run")
            for number, found in enumerate(tables, 1)
        ]
        write_text(out.path("compare.csv"), "".join(parts))
        words += (
            "\nthe same observations by PSIS-LOO (az.compare), elpd in nats; it takes the draws for those of "
            "the exact posterior, so for a mean field it leans towards the fit of the training rows, even "
            "where k is low; k_bad is the share with Pareto k above its limit\n"
            f"{tables[0].round(3).to_string()}"
        )
        if len(tables) > 1:
            words += f"\n({len(tables) - 1} more such sets of runs, of other observations, in compare.csv)"
    for name in {"summary.png", "summary.html", "compare.csv"}.difference(out.names):
        (root / name).unlink(missing_ok=True)  # of other runs, by an earlier summary
    counted = {run.identity: run for run in runs}
    others = [run for run in every if run.metrics and run.numbers != counted[run.identity].numbers]
    if others:
        words += (
            f"\nnot counted, since another run has the configuration and the seed, though the numbers are "
            f"others, as from other data, code, device or number of processes: "
            f"{', '.join(str(run.folder.relative_to(root)) for run in others)}"
        )
    if repeated := len(every) - len(runs) - len(others):
        words += f"\nfolders that repeat the run of another and are not counted again: {repeated}"
    return f"{words}\n{root}: {', '.join(out.names)}" + (f"\n{problem}" if problem else "")


def main() -> None:
    """The command line."""
    folder_command("experiments.summarise", __doc__, summarise)


if __name__ == "__main__":
    main()
