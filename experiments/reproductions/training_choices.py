"""KL shares, starting values, optimisers, and what goes wrong.

`python -m experiments.reproductions.training_choices [groups=[...]] [key=value ...]` fits one network for
each line.
Ghia reports that the shares 2^(M-i) / (2^M - 1) and plain SGD end in NaN, that some starting values give
90 % error, and ends at 9-12 % error itself. Each line of this study changes one thing of the centre (2x400,
prior (1/2, 1, e^-6), Kaiming means, rho = -5, Adam 1e-3, KL/M); the group `controls` holds the published
errors by name. A training whose free energy becomes infinite or NaN is stopped with a clear message, which
is recorded. Writes `curves.csv` and one figure. Points that are finished are not run again.

groups=[shares,means,scales,controls]    which groups
quick=true                               small networks on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=10 seed=2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments._runner.build import ConfigError
from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_points
from experiments._runner.study import Study
from experiments._runner.tables import table
from pyrobbb.figures.error_curves import Curve, error_curves

SGD, SPIKE = ["optim=sgd", "optim.lr=1e-3"], "prior.sigma2=${exp:-8}"
SLOW = ["optim=sgd", "optim.lr=1e-4"]
MEANS = "guide.init_loc._target_"
GIVEN = "guide.init_loc._partial_=false"
CENTRE = "KL/M, Adam 1e-3, sigma2 = e^-6"

# What each line changes of the centre. The names are the legends of the figure and the folders' names.
GROUPS: dict[str, dict[str, list[str]]] = {
    "shares": {
        CENTRE: [],
        "2^-i, Adam 1e-3, sigma2 = e^-6": ["kl=geometric"],
        "KL/M, Adam 1e-3, sigma2 = e^-8": [SPIKE],
        "2^-i, Adam 1e-3, sigma2 = e^-8": ["kl=geometric", SPIKE],
        "KL/M, SGD 1e-3, sigma2 = e^-6": SGD,
        "2^-i, SGD 1e-3, sigma2 = e^-6": [*SGD, "kl=geometric"],
        "KL/M, SGD 1e-3, sigma2 = e^-8": [*SGD, SPIKE],
        "2^-i, SGD 1e-3, sigma2 = e^-8": [*SGD, "kl=geometric", SPIKE],
        "KL/M, SGD 1e-4, sigma2 = e^-8": [*SLOW, SPIKE],
        "2^-i, SGD 1e-4, sigma2 = e^-8": [*SLOW, "kl=geometric", SPIKE],
    },
    "means": {
        CENTRE: [],
        "mu = 0": [f"{MEANS}=pyrobbb.initializers.Constant", GIVEN, "+guide.init_loc.value=0.0"],
        "mu from N(0, 0.1^2)": [f"{MEANS}=pyrobbb.initializers.Normal", GIVEN, "+guide.init_loc.scale=0.1"],
        "mu from N(0, s^2), s = 0.01 (ln in + ln out)": [
            f"{MEANS}=experiments.reproductions.controls.LogSizeNormal",
            GIVEN,
        ],
        "mu from U(-0.6, 0.6)": [
            f"{MEANS}=pyrobbb.initializers.Uniform",
            GIVEN,
            "+guide.init_loc.low=-0.6",
            "+guide.init_loc.high=0.6",
        ],
    },
    "scales": {
        "rho = -8": ["guide.init_rho=-8.0"],
        CENTRE: [],
        "rho = -3": ["guide.init_rho=-3.0"],
        "rho = -2": ["guide.init_rho=-2.0"],
        "rho = 0": ["guide.init_rho=0.0"],
    },
    "controls": {
        CENTRE: [],
        "the whole KL on every minibatch": ["kl=full"],
        "the KL counted 25 times": ["kl=tempered", "kl.temperature=25"],
        "5 draws": ["samples=5"],
        "5 draws, likelihood of their mean logits": [
            "likelihood=mean_logits",
            "samples=5",
            "vectorize=true",
            "fast=off",
        ],
        "softmax taken twice": ["likelihood=double_softmax"],
        "pixels scaled twice": ["data.scale=32130.0"],
        "softmax and pixels twice": ["likelihood=double_softmax", "data.scale=32130.0"],
    },
}
HEADINGS = {
    "shares": "KL shares and optimisers",
    "means": "starting means (rho = -5)",
    "scales": "starting rho (Kaiming means; centre: -5)",
    "controls": "negative controls",
}
# Printed elsewhere: error, %, after epochs 1, 2, ... of networks that differ in prior or width (protocol)
ELSEWHERE = {
    "the whole KL on every minibatch": "6.3, 6.6 (our prototype, under another prior)",
    "softmax and pixels twice": "20.5, 11.1 (our prototype); Ghia, 2x1200, test, one draw: 14.75, 9.82, 9.59",
    CENTRE: "4.12, 2.80, 2.38 (our prototype, 10 draws)",
    "2^-i, SGD 1e-3, sigma2 = e^-8": "NaN in epoch 1 (our prototype); sometimes NaN (Ghia)",
    "2^-i, Adam 1e-3, sigma2 = e^-8": "2.61 at epoch 3 (our prototype)",
}
OF_LINES = (
    "kl",
    "optim",
    "prior",
    "likelihood",
    "guide",
    "samples",
    "vectorize",
    "fast",
    "draws",
    "data.scale",
)


@dataclass
class Settings:
    """The study of training choices."""

    groups: list[str] = field(default_factory=lambda: list(GROUPS))
    quick: bool = False


STUDY = Study(
    "training_choices",
    Settings,
    sets=OF_LINES,
    instead="its lines are made of these; python -m experiments.run takes any",
    parts=("groups",),
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


def _nll(result: Result) -> str:
    return f"{result['validation_nll']:.4f}" if "validation_nll" in result else "-"


def report(results: dict[str, Result]) -> str:
    """All lines beside what others saw."""
    rows = [(name, words(result), _nll(result), ELSEWHERE.get(name, "-")) for name, result in results.items()]
    head = ("what", "validation error (%) after epoch 1, 2, ...", "NLL at the end (nats)", "elsewhere")
    blocks = [table(head, rows)]
    for name, result in results.items():
        if "stopped" in result:
            blocks.append(f"{name}: {result['stopped']}")
    centre, full = results.get(CENTRE), results.get("the whole KL on every minibatch")
    if centre and full and "stopped" not in full:
        pairs = list(zip(full["validation_errors"], centre["validation_errors"], strict=True))
        ratios = ", ".join(f"{a / b:.2f}" for a, b in pairs)
        blocks.append(f"error with the whole KL on every minibatch / with KL/M, by epoch: {ratios}")
    return "\n".join(blocks)


def by_epoch(results: dict[str, Result]) -> list[list[object]]:
    """A row for each line and epoch."""
    return [
        [name, *row, *(result.get(f"stopped_{part}", "") for part in ("epoch", "step"))]
        for name, result in results.items()
        for row in list(
            zip(result["epochs"], result["validation_errors"], result["free_energies"], strict=True)
        )
        or [("", "", "")]
    ]


def curve(result: Result) -> Curve:
    """The line of a result, to the step where it broke, if it did."""
    if "stopped" not in result:
        return Curve(result["validation_errors"])
    return Curve(result["validation_errors"], result["stopped_epoch"] - 1 + result["stopped_share"])


def main(arguments: Sequence[str]) -> dict[str, Result]:
    """Fit what is missing of the study, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    unknown = [name for name in chosen.groups if name not in GROUPS]
    if unknown:
        raise ConfigError(f"groups must be some of {', '.join(GROUPS)}, got {chosen.groups}")
    lines = {name: changes for group in chosen.groups for name, changes in GROUPS[group].items()}
    configs = {
        name: compose("training_choices", [*overrides, *changes], folder=out.fits / folder_name(name))
        for name, changes in lines.items()
        if not (chosen.quick and "data.scale" in " ".join(changes))
    }
    results = fit_points(configs, measure, words)
    head = ["what", "epoch", "validation_error", "free_energy", "stopped_epoch", "stopped_step"]
    out.csv("curves.csv", head, by_epoch(results))
    panels = {
        HEADINGS[group]: {pretty(name): curve(results[name]) for name in GROUPS[group] if name in results}
        for group in chosen.groups
    }
    title = "Validation error by epoch: one thing changed at a time (cross: not finite, stopped)"
    out.figure("curves.png", error_curves(panels, title=title))
    out.end(report(results))
    return results


def pretty(name: str) -> str:
    """A line's name as a legend."""
    for plain, symbol in (
        ("sigma2 = e^-6", "$\\sigma_2 = e^{-6}$"),
        ("sigma2 = e^-8", "$\\sigma_2 = e^{-8}$"),
    ):
        name = name.replace(plain, symbol)
    return name.replace("2^-i", "$2^{-i}$").replace("0.1^2", "$0.1^2$").replace("s^2", "$s^2$")


def folder_name(name: str) -> str:
    """A line's name with nothing in it that a shell or file system minds."""
    kept = name.replace(" = ", "=").replace("^", "").replace("/", "_over_").replace(" ", "_")
    return "".join(c for c in kept if c.isalnum() or c in "=-_.,+")


if __name__ == "__main__":
    command(main, __doc__)
