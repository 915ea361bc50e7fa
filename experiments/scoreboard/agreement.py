"""Part `agreement` of the scoreboard: how near each method's functions are to those that NUTS draws.

The same model with a fixed noise: six points with a network of 32 sigmoid units, a sine with a gap and the
paper's curve with one hidden layer of 50, the yacht table. Compared in function space, at inputs between
the data and away from them. NUTS is the yardstick, with the last layer integrated out, without which it
hardly moves on the curve. It is measured as well: by R-hat between its chains, by how far its halves are
from each other, and, for the six points, by the symmetry that the posterior has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from experiments._runner.build import ConfigError
from experiments._runner.fit_points import Result, load, once
from experiments._runner.folder import reading
from experiments._runner.study import Outputs, Study
from experiments._runner.tables import table
from experiments.scoreboard import methods
from experiments.scoreboard.compare import Row, notes, reason, rows_of, spent
from experiments.scoreboard.points import said, timed
from pyrobbb._support.files import replacing
from pyrobbb.evaluation.diagnostics import function_draws, r_hat
from pyrobbb.evaluation.distances import symmetric_difference, total_variation
from pyrobbb.inference import NUTS

YARDSTICK = "NUTS"
NOISE = ["likelihood=normal", "likelihood.scale=0.1"]  # of all models
EXACT = [  # the noise and the last layer's prior are normal
    "inference.collapsed=true", "inference.warmup=300", "inference.draws=250", "inference.max_tree_depth=7",
]  # fmt: skip
FACTOR = 2.0  # a spread within it of the yardstick's counts as near


@dataclass(frozen=True)
class Model:
    """A small network and its data, all rows of which are a batch.

    Args:
        words: Overrides of `experiments.run`.
        x: Where functions are compared; None: at the test rows.
        at: The inputs among them that are printed.
        even: Whether the posterior is symmetric in x.
        words_of: Overrides of one method.
    """

    words: Sequence[str]
    x: Tensor | None = None
    at: Sequence[float] = ()
    even: bool = False
    words_of: Mapping[str, Sequence[str]] = field(default_factory=dict)


MODELS = {
    "six_points": Model(
        [
            "data=toy_points", "batch_size=6", "model.hidden=[32]", "model.activation=sigmoid",
            "prior=normal", "prior.sigma=10.0", "optim.lr=0.1",
        ],
        x=torch.linspace(-5, 5, 41)[:, None],
        at=(0.0, 1.5, 5.0),
        even=True,
        words_of={
            # stable where the likelihood is steepest, and a velocity that lasts for the prior's width
            "SGHMC": [
                "epochs=250000", "record_every=250000", "inference.lr=5e-5", "inference.friction=3e-4",
                "inference.exploring=0.1", "inference.draws=500",
            ],
        },
    ),
    "gap": Model(
        [
            "data=noisy_sine", "data.N=40", "data.gap=[-0.5,0.3]", "batch_size=40", "model.hidden=[50]",
            "model.activation=tanh", "prior=fan_in_normal", "prior.gain=2.0", "optim.lr=0.01",
        ],
        x=torch.linspace(-1.5, 1.5, 61)[:, None],
        at=(-0.75, -0.1, 1.5),
    ),
    "curve": Model(
        [
            "data=paper_curve", "data.N=100", "batch_size=100", "model.hidden=[50]", "prior=normal",
            "prior.sigma=1", "optim.lr=0.01",
        ],
        x=torch.linspace(-0.5, 1.2, 35)[:, None],
        at=(-0.3, 0.25, 0.8),
    ),
    "yacht": Model(
        [
            "data=uci", "data.name=yacht", "data.validation=0", "batch_size=277", "model.hidden=[50]",
            "prior=fan_in_normal", "prior.gain=1.0", "optim.lr=0.02",
        ],
        words_of={"SGHMC": ["inference.lr=0.001"]},  # at a rate of 0.01 it diverges
    ),
}  # fmt: skip


@dataclass
class Settings:
    """Which models and methods, and how much work each may do."""

    models: list[str] = field(default_factory=lambda: list(MODELS))
    methods: list[str] = field(default_factory=lambda: list(methods.METHODS))
    steps: int = 2000
    chains: int = 4
    draws: int = 500
    quick: bool = False


STUDY = Study(
    "experiments.scoreboard part=agreement",
    "scoreboard/agreement",
    Settings,
    sets=("data", "model", "prior", "likelihood", "epochs", "chains", "draws"),
    instead="say models=[...], methods=[...] or steps=N",
    parts=("models", "methods"),
    named=("steps", "chains", "draws"),
    small=("inference.warmup=5", "inference.draws=10"),
    quick={"models": ["six_points"], "steps": 300, "chains": 2, "draws": 10},
    choices={"models": MODELS, "methods": methods.METHODS},
    counts=("steps", "chains", "draws"),
)


def config_of(name: str, method: str, chosen: Settings, out: Outputs, words: Sequence[str]) -> DictConfig:
    """The configuration of a method on one of the models."""
    model = MODELS[name]
    steps = chosen.steps
    shared = [*model.words, *NOISE, f"epochs={steps}", f"record_every={steps}", "validation_draws=0"]
    own = [*EXACT, f"chains={chosen.chains}"] if method == YARDSTICK else model.words_of.get(method, ())
    if method != YARDSTICK:
        words = [word for word in words if not word.startswith("inference.")]
    return methods.configured(
        method,
        [*shared, *own, f"draws={chosen.draws}", *words],
        folder=out.fits / name / method,
        last="2",  # of one hidden layer and its activation
    )


def functions(model: Model, method: str, config: DictConfig) -> Result:
    """Fit a method once and keep its functions, `(chains, draws, G)`, in `functions.npz`."""
    path = Path(config.folder) / "functions.npz"

    def made() -> Result:
        run, data, posterior, seconds = timed(config, around=methods.METHODS[method].around)
        x = model.x
        if x is None:
            assert data.test is not None
            x = data.test.x
        draws = max(1, run.draws // len(posterior.chains))
        if isinstance(run.inference, NUTS):  # all that it kept
            draws = run.inference.draws
        f = function_draws(posterior, x.to(data.train.x.device), draws=draws, seed=run.seed)[..., 0]
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, f=f.astype(np.float32))
        return {"seconds": seconds, "chains": len(f)}

    result = once(config, made)
    if reason(result):
        return result
    with reading(path), np.load(path) as found:
        return {**result, "f": found["f"].astype(np.float64)}


def compared(model: Model, own: np.ndarray, exact: np.ndarray) -> Result:
    """Spread and distance of functions `(S, G)` from the yardstick's."""
    spread, true = own.std(0), exact.std(0)
    ratio = np.maximum(spread, 1e-12) / true
    found: Result = {
        "sd_ratio": float(np.exp(np.log(ratio).mean())),
        "total_variation": float(total_variation(own, exact).mean()),
    }
    if model.x is not None:
        where = [int((model.x[:, 0] - at).abs().argmin()) for at in model.at]
        found["sd_at"] = {f"{at:g}": float(spread[i]) for at, i in zip(model.at, where, strict=True)}
        found["near"] = all(1 / FACTOR <= ratio[i] <= FACTOR for i in where)
        low, median, high = np.quantile(own, [0.025, 0.5, 0.975], axis=0).round(4).tolist()
        found["band"] = {"x": model.x[:, 0].tolist(), "low": low, "median": median, "high": high}
    return found


