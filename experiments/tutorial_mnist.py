"""The Harvard tutorial's MNIST, BNN beside MLP, on digits and on things that are no digit.

`python -m experiments.tutorial_mnist [seeds=[1,2,3]] [quick=true] [key=value ...]` trains a Bayesian
784-512-512-10 sigmoid network (prior N(0, 6^2), 20 epochs) and the tutorial's plain 784-400-400-10 ReLU one
(10 epochs), both on all 60,000 images with pixels in [0, 1], and asks both about the test images, 1000
images of noise, Fashion-MNIST and a few odd pictures. The predictive distribution is the mean of the draws'
probabilities; its entropy is the sum of what each draw is unsure of and of what the draws disagree about
(mutual information). Beside it stands what the tutorial printed as an entropy: it averaged log-probabilities,
which gives a vector that does not sum to 1. Entropies are in bits here, as there; log2 10 = 3.3219.

Writes `seed=S/` with the fits and `results.json`, and two figures. What is finished is not run again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from experiments.build import build, key_of
from experiments.command import command, place, refuse, settings
from experiments.compose import compose
from experiments.folder import claimed, read_json
from experiments.odd_images import SIDE, cat, letter, rotated
from experiments.points import Fitted, Result, fit_point, load
from experiments.tables import mean_sd, of_seeds, table
from models.mlp import perceptron
from pyrobbb.data.dataset import Dataset
from pyrobbb.detection import auroc
from pyrobbb.figures.detection import detection
from pyrobbb.figures.prediction_bars import prediction_bars
from pyrobbb.figures.style import save
from pyrobbb.files import replacing, write_text
from pyrobbb.inference import Training
from pyrobbb.isolation import isolated
from pyrobbb.metrics import entropy
from pyrobbb.plain import PlainFit, fit_plain
from pyrobbb.posterior import Posterior
from pyrobbb.progress import Printed

BITS = 1 / math.log(2)
BATCH = 128  # rows, the tutorial's; it counted the KL once for N / BATCH = 468.75 batches
NOISE, UNIFORM, FASHION, DIGITS = "noise N(0, 1)", "noise U(0, 1)", "Fashion-MNIST", "MNIST test"
MLP_ACCURACIES = (96.40, 97.15, 97.49, 97.91, 97.83, 97.85, 97.43, 98.05, 98.27, 98.00)  # after each epoch
MLP_LOSSES = (0.1248, 0.0910, 0.0801, 0.0661, 0.0779, 0.0701, 0.1034, 0.0745, 0.0719, 0.0878)
BNN_FIRST = (91.07, 9806.67)  # after the first epoch
TUTORIAL = {"mlp_loss": MLP_LOSSES[-1], "mlp_accuracy": MLP_ACCURACIES[-1], "bnn_loss": 4913.4}
TUTORIAL |= {"bnn_accuracy": 97.25, "mlp_entropy": 0.1446, "printed": 0.9909}
QUICK = ["data=blobs", "data.features=784", "data.classes=10", "data.N=300", "~data.scale", "epochs=2"]
QUICK += ["+data.separation=0.1", "+data.noise=0.3", "model.hidden=[16]", "draws=5"]


@dataclass
class Settings:
    """The tutorial's MNIST."""

    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    mlp_epochs: int = 10
    quick: bool = False


@torch.no_grad()
def draw_log_probs(posterior: Posterior, x: Tensor, draws: int, seed: int = 0) -> Tensor:
    """Log p(c | x, w_s) for each weight draw, `(S, M, C)`, on the CPU."""
    model = posterior.model
    x = x.to(model.initial()[model.sites[0]].device)
    rows = (model.apply_network(w, x).log_softmax(-1).cpu() for w in posterior.each_draw(draws, seed=seed))
    return torch.stack(list(rows))


