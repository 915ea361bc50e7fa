"""Ghia's NaNs: a mixture's density as the log of a sum, and the shares of the KL from powers of 2 in float32.

`python -m experiments.reproductions.underflow [key=value ...]` trains the network of `training_choices`
(2x400) from Ghia's start for 40 steps of 128 images with the shares 2^(M-i) / (2^M - 1), under nine mixtures:
sigma1 from e^0 to e^-2, sigma2 from e^-6 to e^-8. It says at which step the free energy is first infinite or
NaN, for each entry of `WAYS`, and how many of the shares are NaN or 0 if both powers are formed in float32.
Writes `record.json`. Trainings that are finished are not run again.

Arguments are for every run, as in `experiments.run`: model.hidden=[200,200] seed=2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_points
from experiments._runner.study import NoSettings, Study
from experiments._runner.tables import Writer, table
from experiments.reproductions.controls import shares_of_powers
from experiments.reproductions.grid_points import GHIAS_START

START = ["kl=geometric", "epochs=1", *GHIAS_START]
UNDERFLOWS = "prior._target_=experiments.reproductions.controls.LogOfSum"
WAYS = {
    "log-sum-exp, SGD": ["optim=sgd", "optim.lr=1e-3"],
    "log of a sum, SGD": [UNDERFLOWS, "optim=sgd", "optim.lr=1e-3"],
}
MIXTURES = [(sigma1, sigma2) for sigma1 in (0, -1, -2) for sigma2 in (-6, -7, -8)]  # their logarithms
DATA = ["data.limit=5120"]  # 40 minibatches; later shares are below 2^-40
MINIBATCHES = (391, 469)  # of 128 images, in 50,000 and in all 60,000
STUDY = Study(
    "experiments.reproductions.underflow",
    "underflow",
    NoSettings,
    sets=("kl", "optim", "prior", "guide", "epochs"),
    instead="its trainings are made of these; python -m experiments.run takes any",
)


def words(result: Result) -> str:
    """How a training ended."""
    return f"not finite at step {result['stopped_step']}" if "stopped" in result else "finite"


def measure(fitted: Fitted) -> Result:
    """Nothing but where it stopped, which every point keeps."""
    return {}


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """A row for each mixture and a column for each way; below it the shares in float32."""
    mixtures: dict[tuple[int, int], dict[str, str]] = {}
    for row in record["rows"]:
        mixtures.setdefault((row["log_sigma1"], row["log_sigma2"]), {})[row["way"]] = words(row)
    rows = [[f"e^{a}", f"e^{b}", *cells.values()] for (a, b), cells in mixtures.items()]
    head = ["sigma1", "sigma2", *next(iter(mixtures.values()))]
    counts = "; ".join(
        f"M = {found['M']}: {found['nan']} shares are NaN, {found['zero']} are 0"
        for found in record["shares"]
    )
    return f"{write(head, rows)}\n\n2^(M-i) / (2^M - 1) with both powers in float32, {counts}."


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Train what is missing, and report."""
    _, overrides, out = STUDY.begin(arguments)
    points, keys = {}, {}
    for a, b in MIXTURES:
        for way, changes in WAYS.items():
            name = f"{way}, sigma1 = e^{a}, sigma2 = e^{b}"
            folder = out.fits / name.replace(" ", "_").replace(",", "").replace("^", "")
            own = [*START, *changes, f"prior.sigma1=${{exp:{a}}}", f"prior.sigma2=${{exp:{b}}}"]
            points[name] = compose("training_choices", [*DATA, *overrides, *own], folder=folder)
            keys[name] = {"log_sigma1": a, "log_sigma2": b, "way": way}
    found = fit_points(points, measure, words)
    shares = [shares_of_powers(M) for M in MINIBATCHES]
    record = {
        "seeds": [next(iter(points.values())).seed],
        "rows": [keys[name] | result for name, result in found.items()],
        "shares": [
            {"M": len(each), "nan": int(each.isnan().sum()), "zero": int((each == 0).sum())}
            for each in shares
        ],
    }
    out.record(record)
    out.end(report(record))
    return record


if __name__ == "__main__":
    command(main, __doc__)