def yardstick(model: Model, f: np.ndarray) -> Result:
    """What the chains `(chains, draws, G)` of the yardstick say of themselves."""
    first, second = (pooled(half) for half in np.array_split(f, 2))
    found = {**compared(model, pooled(f), pooled(f)), "r_hat": float(r_hat(f[..., None]).max())}
    found["total_variation"] = float(total_variation(first, second).mean())
    if model.even:
        found["asymmetry"] = float(symmetric_difference(pooled(f)).mean())
    return found


def pooled(f: np.ndarray) -> np.ndarray:
    """All chains' draws, `(chains * draws, G)`."""
    return f.reshape(-1, f.shape[-1])


def run(arguments: Sequence[str]) -> tuple[Outputs, Result]:
    """Fit what is missing; the record so far is kept after each method."""
    chosen, words, out = STUDY.begin(arguments)
    if YARDSTICK not in chosen.methods:
        raise ConfigError(f"methods: {YARDSTICK} is the yardstick, and must be among them")
    rows: list[Row] = []
    budget = {"steps of a fit": chosen.steps, "draws": chosen.draws}
    record: Result = {"part": "agreement", "budget": budget, "rows": rows}
    for name in chosen.models:
        model = MODELS[name]
        for method in sorted(chosen.methods, key=lambda method: method != YARDSTICK):
            config = config_of(name, method, chosen, out, words)
            found = functions(model, method, config)
            if config.epochs > chosen.steps:
                budget[f"steps of {method} on {name.replace('_', ' ')}"] = config.epochs
            f = found.pop("f", None)
            if method == YARDSTICK:
                if f is None:
                    raise ConfigError(f"{YARDSTICK} on {name} is the yardstick, and failed: {reason(found)}")
                exact = f
                found |= yardstick(model, exact)
                if model.x is not None:
                    train = load(config.data).train
                    found["data"] = {"x": train.x.tolist(), "y": train.y.tolist()}
            elif f is not None:
                found |= compared(model, pooled(f), pooled(exact))
            rows.append({"model": name, "method": method, **found})
            print(f"{name}, {method}: {said(rows[-1], 'sd_ratio')}", flush=True)
            out.record(record)
    return out, record


def report(record: Result) -> str:
    """A table for each model, the yardstick first."""
    parts = [spent(record["budget"])]
    for name in dict.fromkeys(row["model"] for row in record["rows"]):
        rows = rows_of(record["rows"], model=name)
        at = list(next((row["sd_at"] for row in rows if "sd_at" in row), {}))
        lines = []
        for row in rows:
            if reason(row):
                lines.append([row["method"], *["-"] * (len(at) + 4)])
                continue
            near = "" if not at else "yes" if row["near"] else "no"
            spreads = [f"{row['sd_at'][x]:.3g}" for x in at]
            lines.append(
                [row["method"], *spreads, near, f"{row['sd_ratio']:.2f}", f"{row['total_variation']:.2f}",
                 "-" if row["seconds"] is None else f"{row['seconds']:.0f}"]
            )  # fmt: skip
        head = ["method", *(f"sd at {x}" for x in at), f"within {FACTOR:g}", "sd ratio", "total variation"]
        parts += [name, table([*head, "seconds"], lines), yardstick_words(rows)]
        parts += notes(rows)
    return "\n\n".join(parts)


def yardstick_words(rows: Sequence[Row]) -> str:
    """How far the yardstick can be trusted."""
    row = rows_of(rows, method=YARDSTICK)[0]
    said = f"{YARDSTICK}: {row['chains']} chains, R-hat at most {row['r_hat']:.2f}"
    said += ", below 1.05" if row["r_hat"] < 1.05 else ", not below 1.05: it has not mixed"
    said += f"; total variation between its halves {row['total_variation']:.2f}"
    if "asymmetry" in row:
        said += f", between f(x) and f(-x) {row['asymmetry']:.2f}"
    return said
