"""The Harvard tutorial's MNIST, BNN against MLP, on digits and on pictures that are not digits.

`python -m experiments.tutorial.mnist [seeds=[1,2,3]] [quick=true] [key=value ...]` trains a Bayesian
784-512-512-10 sigmoid network (prior N(0, 6^2), 20 epochs) and the tutorial's plain 784-400-400-10 ReLU one
(10 epochs), both on all 60,000 images with pixels in [0, 1], and asks both about the test images, 1000
images of noise, Fashion-MNIST and a few odd pictures. The predictive distribution is the mean of the draws'
probabilities; its entropy is the sum of what each draw is unsure of and of what the draws disagree about
(mutual information). Beside it stands what the tutorial printed as an entropy: it averaged log-probabilities,
which gives a vector that does not sum to 1. Entropies are in bits here, as there; log2 10 = 3.3219.

Writes `seed=S/` with the fits, `record.json`, and two figures. What is finished is not run
again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_point, load
from experiments._runner.folder import claimed
from experiments._runner.study import Study
from experiments.tutorial.mnist_report import figures, report
from experiments.tutorial.mnist_uncertainty import ask, draw_log_probs, probabilities, questions, uncertainty
from experiments.tutorial.odd_images import SIDE
from pyrobbb import likelihoods, priors
from pyrobbb._support.files import replacing
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset
from pyrobbb.models.mlp import perceptron
from pyrobbb.posterior import Posterior
from pyrobbb.training.progress import Printed
from pyrobbb.training.trainer import fit

BATCH = 128  # rows, the tutorial's; it counted the KL once for N / BATCH = 468.75 batches
QUICK = ["data=blobs", "data.features=784", "data.classes=10", "data.N=300", "~data.scale", "epochs=2"]
QUICK += ["+data.separation=0.1", "+data.noise=0.3", "model.hidden=[16]", "draws=5"]


@dataclass
class Settings:
    """The tutorial's MNIST."""

    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    mlp_epochs: int = 10
    quick: bool = False


STUDY = Study(
    "experiments.tutorial.mnist",
    "tutorial_mnist",
    Settings,
    sets=("seed",),
    instead="say seeds=[...]",
    parts=("seeds",),
    named=("mlp_epochs",),
    small=QUICK,
    quick={"seeds": [1], "mlp_epochs": 2},
)


def one_seed(seed: int, chosen: Settings, overrides: Sequence[str], folder: Path) -> Result:
    """Both networks of one seed, and their predictions; `arrays.npz` keeps what the figures need."""
    config = compose("tutorial_mnist", [*overrides, f"seed={seed}"], folder=folder / "bnn")
    hidden = [16] if chosen.quick else [400, 400]
    plain = {"data": config.data, "hidden": hidden, "epochs": chosen.mlp_epochs, "seed": seed}
    plain["folder"] = str(folder / "mlp")
    other_data = "data.seed=1" if chosen.quick else "data=fashion_mnist"
    others = compose("tutorial_mnist", [*overrides, other_data], folder=folder / "bnn")
    data, fashion = load(config.data), load(others.data)

    def measure(fitted: Fitted) -> Result:
        mlp = train_mlp(data, seed, chosen.mlp_epochs, folder / "mlp", hidden)
        sets, shown, names = questions(data, fashion, seed)
        answers, arrays = ask(fitted.posterior, mlp, sets, fitted.run.draws, seed)
        arrays |= {"shown": shown.reshape(-1, SIDE, SIDE).numpy(), "names": np.array(names)}
        arrays["shown_bnn"] = uncertainty(draw_log_probs(fitted.posterior, shown, fitted.run.draws))["probs"]
        arrays["shown_mlp"] = probabilities(mlp, shown).numpy()
        with replacing(folder / "arrays.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        return answers | {"scores": scores(fitted, mlp)}

    with claimed(OmegaConf.create(plain)):
        progress = Printed(error=", test error {:.2f} %")
        # the test set is measured after each epoch, as the tutorial printed it; nothing is chosen by it
        return fit_point(config, measure, progress=progress, keep=True, validation=data.test)


def train_mlp(data: Dataset, seed: int, epochs: int, folder: Path, hidden: Sequence[int]) -> Posterior:
    """The tutorial's plain network; the history's validation columns hold the test set, as it printed."""
    with isolated(seed):
        network = perceptron(data.spec.features[0], hidden, data.spec.outputs)
    model = BayesianNetwork(network, priors.Deterministic(), likelihoods.Categorical())
    return fit(
        model, None, data, validation=data.test, epochs=epochs, seed=seed, device="cpu", folder=folder,
        optim=partial(torch.optim.Adam, lr=1e-3),  # its decay of a Python float was never applied
        progress=Printed(error=", test error {:.2f} %"),
    )  # fmt: skip


def scores(fitted: Fitted, mlp: Posterior) -> Result:
    """Accuracy of both networks on the test set; the BNN's loss in the tutorial's units."""
    test = fitted.data.test
    assert test is not None
    prediction: Any = fitted.posterior.predict(test.x, test.y, draws=fitted.run.draws, seed=fitted.run.seed)
    five: Any = fitted.posterior.predict(test.x, test.y, draws=5, seed=fitted.run.seed)
    last, plain = fitted.history[-1], mlp.history.rows[-1]
    nll = -float(five.log_likelihood.mean())  # mean over draws of the NLL, which is what it printed
    rows = len(test) / math.ceil(len(test) / BATCH)  # of a test batch; it printed the sum over one
    return {
        "bnn_accuracy": 100 * float((prediction.probs.argmax(-1) == test.y).double().mean()),
        "bnn_accuracy_5": 100 * float((five.probs.argmax(-1) == test.y).double().mean()),
        "bnn_nll": -float(prediction.log_predictive.mean()),
        "bnn_loss": last.kl * BATCH + nll * rows,
        "bnn_errors": [row.validation_error for row in fitted.history],
        "bnn_losses": [row.kl * BATCH + row.validation_nll * rows for row in fitted.history],
        "mlp_accuracy": 100 - plain.validation_error,
        "mlp_loss": plain.validation_nll,
        "mlp_errors": [row.validation_error for row in mlp.history.rows],
        "mlp_losses": [row.validation_nll for row in mlp.history.rows],
        "mlp_seconds": mlp.history.train_seconds,
    }


def main(arguments: Sequence[str]) -> dict[int, Result]:
    """Train and evaluate what is missing, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    results = {}
    for seed in chosen.seeds:
        results[seed] = one_seed(seed, chosen, overrides, out.fits / f"seed={seed}")
    for name, drawn in figures(out.fits / f"seed={chosen.seeds[0]}").items():
        out.figure(name, drawn)
    record = {"seeds": chosen.seeds, "found": results}
    out.record(record)
    out.end(report(record), f"; {out.fits}: seed=*/bnn/result.json")
    return results


if __name__ == "__main__":
    command(main, __doc__)
