"""Part `detection` of the scoreboard: MNIST, and what is told apart from it by the predictive entropy.

Each method beside a plain network of the same architecture and beside its own mean weights, which tell what
averaging over draws adds: error, NLL, ECE and Brier score on the test set; the area under the ROC curve
against clothes, letters and noise, and the share of them that is found at few false alarms; accuracy and NLL
of test digits turned by 0 to 180 degrees.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch import Tensor

from experiments._runner.build import ConfigError
from experiments._runner.fit_points import Result, changed, once
from experiments._runner.study import Outputs, Study
from experiments._runner.tables import table
from experiments.scoreboard import methods, published
from experiments.scoreboard.compare import REFERENCE, Row, cell, lines_of, notes, rows_of, spent
from experiments.scoreboard.points import said, scored, timed
from experiments.tutorial.mnist_uncertainty import noise_images
from pyrobbb.data import FashionMNIST
from pyrobbb.data.dataset import Split
from pyrobbb.data.images.notmnist import notmnist
from pyrobbb.draws import is_point
from pyrobbb.evaluation.metrics import classification_metrics
from pyrobbb.evaluation.ood import auroc, hits
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction

NETWORKS = {
    "2x400": (["model=mlp", "model.hidden=[400,400]"], "4"),
    "conv": (["model=convnet", "data.flatten=false"], "9"),
}
WORDS = [
    "prior=normal", "prior.sigma=0.1", "likelihood=categorical", "batch_size=128", "optim.lr=0.001",
    "validation_draws=0",
]  # fmt: skip
DIGITS = ["data=mnist", "data.validation=0"]
BLOBS = ["data=blobs", "data.features=784", "data.N=200", "data.classes=10", "model.hidden=[8,8]"]
METHODS = [
    "plain network", "ensemble of 5", "dropout", "SWAG", "mean field", "cold mean field", "last layer",
    "natural gradient", "Laplace, last layer", "Laplace, Kronecker", "5 Laplace, Kronecker", "SGHMC",
]  # fmt: skip
LARGE = {  # of hundreds of thousands of weights
    "NUTS": "NUTS is for hundreds of weights",
    "full covariance": "a full covariance has D^2 numbers",
    "low rank": "low rank is trained by Pyro's own program, too slow for this network",
}
MEANS = "mean weights"  # as a method's control
ALARMS = (0.01, 0.05)
HELD = 10_000  # of the 60,000 training images
ANGLES = tuple(range(0, 181, 30))
OUTSIDE = ("Fashion-MNIST", "notMNIST", "noise")
SCALE = 126.0  # as the training images are divided


@dataclass
class Settings:
    """Which networks, methods and seeds, and how much work each may do."""

    networks: list[str] = field(default_factory=lambda: ["2x400"])
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    epochs: int = 10
    draws: int = 20
    images: int = 10_000
    trials: int = 3
    quick: bool = False


CHOOSING = 1  # the seed that settings are chosen with, so that later seeds share what was chosen

STUDY = Study(
    "experiments.scoreboard part=detection",
    "scoreboard/detection",
    Settings,
    sets=("seed", "model", "prior", "likelihood", "chains"),
    instead="say networks=[...], methods=[...] or seeds=[...]",
    parts=("networks", "methods", "seeds"),
    named=("epochs", "draws", "images", "trials"),
    small=(),
    fixed=("networks",),
    quick={"networks": ["2x400"], "seeds": [1, 2], "epochs": 2, "draws": 3},
    choices={"networks": NETWORKS, "methods": methods.METHODS},
    counts=("epochs", "draws", "images", "trials"),
)


def config_of(
    network: str, method: str, seed: int, chosen: Settings, out: Outputs, words: Sequence[str]
) -> DictConfig:
    """The configuration of a method with a network and a seed."""
    size, last = NETWORKS[network]
    own = [f"{key}={chosen.epochs}" for key in ("epochs", "record_every")]
    own += [f"draws={chosen.draws}", f"seed={seed}"]
    data = BLOBS if chosen.quick else DIGITS
    folder = out.fits / network / f"seed={seed}" / method
    return methods.configured(method, [*size, *data, *WORDS, *own, *words], folder=folder, last=last)


def settled(network: str, method: str, chosen: Settings, out: Outputs, words: Sequence[str]) -> Result:
    """What was tried, with seed 1 whichever are run, and the score of validation images; best first."""
    config = config_of(network, method, CHOOSING, chosen, out, words)
    config = changed(config, out.fits / network / "chosen" / method, {})
    held: dict[str, Any] = {} if chosen.quick else {"data.validation": HELD}

    def made() -> Result:
        began = perf_counter()
        trials = methods.METHODS[method].images[: chosen.trials]
        tried = [(scored(method, trial, config, held)[0], trial) for trial in trials]
        tried.sort(key=lambda one: -one[0])
        each = [(dict(trial), score if score > -math.inf else None) for score, trial in tried]
        tries = [{"keys": keys, "log_likelihood": score} for keys, score in each]
        return {"tried": tries, "seconds_choosing": perf_counter() - began}

    found = {"tried": [{"keys": {}}], **once(config, made)}
    wanted = len(methods.METHODS[method].images[: chosen.trials])
    if "seconds_choosing" in found and len(found["tried"]) != wanted:
        raise ConfigError(
            f"trials: {config.folder} holds what {len(found['tried'])} settings gave, here they are "
            f"{wanted}; give these another folder=..."
        )
    return found


@cache
def outsiders(quick: bool) -> dict[str, Tensor]:
    """Images of other kinds, `(M, 784)`, scaled as the digits; `quick`: noise alone."""
    noise = {"noise": noise_images(1000, 784, seed=0, uniform=True) * (255 / SCALE)}
    if quick:
        return noise
    clothes = FashionMNIST(scale=SCALE).load().test
    assert clothes is not None
    return {"Fashion-MNIST": clothes.x, "notMNIST": notmnist(scale=SCALE).x, **noise}


def turned(x: Tensor, degrees: float) -> Tensor:
    """Images of 28 x 28 pixels turned about their centre, with bilinear interpolation and black corners."""
    images = x.reshape(len(x), 1, 28, 28)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]], dtype=x.dtype).expand(len(x), 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).reshape(x.shape)


def measured(
    posterior: Posterior, test: Split, draws: int, seed: int, others: Mapping[str, Tensor]
) -> Result:
    """Every score of the averaged probabilities, and under `MEANS` of those at the mean weights."""
    found = scores(partial(posterior.predict, draws=draws, seed=seed), test, others)
    if all(is_point(guide) for _, guide in posterior.chains):
        return found
    return {**found, MEANS: scores(partial(posterior.predict, mean_weights=True), test, others)}


def scores(
    predicted: Callable[[Tensor], ClassPrediction], test: Split, others: Mapping[str, Tensor]
) -> Result:
    """Of test digits, of what is told apart from them, and of turned digits."""
    x, y = test.x, test.y
    inside = predicted(x)
    found: Result = {**classification_metrics(inside.probs, y)}
    for name, images in others.items():
        entropies = predicted(images.reshape(len(images), *x.shape[1:])).predictive_entropy
        found[f"auroc {name}"] = auroc(inside.predictive_entropy, entropies)
        for alarms in ALARMS:
            found[f"hits at {alarms:g} {name}"] = hits(inside.predictive_entropy, entropies, alarms)
    found["turned"] = {}
    for degrees in ANGLES:
        metrics = classification_metrics(predicted(turned(x, degrees)).probs, y)
        found["turned"][str(degrees)] = {"accuracy": 100 - metrics["error"], "nll": metrics["nll"]}
    return found


def run(arguments: Sequence[str]) -> tuple[Outputs, Result]:
    """Fit what is missing; the record so far is kept after each seed of a network."""
    chosen, words, out = STUDY.begin(arguments)
    rows: list[Row] = []
    budget = {
        "epochs": chosen.epochs,
        "draws of each chain": chosen.draws,
        "images of a set": chosen.images,
        "settings tried": chosen.trials,
        "images held out to choose": HELD,
    }
    record: Result = {"part": "detection", "budget": budget, "rows": rows}
    for network in chosen.networks:
        for seed in chosen.seeds:
            for method in chosen.methods:
                result = point(network, method, seed, chosen, out, words)
                for name, found in with_means(method, result):
                    rows.append({"network": network, "seed": seed, "method": name, **found})
                    print(f"{network}, seed {seed}, {name}: {said(found, 'error')}", flush=True)
            out.record(record)
    return out, record


def with_means(method: str, result: Result) -> list[tuple[str, Result]]:
    """The row of a method, and that of its mean weights."""
    own = dict(result)
    of_means = own.pop(MEANS, None)
    return [(method, own)] if of_means is None else [(method, own), (f"{method}, {MEANS}", of_means)]


def point(
    network: str, method: str, seed: int, chosen: Settings, out: Outputs, words: Sequence[str]
) -> Result:
    """Fit a method once, and measure it."""
    if method in LARGE:
        return {"refused": LARGE[method]}
    choice = settled(network, method, chosen, out, words)
    tried = choice["tried"]
    config = config_of(network, method, seed, chosen, out, words)
    config = changed(config, Path(config.folder), methods.tried(config, tried[0]["keys"]))

    def made() -> Result:
        run, data, posterior, seconds = timed(config, around=methods.METHODS[method].around)
        assert data.test is not None
        test = Split(data.test.x[: chosen.images], data.test.y[: chosen.images])
        some = {name: x[: chosen.images] for name, x in outsiders(chosen.quick).items()}
        return {**measured(posterior, test, run.draws, run.seed, some), "seconds": seconds, "tried": tried}

    result = once(config, made, beside={"images": chosen.images})
    images = result.pop("images", chosen.images)  # once without
    if images != chosen.images:
        raise ConfigError(
            f"images: {config.folder} holds scores of {images} images of a set, here they are "
            f"{chosen.images}; give these another folder=..."
        )
    if seed == CHOOSING and "seconds_choosing" in choice:  # once for all seeds
        result["seconds_choosing"] = choice["seconds_choosing"]
    return result


def report(record: Result) -> str:
    """For each network: scores on digits, what is told apart, and turned digits."""
    rows = record["rows"]
    parts = [f"Each method: {spent(record['budget'])}"]
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = rows_of(rows, network=network)
        order = list(dict.fromkeys(row["method"] for row in mine))
        seeds = sorted({row["seed"] for row in mine})
        parts.append(f"{network}, seeds {', '.join(map(str, seeds))}: mean ± standard error over them")
        digits = {"error": 2, "nll": 4, "ece": 4, "brier": 4, "seconds": 0}
        parts.append(table(["method", *digits], lines_of(mine, order, digits)))
        for name in OUTSIDE:
            if not any(f"auroc {name}" in row for row in mine):
                continue
            columns = {f"auroc {name}": 4, **{f"hits at {alarms:g} {name}": 3 for alarms in ALARMS}}
            head = ["method", "AUROC", *(f"found at {alarms:.0%} false alarms" for alarms in ALARMS)]
            head.append(f"AUROC above the {REFERENCE}'s")
            parts += [name, table(head, lines_of(mine, order, columns, "seed"))]
            if network == "conv" and name == "Fashion-MNIST":
                theirs = ", ".join(f"{m} {area:.3f}" for m, area in published.FASHION_FROM_MNIST.items())
                parts.append(f"published, github.com/wiseodd/lula: {theirs}")
        turned = {m: [row["turned"] for row in rows_of(mine, method=m) if "turned" in row] for m in order}
        for measure, places in (("accuracy", 1), ("nll", 3)):
            lines = [
                [m, *(cell([found[str(a)] for found in turned[m]], measure, places) for a in ANGLES)]
                for m in order
            ]
            head = ["method", *map(str, ANGLES)]
            parts += [f"digits turned by so many degrees, {measure}", table(head, lines)]
    return "\n\n".join([*parts, *notes(rows)])