def uncertainty(log_probs: Tensor) -> dict[str, np.ndarray]:
    """What the draws say of each input, entropies in bits, all `(M,)` but `probs` `(M, C)`.

    `probs` is the posterior predictive mean_s p_s; `entropy` its entropy, `expected` mean_s H(p_s),
    `information` their difference. `geometric` is the entropy of exp(mean_s log p_s) made to sum to 1;
    `printed` is the tutorial's formula, which leaves that out, and `geometric_sum` what the vector sums to.
    """
    log_probs = log_probs.double()
    probs, mean = log_probs.exp().mean(0), log_probs.mean(0).exp()
    expected = -(log_probs.exp() * log_probs).sum(-1).mean(0)
    found = {
        "probs": probs,
        "entropy": entropy(probs) * BITS,
        "expected": expected * BITS,
        "information": (entropy(probs) - expected) * BITS,
        "geometric_sum": mean.sum(-1),
        "geometric": entropy(mean / mean.sum(-1, keepdim=True)) * BITS,
        "printed": tutorial_entropy(mean),
    }
    return {name: value.numpy() for name, value in found.items()}


def tutorial_entropy(vector: Tensor) -> Tensor:
    """The tutorial's `compute_entropy`, row by row: an entropy in bits only if the rows sum to 1."""
    return -(torch.log2(vector + 1e-10) * vector).sum(-1)


