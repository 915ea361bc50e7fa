"""`fit_table` with its defaults, beside scikit-learn's models with theirs.

`python -m experiments.studies.own_tables [key=value ...]`: scikit-learn's diabetes, breast cancer, wine and
digits, three quarters of the rows for training, by `train_test_split(random_state=0, 1, 2)`. Beside it
BayesianRidge, a Gaussian process (one length scale for each input, noise learned), logistic regression and a
multilayer perceptron (for values: with the normal noise of its five-fold residuals), all on inputs that are
standardised by the training rows. Needs scikit-learn, pip install ".[sklearn]" in your clone.

With uci/ before their names, the eight UCI regressions of `pyrobbb.data.UCI` on their standard splits, beside
the Gaussian process (above 3000 rows: length scales from 500 of them, conditioned on 3000) and published
log-likelihoods (`experiments.scoreboard.published` has their sources).

tables=[diabetes,breast_cancer,wine,digits]     which; uci/concrete, uci/energy, ...
splits=[0,1,2]                                  which random states, or which of the standard splits
noise=[]                                        of values: once more with the best of these noises, such as
                                                [learned,heteroscedastic]
draws=1000                                      weight draws of the predictive
seed=1                                          of the fits
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm

from experiments._runner.build import ConfigError
from experiments._runner.command import command
from experiments._runner.folder import read_json
from experiments._runner.study import Study
from experiments._runner.tables import Writer, mean_sd, of_seeds, table
from experiments.scoreboard.published import STANDARD
from pyrobbb._support import checks
from pyrobbb._support.files import make_folder, write_json
from pyrobbb.data import UCI, from_table
from pyrobbb.data.tables import TableData
from pyrobbb.predictive import ClassPrediction
from pyrobbb.tabular import NOISES, fit_table

OURS = "fit_table"
ROWS_TUNED, ROWS_KEPT = 500, 3000  # of a large table, for a Gaussian process: time grows with the cube
TABLES = {
    "diabetes": "load_diabetes",
    "breast_cancer": "load_breast_cancer",
    "wine": "load_wine",
    "digits": "load_digits",
}
Methods = dict[str, Callable[[TableData], "Score"]]
PUBLISHED = {f"uci/{name}": found for name, found in STANDARD.items()}


@dataclass(frozen=True)
class Settings:
    """Which tables and splits, and how many draws."""

    tables: list[str] = field(default_factory=lambda: list(TABLES))
    splits: list[int] = field(default_factory=lambda: [0, 1, 2])
    noise: list[str] = field(default_factory=list, metadata={"empty": True})
    draws: int = 1000
    seed: int = 1

    def __post_init__(self) -> None:
        checks.each_of("tables", self.tables, (*TABLES, *PUBLISHED))
        for split in self.splits:
            checks.count("splits", split, minimum=0)
        checks.each_of("noise", self.noise, NOISES)
        checks.count("draws", self.draws)
        checks.seed("seed", self.seed)


STUDY = Study(
    "experiments.studies.own_tables",
    "own_tables",
    Settings,
    parts=("tables", "splits"),
    named=("noise", "draws", "seed"),
)


@dataclass(frozen=True)
class Score:
    """Mean log-likelihood of the test rows, in nats, and the share of them in the central 95 % interval."""

    log_likelihood: float
    coverage: float | None = None


def load(name: str, split: int) -> TableData:
    """One of scikit-learn's tables, with the test rows of its `train_test_split`; or one of UCI's."""
    if name in PUBLISHED:
        return UCI(name=name.removeprefix("uci/"), split=split).load()
    found = sklearn("datasets", TABLES[name])()
    _, test = sklearn("model_selection", "train_test_split")(np.arange(len(found.data)), random_state=split)
    task = "regression" if name == "diabetes" else "classification"
    return from_table(found.data, found.target, task=task, test=test)


def sklearn(module: str, name: str) -> Any:
    """What scikit-learn calls `name`."""
    try:
        return getattr(import_module(f"sklearn.{module}"), name)
    except ImportError as error:
        raise ConfigError('this needs scikit-learn: pip install ".[sklearn]" in your clone') from error


def ours(data: TableData, folder: Path, chosen: Settings, noise: Sequence[str] | None = None) -> Score:
    """`fit_table` with no option but its seed and, if given, the noises that it chooses among."""
    posterior = fit_table(data, noise=noise, seed=chosen.seed, folder=folder)
    assert data.test is not None
    x, y = data.test.x, data.test.y
    prediction = posterior.predict(x, y, draws=chosen.draws, sample=True)
    score = float(prediction.log_predictive.double().mean())
    if isinstance(prediction, ClassPrediction):
        return Score(score)
    assert prediction.samples is not None
    low, high = prediction.samples.quantile(torch.tensor([0.025, 0.975]), dim=0)
    return Score(score, float(((low <= y) & (y <= high)).double().mean()))


def values(model: Any, data: TableData, rows: Any = slice(None)) -> Score:
    """A regression of scikit-learn's that gives a mean and a standard deviation, or a mean alone.

    It is fitted to these `rows`.
    """
    x, y, test_x, test_y = _arrays(data)
    y, test_y = y[:, 0], test_y[:, 0]
    model.fit(x[rows], y[rows])
    try:
        mean, sd = model.predict(test_x, return_std=True)
    except TypeError:
        mean = model.predict(test_x)
        sd = np.std(y - sklearn("model_selection", "cross_val_predict")(model, x, y, cv=5))
    inside = abs(test_y - mean) <= norm.ppf(0.975) * sd
    return Score(float(norm.logpdf(test_y, mean, sd).mean()), float(inside.mean()))


def labels(model: Any, data: TableData) -> Score:
    """A classifier of scikit-learn's."""
    x, y, test_x, test_y = _arrays(data)
    probs = model.fit(x, y).predict_proba(test_x)[np.arange(len(test_y)), test_y]
    return Score(float(np.log(probs).mean()))


