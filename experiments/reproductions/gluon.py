"""The Gluon notebook: its run as printed, whose second hidden layer is never applied, and corrected.

`python -m experiments.reproductions.gluon [key=value ...]` fits both (the keys are those of
`experiments.run`), prints loss and accuracy by epoch and the pruning table next to the notebook's, and
draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments._runner.build import ConfigError, build, key_of
from experiments._runner.command import command, refuse
from experiments._runner.compose import compose
from experiments._runner.folder import claimed, read_json
from experiments._runner.study import NoSettings, Outputs, Study
from experiments.paper import pruning
from experiments.paper.figures import Curve, error_by_removed, loss_and_accuracy, weight_posteriors
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, write_json
from pyrobbb.data.dataset import Dataset
from pyrobbb.posterior import moments
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.history import Epoch
from pyrobbb.training.progress import Printed

STUDY = Study("experiments.reproductions.gluon", "gluon", NoSettings)
RUNS = {"gluon_as_printed": "as printed (784-400-10 in effect)", "gluon": "corrected (784-400-400-10)"}
NOTEBOOK_LOSS = (
    2626.474, 2606.282, 2600.2452, 2595.756, 2592.986, 2590.059, 2588.579, 2586.009, 2585.461, 2582.930,
)  # fmt: skip
NOTEBOOK_TRAIN = (0.945617, 0.962783, 0.969783, 0.9753, 0.978633, 0.980483, 0.9823, 0.984, 0.985883, 0.9878)
NOTEBOOK_TEST = (0.9455, 0.9593, 0.9641, 0.9684, 0.9723, 0.9733, 0.9756, 0.9749, 0.9765, 0.9775)
NOTEBOOK_PRUNED = {
    0.1: 0.9777,
    0.25: 0.9779,
    0.5: 0.9756,
    0.75: 0.9602,
    0.95: 0.7259,
    0.99: 0.3753,
    1.0: 0.098,
}
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


def report(found: dict[str, Any]) -> str:
    """Both tables, the notebook's numbers first."""
    lines = ["loss per minibatch, training and test accuracy (mean weights) by epoch"]
    lines.append(f"{'epoch':>5} {'notebook':>26}" + "".join(f"{name:>30}" for name in found))
    for i in range(max(len(run["epochs"]) for run in found.values())):
        given = "-"
        if i < len(NOTEBOOK_LOSS):
            given = f"{NOTEBOOK_LOSS[i]:10.2f} {NOTEBOOK_TRAIN[i]:.4f} {NOTEBOOK_TEST[i]:.4f}"
        ours = [run["epochs"][i] for run in found.values()]
        cells = "".join(f"{row['loss']:16.2f} {row['train']:.4f} {row['test']:.4f}" for row in ours)
        lines.append(f"{i:5} {given:>26}{cells}")  # epochs from 0, as the notebook counts them
    lines.append("test error in % after removing weights by |mu| / sigma, and by |mu| alone (mean weights)")
    lines.append(f"{'removed':>8} {'notebook':>9}" + "".join(f"{name:>18} {'by |mu|':>9}" for name in found))
    for i, share in enumerate(SHARES):
        given = f"{100 * (1 - NOTEBOOK_PRUNED[share]):.2f}" if share in NOTEBOOK_PRUNED else "-"
        rows = [run["pruned"][i] for run in found.values()]
        cells = "".join(f"{row['snr']['mean']:18.2f} {row['magnitude']['mean']:9.2f}" for row in rows)
        lines.append(f"{share:8.0%} {given:>9}{cells}")
    for name, run in found.items():
        low, high = run["sigma"]
        lines.append(
            f"{name}: sigma of the first layer went from {run['sigma at the start']:.4f} to between "
            f"{low:.4f} and {high:.4f}; trained in {run['seconds']:.0f} s"
        )
    return "\n".join(lines)


def draw(found: dict[str, Any], out: Outputs) -> None:
    """Loss and accuracy by epoch, error by share removed, the posterior of two weights."""
    notebook = list(range(len(NOTEBOOK_LOSS)))  # epochs from 0, as the notebook counts them
    curves: dict[str, dict[str, Curve]] = {}
    for key, given in (("loss", NOTEBOOK_LOSS), ("train", NOTEBOOK_TRAIN), ("test", NOTEBOOK_TEST)):
        curves[key] = {"notebook": (notebook, given)}
        for name, run in found.items():
            points = [row["epoch"] - 1 for row in run["epochs"]], [row[key] for row in run["epochs"]]
            curves[key][RUNS[name].partition(" (")[0]] = points
    title = "The Gluon notebook's run: as printed, its second hidden layer unapplied, and corrected"
    out.figure("epochs.png", loss_and_accuracy(*curves.values(), title=title))
    removed: dict[str, Curve] = {
        f"{RUNS[name].partition(' (')[0]}, by {words}": (SHARES, [row[by]["mean"] for row in run["pruned"]])
        for name, run in found.items()
        for by, words in (("snr", "signal-to-noise"), ("magnitude", "magnitude"))
    }
    given_errors = [100 * (1 - accuracy) for accuracy in NOTEBOOK_PRUNED.values()]
    removed["notebook, by signal-to-noise"] = (list(NOTEBOOK_PRUNED), given_errors)
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
    out.record({"found": found})
    draw(found, out)
    out.end(report(found))


if __name__ == "__main__":
    command(main, __doc__)
