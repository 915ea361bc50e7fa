"""Part `regressions` of the scoreboard: UCI tables on their standard and gap splits.

Inputs and targets are standardised by the training rows, scores are in the table's own units, the scale of
the noise is learned. Each method tries as many settings on validation rows, which are taken from the
training rows, and is then fitted to all training rows. With `network=chosen` the layers are among what is
tried, and whether the noise depends on the inputs. But for the usual network of one layer, a mixture is
chosen as a whole: what is best of five is not what is best alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, inf
from time import perf_counter

from omegaconf import DictConfig

from experiments._runner.build import ConfigError
from experiments._runner.fit_points import Result, once
from experiments._runner.study import Outputs, Study
from experiments._runner.tables import table
from experiments.scoreboard import methods, published
from experiments.scoreboard.compare import REFERENCE, Row, cell, distinct, lines_of, notes, rows_of, spent
from experiments.scoreboard.points import fitted, said, scored
from pyrobbb.data.dataset import Split
from pyrobbb.data.uci import KNOWN
from pyrobbb.evaluation.crps import crps
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction

BATCH = 256
HELD = 0.1
NOISES = {
    "one for all rows": ["likelihood=normal", "likelihood.scale=1.0", "likelihood.learn_scale=true"],
    "of the inputs": ["likelihood=heteroscedastic_normal"],
    "heavy tails": ["likelihood=student_t", "likelihood.scale=1.0", "likelihood.learn_scale=true"],
    "mixture": ["likelihood=normal_mixture", "likelihood.components=5"],
}
ONE_NOISE = ("one for all rows",)
NETWORKS = {  # the layers among which a method chooses, and the noises if none are named
    "one_layer": (([50],), ONE_NOISE),
    "two_layers": (([50, 50],), ONE_NOISE),
    "chosen": (([50], [50, 50], [100, 100]), (*ONE_NOISE, "of the inputs")),
    "deep": (([200, 200, 200],), ONE_NOISE),
}
WORDS = [
    "prior=fan_in_normal", "prior.gain=1.0", "optim.lr=0.02", f"batch_size={BATCH}", "validation_draws=0",
]  # fmt: skip
KINDS = {"standard": "splits", "gap": "gaps"}
DIGITS = {"log_likelihood": 2, "rmse": 3, "coverage_50": 2, "coverage_95": 2, "crps": 3, "seconds": 0}
SMALL = 300  # rows for NUTS, every gradient of which passes over all of them
SINE = 60  # rows of the synthetic table


@dataclass
class Settings:
    """Which tables, splits and methods, and how much work each may do."""

    tables: list[str] = field(default_factory=lambda: ["yacht", "energy", "concrete"])
    splits: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4], metadata={"empty": True})
    gaps: list[int] = field(default_factory=lambda: [0, 1, 2, 3], metadata={"empty": True})
    methods: list[str] = field(default_factory=lambda: list(methods.METHODS))
    network: str = "one_layer"
    noises: list[str] = field(default_factory=list, metadata={"empty": True})
    steps: int = 1000
    trials: int = 3
    draws: int = 100
    quick: bool = False

    def __post_init__(self) -> None:
        if not self.splits and not self.gaps:
            raise ValueError("splits and gaps are both empty: name at least one of either")


STUDY = Study(
    "experiments.scoreboard part=regressions",
    "scoreboard/regressions",
    Settings,
    sets=("data", "model", "prior", "likelihood", "inference", "epochs", "chains", "draws"),
    instead="say tables=[...], methods=[...] or steps=N",
    parts=("tables", "splits", "gaps", "methods"),
    named=("network", "noises", "steps", "trials", "draws"),
    small=(),
    fixed=("tables", "gaps"),
    quick={
        "splits": [0, 1],
        "steps": 40,
        "trials": 2,
        "draws": 5,
        "methods": [name for name in methods.METHODS if name != "NUTS"],
    },
    choices={"network": NETWORKS, "noises": NOISES, "tables": KNOWN, "methods": methods.METHODS},
    counts=("steps", "trials", "draws"),
)


@dataclass(frozen=True)
class Place:
    """One split of one table."""

    table: str
    kind: str
    split: int

    @property
    def rows(self) -> int:
        """How many are for training."""
        if self.table == "sine":
            return SINE
        return round((2 / 3 if self.kind == "gap" else 0.9) * KNOWN[self.table].rows)

    @property
    def words(self) -> list[str]:
        """Overrides that choose the data."""
        if self.table == "sine":
            return ["data=noisy_sine", f"data.N={SINE}", "+data.validation=0", f"data.seed={self.split}"]
        gap = str(self.kind == "gap").lower()
        chosen = [f"data.name={self.table}", f"data.split={self.split}", f"data.gap={gap}"]
        return ["data=uci", *chosen, "data.validation=0"]


def places(chosen: Settings) -> Iterator[Place]:
    """Every table's first split before any table's second."""
    if chosen.quick:
        yield from (Place("sine", "standard", split) for split in chosen.splits)
        return
    for kind, key in KINDS.items():
        for split in getattr(chosen, key):
            for name in chosen.tables:
                if 0 <= split < (KNOWN[name].columns - 1 if kind == "gap" else inf):
                    yield Place(name, kind, split)


@dataclass(frozen=True)
class Network:
    """The units of each hidden layer, and which noise (of `NOISES`) the targets have."""

    hidden: Sequence[int]
    noise: str

    @property
    def words(self) -> list[str]:
        """Overrides that choose it."""
        return [f"model.hidden={list(self.hidden)}", *NOISES[self.noise]]

    @property
    def last(self) -> str:
        """How the names of the last layer's parameters begin."""
        return f"{2 * len(self.hidden)}"


