"""The tutorial's printed numbers next to ours, and its two figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments._runner.fit_points import Result
from experiments._runner.folder import reading
from experiments._runner.tables import mean_sd, of_seeds, table
from experiments.tutorial.mnist_uncertainty import DIGITS, FASHION, NOISE, SCORES
from pyrobbb.evaluation.ood import auroc, roc_curve
from pyrobbb.figures.style import BLUE, CHAINS, GREY, ORANGE, caption, label, new_figure, styled

MLP_ACCURACIES = (96.40, 97.15, 97.49, 97.91, 97.83, 97.85, 97.43, 98.05, 98.27, 98.00)  # after each epoch
MLP_LOSSES = (0.1248, 0.0910, 0.0801, 0.0661, 0.0779, 0.0701, 0.1034, 0.0745, 0.0719, 0.0878)
BNN_FIRST = (91.07, 9806.67)  # after the first epoch
TUTORIAL = {
    "mlp_accuracy": MLP_ACCURACIES[-1],
    "mlp_loss": MLP_LOSSES[-1],
    "bnn_accuracy_5": 97.25,
    "bnn_loss": 4913.4,
}
COLUMNS = 4  # images in a row
MLP_ENTROPY, PRINTED_ENTROPY = 0.1446, 0.9909  # bits, on noise


def by_epoch(results: Sequence[Result]) -> str:
    """Test accuracy and loss of both networks after each epoch."""
    printed = zip(MLP_ACCURACIES, MLP_LOSSES, strict=True)
    expected = [("mlp", i, f"{accuracy:.2f}", f"{loss:.4f}") for i, (accuracy, loss) in enumerate(printed)]
    expected.append(("bnn", 0, f"{BNN_FIRST[0]:.2f}", f"{BNN_FIRST[1]:.2f}"))
    lines = []
    for kind, i, accuracy, loss in expected:
        found = [r["scores"] for r in results if i < len(r["scores"][f"{kind}_errors"])]
        if found:
            ours = mean_sd([100 - s[f"{kind}_errors"][i] for s in found], 2)
            losses = mean_sd([s[f"{kind}_losses"][i] for s in found], 4 if kind == "mlp" else 1)
            lines.append((f"{kind.upper()}, {i + 1}", accuracy, ours, loss, losses))
    head = ("after epoch", "accuracy (%), tutorial", "ours", "loss, tutorial", "ours")
    note = "Of the BNN: the mean KL of the epoch's draws, and accuracy and NLL of the averaged prediction."
    return f"{table(head, lines)}\n{note}"


def report(record: Mapping[str, Any]) -> str:
    """Mean and standard deviation over seeds, next to what the tutorial printed."""
    results, lines = list(record["found"].values()), []
    names = {
        "mlp_accuracy": "MLP test accuracy (%)",
        "mlp_loss": "MLP test loss (nats)",
        "bnn_accuracy": "BNN test accuracy, averaged draws (%)",
        "bnn_accuracy_5": "BNN test accuracy, 5 draws (%)",
        "bnn_nll": "BNN test NLL, averaged draws (nats)",
        "bnn_loss": "BNN test loss: KL / 468.75 + NLL of a batch",
    }
    for key, name in names.items():
        theirs = TUTORIAL.get(key)
        given = "-" if theirs is None else f"{theirs:.2f}" if "accuracy" in key else f"{theirs:g}"
        digits = 2 if "accuracy" in key else 4
        lines.append((name, given, mean_sd([r["scores"][key] for r in results], digits)))
    blocks = [table(("", "tutorial", "ours"), lines), by_epoch(results)]
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
        (name, *(mean_sd([r["uncertainty"][name][k] for r in results], 4) for k in kinds))
        for name in results[0]["uncertainty"]
    ]
    tutorial = (f"{NOISE}, tutorial", MLP_ENTROPY, *["-"] * 5, PRINTED_ENTROPY)
    blocks += ["entropies in bits (at most 3.3219):", table(("inputs", *kinds.values()), [*rows, tutorial])]
    areas = [(n, mean_sd([r["auroc"][n] for r in results], 4)) for n in results[0]["auroc"]]
    blocks.append(table((f"AUROC, {FASHION} from {DIGITS} by", "ours"), areas))
    blocks.append(of_seeds(record["seeds"]))
    return "\n".join(blocks)


def figures(folder: Path) -> dict[str, Figure]:
    """By file name: prediction bars and detection, of the seed that the folder is named after."""
    with reading(path := folder / "arrays.npz"), np.load(path) as kept:
        arrays = dict(kept)
    drawn = prediction_bars(
        arrays["shown"],
        {"BNN (mean of draws)": arrays["shown_bnn"], "MLP": arrays["shown_mlp"]},
        [str(name) for name in arrays["names"]],
        f"Class probabilities of both networks, for a digit and for others ({folder.name})",
    )
    scores = {name: (arrays[f"{DIGITS}/{key}"], arrays[f"{FASHION}/{key}"]) for name, key in SCORES.items()}
    title = (
        f"Telling Fashion-MNIST from MNIST by the uncertainty of a network trained on MNIST ({folder.name})"
    )
    return {"predictions.png": drawn, "detection.png": detection(scores, title)}


@styled
def detection(scores: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str) -> Figure:
    """The ROC curve of each uncertainty with its area, and its densities on MNIST and on Fashion-MNIST."""
    figure = new_figure(4.2 + 2.6 * len(scores), 4.0)
    axes = figure.subplots(1, 1 + len(scores), width_ratios=[1.5] + [1.0] * len(scores))
    axes[0].plot([0, 1], [0, 1], color=GREY, ls="--", lw=1, label="guessing (0.5)")
    for i, (name, pair) in enumerate(scores.items()):
        known, unknown = (part.astype(float) for part in pair)
        area = auroc(known, unknown)
        dashes = "-" if i % 3 < 2 else "--"  # a curve that covers another shows it
        axes[0].plot(*roc_curve(known, unknown), dashes, color=CHAINS[i], label=f"{name} ({area:.3f})")
        high = max(known.max(), unknown.max()) * 1.001 + 1e-9
        edges = np.linspace(min(0.0, known.min(), unknown.min()), high, 41)
        panel = axes[1 + i]
        panel.hist(known, edges, density=True, color=BLUE, alpha=0.55, label="MNIST")
        panel.hist(unknown, edges, density=True, color=ORANGE, alpha=0.55, label="Fashion-MNIST")
        panel.set_yscale("log")
        panel.set_title(name)
        label(panel, "uncertainty (bits)", "density (1/bit)")
    label(axes[0], "share of MNIST taken for unknown", "share of Fashion-MNIST found")
    axes[0].set_title("ROC curves (area)")
    axes[0].legend(loc="lower right", fontsize=8)
    axes[1].legend(loc="upper right", fontsize=8)
    caption(figure, title)
    return figure


@styled
def prediction_bars(
    images: np.ndarray, probs: Mapping[str, np.ndarray], names: Sequence[str], title: str
) -> Figure:
    """Images `(M, height, width)`, each next to a bar for each class and model; `probs` are `(M, C)`."""
    rows = -(-len(images) // COLUMNS)
    figure = new_figure(2.6 * COLUMNS, 0.8 + 1.75 * rows)
    cells = figure.subplots(rows, 2 * COLUMNS, squeeze=False, width_ratios=[1.0, 1.25] * COLUMNS)
    for cell in cells.flat[2 * len(images) :]:
        cell.set_axis_off()
    height = 0.8 / len(probs)
    for i, name in enumerate(names):
        picture, bars = cells.flat[2 * i], cells.flat[2 * i + 1]
        picture.imshow(images[i], cmap="gray_r", interpolation="nearest")
        picture.set_axis_off()
        picture.set_title(name, fontsize=8, pad=3)
        picture.set_anchor("N")
        for j, (model, p) in enumerate(probs.items()):
            place = np.arange(p.shape[1]) + (j - (len(probs) - 1) / 2) * height
            bars.barh(place, p[i], color=(BLUE, ORANGE)[j], height=height, label=model)
        C = next(iter(probs.values())).shape[1]
        bars.set_yticks(range(C), range(C), fontsize=6.5)
        bars.set_ylim(C - 0.4, -0.6)
        bars.set_xlim(0, 1)
        bars.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=7)
        bars.tick_params(length=2, pad=1.5)
        bars.grid(False, axis="y")
        bars.set_ylabel("class" if i % COLUMNS == 0 else "", fontsize=8)
        if i + COLUMNS >= len(names):
            bars.set_xlabel("probability", fontsize=8)
    handles, labels = cells.flat[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(probs), fontsize=8.5)
    caption(figure, title)
    return figure