def gaussian_process(data: TableData) -> Score:
    """One length scale for each input; of a large table tuned on some rows, and conditioned on more."""
    constant, rbf, white = (
        sklearn("gaussian_process.kernels", name) for name in ("ConstantKernel", "RBF", "WhiteKernel")
    )
    kernel = constant() * rbf(np.ones(data.spec.features[0])) + white()
    regressor = partial(sklearn("gaussian_process", "GaussianProcessRegressor"), normalize_y=True)
    if data.spec.N <= ROWS_KEPT:
        return values(regressor(kernel, random_state=0), data)
    x, y, *_ = _arrays(data)
    some = np.random.default_rng(0).permutation(data.spec.N)
    few = some[:ROWS_TUNED]
    tuned = regressor(kernel, random_state=0).fit(x[few], y[few, 0])
    return values(regressor(tuned.kernel_, optimizer=None), data, some[:ROWS_KEPT])


def others(name: str, task: str) -> Methods:
    """What `fit_table` is compared with."""
    size = {"hidden_layer_sizes": (50,), "random_state": 0}
    if task == "classification":
        logistic = sklearn("linear_model", "LogisticRegression")(max_iter=5000)
        network = sklearn("neural_network", "MLPClassifier")(max_iter=2000, **size)
        return {"logistic regression": partial(labels, logistic), "MLP": partial(labels, network)}
    process: Methods = {"Gaussian process": gaussian_process}
    if name != "diabetes":
        return process
    ridge = sklearn("linear_model", "BayesianRidge")()
    network = sklearn("neural_network", "MLPRegressor")(max_iter=5000, **size)
    return {"BayesianRidge": partial(values, ridge), "MLP": partial(values, network), **process}


def _arrays(data: TableData) -> tuple[np.ndarray, ...]:
    assert data.test is not None
    parts = (data.train.x, data.train.y, data.test.x, data.test.y)
    return tuple(part.double().numpy() if part.is_floating_point() else part.numpy() for part in parts)


def measure(name: str, folder: Path, chosen: Settings) -> dict[str, list[Any]]:
    """The scores of each method on each split of one table, as they are kept."""
    found: dict[str, list[Any]] = {}
    for split in chosen.splits:
        data, place = load(name, split), folder / f"{name}-{split}".replace("/", "-")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an optimiser of theirs at a bound
            own: Methods = {OURS: partial(ours, folder=place, chosen=chosen)}
            if chosen.noise and data.spec.task == "regression":
                own[f"{OURS}, {' or '.join(chosen.noise)}"] = partial(
                    ours, folder=place / "noises", chosen=chosen, noise=chosen.noise
                )
            for method, score in {**own, **others(name, data.spec.task)}.items():
                kept = place / f"{method}.json".replace(" ", "-")
                if method in own or not kept.exists():
                    make_folder(place)
                    write_json(kept, asdict(score(data)), indent=None)
                found.setdefault(method, []).append(read_json(kept))
    return found


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """A table for each table of data: methods by mean log-likelihood, the best first."""
    parts = [_methods(name, record[name], write) for name in record["tables"]]
    return "\n\n".join([*parts, of_seeds(record["splits"]).replace("seed", "split")])


def _methods(name: str, found: Mapping[str, Sequence[Mapping[str, Any]]], write: Writer) -> str:
    means = {method: [s["log_likelihood"] for s in scores] for method, scores in found.items()}
    rows = []
    for method in sorted(means, key=lambda method: -np.mean(means[method])):
        covered = [s["coverage"] for s in found[method] if s["coverage"] is not None]
        rows.append([method, mean_sd(means[method], 4), mean_sd(covered, 3)])
    rows += [[method, f"{score:.2f} (published)", "-"] for method, score in PUBLISHED.get(name, {}).items()]
    return write([name, "log-likelihood per test row", "in 95 % interval"], rows)


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep `record.json` with the machine and the time in the folder."""
    chosen, unknown, out = STUDY.begin(arguments)
    if unknown:
        raise ConfigError(f"{unknown[0]}: there is no such key; see --help")
    record: dict[str, Any] = asdict(chosen)
    for name in chosen.tables:
        record[name] = measure(name, out.fits, chosen)
        print(_methods(name, record[name], table), flush=True)
    out.record(record)


if __name__ == "__main__":
    command(main, __doc__)