def noises(chosen: Settings) -> Sequence[str]:
    """Among which a method chooses."""
    return chosen.noises or NETWORKS[chosen.network][1]


def networks(place: Place, chosen: Settings) -> list[Network]:
    """What a method tries there."""
    wide = 2 if place.table == "protein" else 1
    layers = NETWORKS[chosen.network][0]
    return [Network([wide * n for n in hidden], noise) for noise in noises(chosen) for hidden in layers]


def config_of(
    place: Place, method: str, network: Network, chosen: Settings, out: Outputs, words: Sequence[str]
) -> DictConfig:
    """The configuration of a method on a split, to be fitted to all its training rows."""
    epochs = ceil(chosen.steps / ceil(place.rows / BATCH))
    size = [f"epochs={epochs}", f"record_every={epochs}", f"draws={chosen.draws}"]
    shared = [*place.words, *WORDS, *network.words, *size, *words]
    folder = out.fits / f"{place.table},{place.kind}={place.split}" / method
    return methods.configured(method, shared, folder=folder, last=network.last)


def measured(posterior: Posterior, test: Split, draws: int, seed: int) -> dict[str, float]:
    """The scores of the posterior predictive of test rows."""
    prediction = posterior.predict(test.x, test.y, draws=draws, seed=seed)
    assert isinstance(prediction, ValuePrediction)
    found = {"log_likelihood": float(prediction.log_predictive.double().mean())}
    found["rmse"] = prediction.metrics(test.y)["rmse"]
    for level in (50, 95):
        low, high = prediction.interval(level / 100)
        found[f"coverage_{level}"] = float(((low <= test.y) & (test.y <= high)).double().mean())
    return found | {"crps": float(crps(prediction, test.y).mean())}