def noise_images(rows: int, features: int, seed: int, uniform: bool = False) -> Tensor:
    """Images of independent pixels: N(0, 1), as in the tutorial, or U(0, 1), the range of real pixels."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand if uniform else torch.randn
    return draw(rows, features, generator=generator)


def odd_pictures(digit: np.ndarray) -> dict[str, np.ndarray]:
    """Pictures that are no upright digit, and the digit that one of them was made of."""
    turned = {"a digit": digit, "turned by 90 degrees": rotated(digit), "its negative": 1 - digit}
    return {"a letter": letter(), "a cat": cat(), **turned}


def one_seed(seed: int, chosen: Settings, overrides: Sequence[str], folder: Path) -> Result:
    """Both networks of one seed, and what they say; `arrays.npz` keeps what the figures need."""
    config = compose("tutorial_mnist", [*overrides, f"seed={seed}"], folder=folder / "bnn")
    hidden = [16] if chosen.quick else [400, 400]
    plain = {"data": config.data, "hidden": hidden, "epochs": chosen.mlp_epochs, "seed": seed}
    plain["folder"] = str(folder / "mlp")
    with claimed(config), claimed(OmegaConf.create(plain)):
        found = read_json(folder / "results.json")
        if not found:
            others = compose("tutorial_mnist", [*overrides, *_other_data(chosen)], folder=folder / "bnn")
            data, fashion = load(config.data), load(others.data)
            build(config).training(data)  # what cannot be trained is refused before the other network is
            mlp = train_mlp(data, seed, chosen.mlp_epochs, folder / "mlp", hidden)
            found = _ask_both(config, mlp, data, fashion, folder)
            write_text(folder / "results.json", json.dumps(found, indent=1) + "\n")
    return found


def _ask_both(config: DictConfig, mlp: PlainFit, data: Dataset, fashion: Dataset, folder: Path) -> Result:
    """Train the Bayesian network, and ask it and the plain one."""
    results: Result = {}

    def measure(fitted: Fitted) -> Result:
        sets, shown, names = questions(data, fashion, config.seed)
        answers, arrays = ask(fitted.posterior, mlp, sets, fitted.run.draws, config.seed)
        results.update(answers)
        arrays |= {"shown": shown.reshape(-1, SIDE, SIDE).numpy(), "names": np.array(names)}
        arrays["shown_bnn"] = uncertainty(draw_log_probs(fitted.posterior, shown, fitted.run.draws))["probs"]
        arrays["shown_mlp"] = mlp.predict(shown).softmax(-1).numpy()
        with replacing(folder / "arrays.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        return scores(fitted, mlp)

    # whose checkpoint stays, so that nothing is trained again
    (folder / "bnn" / "result.json").unlink(missing_ok=True)
    progress = Printed(error=", test error {:.2f} %")
    results["scores"] = fit_point(config, measure, progress=progress, keep=True, prepare=partial(watch, data))
    return results


def watch(data: Dataset, training: Training) -> None:
    """Measure the test set after each epoch, as the tutorial printed it; nothing is chosen by it."""
    assert data.test is not None
    training.validation = data.test.to(training.device)


def _other_data(chosen: Settings) -> list[str]:
    return ["data.seed=1"] if chosen.quick else ["data=fashion_mnist"]


def train_mlp(data: Dataset, seed: int, epochs: int, folder: Path, hidden: Sequence[int]) -> PlainFit:
    """The tutorial's plain network; the history's validation columns hold the test set, as it printed."""
    with isolated(seed):
        network = perceptron(data.spec.features[0], hidden, data.spec.outputs)
    shown = replace(data, validation=data.test)
    optim = partial(torch.optim.Adam, lr=1e-3)  # its decay of a Python float was never applied
    return fit_plain(
        network,
        shown,
        epochs=epochs,
        optim=optim,
        seed=seed,
        device="cpu",
        folder=folder,
        progress=Printed(error=", test error {:.2f} %"),
    )


def questions(data: Dataset, fashion: Dataset, seed: int) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """The sets to be measured, and a few images of each to be shown with their names."""
    assert data.test is not None
    assert fashion.test is not None
    features = data.spec.features[0]
    sets = {
        DIGITS: data.test.x,
        FASHION: fashion.test.x,
        NOISE: noise_images(1000, features, seed),
        UNIFORM: noise_images(1000, features, seed, uniform=True),
    }
    four = int((data.test.y == 4).nonzero()[0])
    odd = odd_pictures(data.test.x[four].reshape(SIDE, SIDE).numpy())
    drawn = torch.tensor(np.stack(list(odd.values())), dtype=torch.float32).flatten(1)
    parts = {"": drawn, NOISE: sets[NOISE][:3], UNIFORM: sets[UNIFORM][:1], FASHION: sets[FASHION][:3]}
    return sets, torch.cat(list(parts.values())), [*odd, *[NOISE] * 3, UNIFORM, *[FASHION] * 3]


def ask(
    posterior: Posterior, mlp: PlainFit, sets: dict[str, Tensor], draws: int, seed: int
) -> tuple[Result, dict[str, np.ndarray]]:
    """Mean uncertainties on each set, and how well each uncertainty tells Fashion-MNIST from MNIST."""
    rows: dict[str, dict[str, float]] = {}
    each: dict[str, dict[str, np.ndarray]] = {}
    for name, x in sets.items():
        found = uncertainty(draw_log_probs(posterior, x, draws, seed))
        found["mlp"] = (entropy(mlp.predict(x).double().softmax(-1)) * BITS).numpy()
        each[name] = {k: v for k, v in found.items() if v.ndim == 1}
        rows[name] = {k: float(v.mean()) for k, v in each[name].items()}
    areas = {
        "MLP entropy": auroc(each[DIGITS]["mlp"], each[FASHION]["mlp"]),
        "BNN entropy": auroc(each[DIGITS]["entropy"], each[FASHION]["entropy"]),
        "BNN mutual information": auroc(each[DIGITS]["information"], each[FASHION]["information"]),
    }
    kept = ("mlp", "entropy", "information")
    arrays = {f"{name}/{k}": each[name][k].astype(np.float32) for name in (DIGITS, FASHION) for k in kept}
    return {"uncertainty": rows, "auroc": areas}, arrays


def scores(fitted: Fitted, mlp: PlainFit) -> Result:
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
    }


def _by_epoch(results: dict[int, Result]) -> str:
    """Test accuracy and loss of both networks after each epoch."""
    printed = zip(MLP_ACCURACIES, MLP_LOSSES, strict=True)
    expected = [("mlp", i, f"{accuracy:.2f}", f"{loss:.4f}") for i, (accuracy, loss) in enumerate(printed)]
    expected.append(("bnn", 0, f"{BNN_FIRST[0]:.2f}", f"{BNN_FIRST[1]:.2f}"))
    lines = []
    for kind, i, accuracy, loss in expected:
        found = [r["scores"] for r in results.values() if i < len(r["scores"][f"{kind}_errors"])]
        if found:
            ours = mean_sd([100 - s[f"{kind}_errors"][i] for s in found], 2)
            losses = mean_sd([s[f"{kind}_losses"][i] for s in found], 4 if kind == "mlp" else 1)
            lines.append((f"{kind.upper()}, {i + 1}", accuracy, ours, loss, losses))
    head = ("after epoch", "accuracy (%), tutorial", "ours", "loss, tutorial", "ours")
    return (
        table(head, lines)
        + "\nOf the BNN: the mean KL of the epoch's draws, and accuracy and NLL of the averaged prediction."
    )


def report(results: dict[int, Result]) -> str:
    """Mean and standard deviation over seeds, beside what the tutorial printed."""
    first = next(iter(results.values()))
    lines = []
    names = {
        "mlp_accuracy": "MLP test accuracy (%)",
        "mlp_loss": "MLP test loss (nats)",
        "bnn_accuracy": "BNN test accuracy, averaged draws (%)",
        "bnn_accuracy_5": "BNN test accuracy, 5 draws (%)",
        "bnn_nll": "BNN test NLL, averaged draws (nats)",
        "bnn_loss": "BNN test loss: KL / 468.75 + NLL of a batch",
    }
    printed = {**{k: TUTORIAL.get(k) for k in names}, "bnn_accuracy_5": TUTORIAL["bnn_accuracy"]}
    printed["bnn_accuracy"] = None
    for key, name in names.items():
        theirs = printed[key]
        ours = mean_sd(
            [r["scores"][key] for r in results.values()], 4 if "nll" in key or "loss" in key else 2
        )
        lines.append((name, "-" if theirs is None else f"{theirs:g}", ours))
    blocks = [table(("", "tutorial", "ours"), lines), _by_epoch(results)]
    kinds = {
        "mlp": "MLP entropy",
        "entropy": "BNN H(mean p)",
        "expected": "mean H(p)",
        "information": "mutual information",
        "geometric": "H(geometric mean)",
        "geometric_sum": "its sum before",
        "printed": "printed as entropy",
    }
    rows = [
        (name, *(mean_sd([r["uncertainty"][name][k] for r in results.values()], 4) for k in kinds))
        for name in first["uncertainty"]
    ]
    tutorial = (f"{NOISE}, tutorial", "0.1446", *["-"] * 5, "0.9909")
    blocks += ["entropies in bits (at most 3.3219):", table(("inputs", *kinds.values()), [*rows, tutorial])]
    areas = [(n, mean_sd([r["auroc"][n] for r in results.values()], 4)) for n in first["auroc"]]
    blocks.append(table((f"AUROC, {FASHION} from {DIGITS} by", "ours"), areas))
    blocks.append(of_seeds(results))
    return "\n".join(blocks)


def figures(folder: Path, target: Path) -> None:
    """Prediction bars and detection, of one seed."""
    with np.load(folder / "arrays.npz") as arrays:
        drawn = prediction_bars(
            arrays["shown"],
            {"BNN (mean of draws)": arrays["shown_bnn"], "MLP": arrays["shown_mlp"]},
            [str(name) for name in arrays["names"]],
            title="Class probabilities of the Bayesian and the plain network, for a digit and for others",
        )
        scores = {
            name: (arrays[f"{DIGITS}/{key}"], arrays[f"{FASHION}/{key}"])
            for name, key in (("MLP entropy", "mlp"), ("BNN entropy", "entropy"))
        }
        scores["BNN mutual information"] = (
            arrays[f"{DIGITS}/information"],
            arrays[f"{FASHION}/information"],
        )
    save(drawn, target / "predictions.png")
    title = "Telling Fashion-MNIST from MNIST by the uncertainty of a network trained on MNIST"
    drawn = detection(scores, inside="MNIST", outside="Fashion-MNIST", unit="bits", title=title)
    save(drawn, target / "detection.png")


def main(arguments: Sequence[str]) -> dict[int, Result]:
    """Train and ask what is missing, and report."""
    chosen, rest = settings(Settings, arguments)
    name = "runs/tutorial_mnist" + ("/quick" if chosen.quick else "")
    folder, _ = place(arguments, name, shared=("seeds", "quick"))
    overrides = [word for word in rest if key_of(word) != "folder"]
    refuse(overrides, ("seed",), "say seeds=[...]")
    if chosen.quick:
        overrides = [*QUICK, *overrides]
        chosen.seeds, chosen.mlp_epochs = chosen.seeds[:1], 2
    results = {}
    for seed in chosen.seeds:
        results[seed] = one_seed(seed, chosen, overrides, folder / f"seed={seed}")
    figures(folder / f"seed={chosen.seeds[0]}", folder)
    print(report(results))
    print(f"{folder}: predictions.png, detection.png, seed=*/results.json")
    return results


if __name__ == "__main__":
    command(main, __doc__)
