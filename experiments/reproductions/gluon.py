"""The Gluon notebook: its run as printed, whose second hidden layer is never applied, and corrected.

`python -m experiments.reproductions.gluon [key=value ...]` fits both (the keys are those of
`experiments.run`), prints loss and accuracy by epoch and the pruning table next to the notebook's, and
draws them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments._runner.build import ConfigError, build, key_of
from experiments._runner.command import command, refuse
from experiments._runner.compose import compose
from experiments._runner.folder import claimed, read_json
from experiments._runner.study import NoSettings, Outputs, Study
from experiments._runner.tables import Writer, table
from experiments.paper import pruning, pruning_report
from experiments.paper.figures import Curve, error_by_removed, weight_posteriors
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, write_json
from pyrobbb.data.dataset import Dataset
from pyrobbb.figures.style import CHAINS, caption, label, new_figure, styled
from pyrobbb.posterior import moments
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.history import Epoch
from pyrobbb.training.progress import Printed

STUDY = Study("experiments.reproductions.gluon", "gluon", NoSettings)
RUNS = {"gluon_as_printed": "as printed", "gluon": "corrected"}  # 784-400-10 in effect, 784-400-400-10
NOTEBOOK = {  # by epoch
    "loss": (2626.474, 2606.282, 2600.2452, 2595.756, 2592.986,
             2590.059, 2588.579, 2586.009, 2585.461, 2582.93),
    "train": (0.945617, 0.962783, 0.969783, 0.9753, 0.978633, 0.980483, 0.9823, 0.984, 0.985883, 0.9878),
    "test": (0.9455, 0.9593, 0.9641, 0.9684, 0.9723, 0.9733, 0.9756, 0.9749, 0.9765, 0.9775),
}  # fmt: skip
NOTEBOOK_PRUNED = pruning_report.OTHERS["Gluon, 400"]  # test error in %
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.95, 0.98, 0.99, 1.0)
CORNER, CENTRE = (0, 0), (0, 14 * 28 + 14)  # unit, pixel: the notebook shows the corner's weight


class Watch(Callback):
    """Keeps loss and accuracies of the mean weights by epoch in `epochs.json`."""

    def __init__(self, data: Dataset, path: Path) -> None:
        self.data, self.path = data, path
        self.rows: dict[int, dict[str, float]] = {
            row["epoch"]: row for row in read_json(path).get("epochs", [])
        }

    def on_epoch(self, view: View, row: Epoch) -> None:
        """Measure what the notebook prints: its loss is that of a minibatch, ours that of a datum."""
        assert self.data.test is not None
        parts = {"train": self.data.train, "test": self.data.test}
        accuracy = {
            k: 1 - pruning.error(view.posterior, part, mean_weights=True) / 100 for k, part in parts.items()
        }
        loss = row.free_energy * len(self.data.train) / view.M
        self.rows[row.epoch] = {"epoch": row.epoch, "loss": loss, **accuracy}
        write_json(self.path, {"epochs": list(self.rows.values())})


def fit(name: str, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Fit one of the two, or resume it, and measure it."""
    config = compose(name, overrides, folder=folder)
    run = build(config)
    with claimed(config), locked(folder):
        data = run.data.load().to(best_device(run.device))
        watched = Watch(data, folder / "epochs.json")
        training = run.training(data, folder=folder, progress=Printed(), callbacks=[watched])
        began = moments((training.model, training.guide))[1]
        training.resume()
        training.run()
    if len(watched.rows) != run.epochs:
        raise ConfigError(f"{watched.path} lacks epochs that were trained; remove {folder}, and try again")
    posterior = training.posterior
    assert data.test is not None
    loc, scale = (part[posterior.model.sites[0]] for part in moments(posterior.chains[0]))
    return {
        "seed": run.seed,
        "epochs": list(watched.rows.values()),
        "pruned": pruning.errors(posterior, data.test, SHARES, draws=0),
        "weights": {
            what: (float(loc[at]), float(scale[at]))
            for what, at in (("corner pixel", CORNER), ("centre pixel", CENTRE))
            if at[1] < loc.shape[1]
        },
        "sigma at the start": float(began[posterior.model.sites[0]].mean()),
        "sigma": (float(scale.min()), float(scale.max())),
        "sd of the prior": getattr(run.prior, "sigma", None),
        "seconds": training.history.train_seconds,
    }


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """Both runs by epoch, counted from 0 as the notebook does, and their pruning; its numbers first."""
    runs, lines = record["found"].values(), []
    given = [f"{a:.2f}, {b:.4f}, {c:.4f}" for a, b, c in zip(*NOTEBOOK.values(), strict=True)]
    for i, rows in enumerate(zip(*(run["epochs"] for run in runs), strict=True)):
        ours = [f"{row['loss']:.2f}, {row['train']:.4f}, {row['test']:.4f}" for row in rows]
        lines.append([i, given[i] if i < len(given) else "-", *ours])
    by_epoch = write(["epoch", "notebook: loss, training, test", *RUNS.values()], lines)
    lines = []
    for i, share in enumerate(SHARES):
        theirs = f"{NOTEBOOK_PRUNED[share]:.2f}" if share in NOTEBOOK_PRUNED else "-"
        errors = [f"{run['pruned'][i][by]['mean']:.2f}" for run in runs for by in pruning_report.ORDERS]
        lines.append([f"{100 * share:g} %", theirs, *errors])
    columns = [words for run in RUNS.values() for words in (f"{run}, SNR", "by magnitude")]
    pruned = write(["removed", "notebook", *columns], lines)
    return f"{by_epoch}\n\nTest error in % of mean weights after removing weights:\n\n{pruned}"