def point(place: Place, method: str, chosen: Settings, out: Outputs, words: Sequence[str]) -> Result:
    """Choose on validation rows, fit to all training rows, measure on the test rows."""
    if method == "NUTS" and place.rows > SMALL:
        return {"refused": f"a gradient passes over all rows, {place.rows} of {place.table}"}
    several = networks(place, chosen)
    whole = chosen.network != "one_layer" or len(several) > 1
    configs = [config_of(place, method, network, chosen, out, words) for network in several]
    trials = methods.METHODS[method].trials[: chosen.trials]
    every = [(config, trial) for config in configs for trial in trials]
    settings = [{**asdict(network), **trial} for network in several for trial in trials]

    def made() -> Result:
        began = perf_counter()
        held = {"data.validation": 20 if place.table == "sine" else HELD}
        found = [scored(method, trial, config, held, whole=whole) for config, trial in every]
        choosing = perf_counter() - began
        _, best = max(found, key=lambda one: one[0])
        began = perf_counter()
        run, data, posterior = fitted(best, around=methods.METHODS[method].around)
        seconds = perf_counter() - began
        assert data.test is not None
        scores = measured(posterior, data.test, run.draws, run.seed)
        tried = [
            {**keys, "log_likelihood": score if score > -inf else None}
            for keys, (score, _) in zip(settings, found, strict=True)
        ]
        return {**scores, "seconds": seconds, "seconds_choosing": choosing, "trials": tried}

    result = once(configs[0], made, beside={"trials": settings})
    there = [
        {key: value for key, value in one.items() if key != "log_likelihood"}
        for one in result.get("trials", settings)
    ]
    if there != settings:
        raise ConfigError(
            f"folder: {configs[0].folder} holds a result of other settings ({there[-1]} was the last of "
            f"{len(there)} tried, here it is {settings[-1]} of {len(settings)}); "
            f"give these another folder=..."
        )
    return result


def run(arguments: Sequence[str]) -> tuple[Outputs, Result]:
    """Fit what is missing; the record so far is kept after each split of a table."""
    chosen, words, out = STUDY.begin(arguments)
    rows: list[Row] = []
    everywhere = list(places(chosen))
    if not everywhere:
        raise ConfigError("splits: there is no such split of these tables")
    budget = {
        "network": chosen.network,
        "noise": " or ".join(noises(chosen)),
        "steps of a fit": chosen.steps,
        "rows of a minibatch": BATCH,
        "settings tried": chosen.trials * len(networks(everywhere[0], chosen)),
        "rows held out to choose": f"{HELD:.0%} of the table",
        "draws": chosen.draws,
        "settings": {name: list(methods.METHODS[name].trials[: chosen.trials]) for name in chosen.methods},
    }
    record: Result = {"part": "regressions", "budget": budget, "rows": rows}
    for place in everywhere:
        for method in chosen.methods:
            result = point(place, method, chosen, out, words)
            rows.append({**asdict(place), "method": method, **result})
            print(
                f"{place.table}, {place.kind} {place.split}, {method}: {said(result, 'log_likelihood')}",
                flush=True,
            )
        out.record(record)
    return out, record


def report(record: Result) -> str:
    """The tables of a record: log-likelihoods beside published ones, every score, and differences."""
    rows = record["rows"]
    names = list(dict.fromkeys(row["table"] for row in rows))
    order = list(dict.fromkeys(row["method"] for row in rows))
    head = ["method", *(name.replace("_", " ") for name in DIGITS), f"log-likelihood above the {REFERENCE}'s"]
    parts = [f"Each method: {spent(record['budget'])}"]
    for kind in KINDS:
        mine = rows_of(rows, kind=kind)
        if not mine:
            continue
        counts = {name: len({row["split"] for row in rows_of(mine, table=name)}) for name in names}
        of = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        parts.append(f"Test log-likelihood per row, {kind} splits ({of}), mean ± standard error over them")
        lines = [
            [m, *(cell(rows_of(mine, method=m, table=n), "log_likelihood", 2) for n in names)] for m in order
        ]
        others = published.OF_SPLITS[kind]
        for other in published.SOURCES:
            theirs = [others.get(name, {}).get(other) for name in names]
            if any(theirs):
                lines.append([f"{other} (published)", *("" if v is None else f"{v:.2f}" for v in theirs)])
        parts.append(table(["method", *names], lines))
        if both := published.beside(mine, others):
            parts.append(table(published.HEAD, both))
        for name in names:
            every = rows_of(mine, table=name)
            if own := distinct(every):
                once = ", each test set once" * (len(own) < len(every))
                parts += [f"{name}, {kind} splits{once}", table(head, lines_of(own, order, DIGITS, "split"))]
    parts += ["No number:", *notes(rows)] if notes(rows) else []
    parts += ["Published:", *(f"- {name}: {source}" for name, source in published.SOURCES.items())]
    return "\n\n".join(parts)