def sigmas(record: Mapping[str, Any]) -> str:
    """How far sigma of the first layer went, a line for each run."""
    return "\n".join(
        f"{RUNS[name]}: sigma of the first layer went from {run['sigma at the start']:.4f} to between "
        f"{run['sigma'][0]:.4f} and {run['sigma'][1]:.4f}; trained in {run['seconds']:.0f} s"
        for name, run in record["found"].items()
    )


@styled
def by_epoch(found: Mapping[str, Any]) -> Figure:
    """Loss per minibatch, training and test accuracy by epoch, the notebook's first."""
    figure = new_figure(11.0, 3.8)
    names = {"loss": "loss per minibatch (nats)", "train": "training accuracy", "test": "test accuracy"}
    for axes, (key, name) in zip(figure.subplots(1, 3), names.items(), strict=True):
        # epochs from 0, as the notebook counts them
        curves: dict[str, Sequence[float]] = {"notebook": NOTEBOOK[key]}
        curves |= {RUNS[run]: [row[key] for row in one["epochs"]] for run, one in found.items()}
        for colour, (run, values) in zip(CHAINS, curves.items(), strict=False):
            axes.plot(values, color=colour, marker="o", ms=3, label=run)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        label(axes, "epoch", name)
    figure.axes[0].legend(loc="best")
    caption(figure, "The Gluon notebook's run: as printed, its second hidden layer unapplied, and corrected")
    return figure


def draw(found: dict[str, Any], out: Outputs) -> None:
    """Loss and accuracy by epoch, error by share removed, the posterior of two weights."""
    out.figure("epochs.png", by_epoch(found))
    removed: dict[str, Curve] = {
        f"{RUNS[name]}, by {words}": (SHARES, [row[by]["mean"] for row in run["pruned"]])
        for name, run in found.items()
        for by, words in (("snr", "signal-to-noise"), ("magnitude", "magnitude"))
    }
    removed["notebook, by signal-to-noise"] = (list(NOTEBOOK_PRUNED), list(NOTEBOOK_PRUNED.values()))
    title = "Pruning the Gluon networks: signal-to-noise orders the weights as magnitude does"
    out.figure("pruning.png", error_by_removed(removed, title=title))
    weights, prior = found["gluon"]["weights"], found["gluon"]["sd of the prior"]
    title = "Posterior of two first-layer weights of the corrected network, and their prior"
    out.figure("weight.png", weight_posteriors(weights, prior=prior, title=title))


def main(arguments: Sequence[str]) -> None:
    """Fit both, print the tables, draw the figures."""
    _, overrides, out = STUDY.begin(arguments)
    fixed = [word for word in overrides if key_of(word) != "model.hidden"]
    refuse(fixed, ("model", "chains", "draws"), "it has two networks, one chain each, and mean weights")
    found = {name: fit(name, overrides, out.fits / name) for name in RUNS}
    record = {"found": found}
    out.record(record)
    draw(found, out)
    out.end(f"{report(record)}\n\n{sigmas(record)}")


if __name__ == "__main__":
    command(main, __doc__)
