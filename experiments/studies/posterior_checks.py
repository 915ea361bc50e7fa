"""Is the posterior right? Restarts against each other, and priors against each other.

`python -m experiments.studies.posterior_checks [key=value ...]` fits the paper's regression from four seeds
under two priors, leaves each in the folder and finds it again: R-hat of weights and of functions, and
PSIS-LOO by `az.compare`. Arguments are as in `experiments.run`: data.N=100 chains=2 epochs=50.
Against NUTS: `python -m experiments.scoreboard part=agreement`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments._runner.command import command
from experiments._runner.compose import compose, fitted
from experiments._runner.study import NoSettings, Study
from experiments._runner.tables import table
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.diagnostics import function_draws, r_hat
from pyrobbb.evaluation.leave_one_out import compare
from pyrobbb.experiment import Result

PRIORS = {"mixture": "prior=scale_mixture", "Gaussian": "prior=normal"}
INSIDE, OUTSIDE = torch.linspace(0.0, 0.5, 11)[:, None], torch.tensor([[-0.3], [0.8], [1.2]])
STUDY = Study(
    "experiments.studies.posterior_checks",
    "posterior_checks",
    NoSettings,
    sets=("prior",),
    instead=f"it compares {' with '.join(PRIORS.values())}",
)


def agreement(result: Result, folder: Path) -> dict[str, float]:
    """R-hat between restarts: of single weights, and of the functions on and off the data."""
    table = arviz_io.summary(arviz_io.load(folder / "posterior.nc"), ["weight"])
    inside, outside = (
        r_hat(function_draws(result.posterior, x, draws=result.run.draws)) for x in (INSIDE, OUTSIDE)
    )
    return {
        f"{len(table)} of the weights, median": float(table["r_hat"].median()),
        f"{len(table)} of the weights, largest": float(table["r_hat"].max()),
        "functions on the data, median": float(np.median(inside)),
        "functions on the data, largest": float(inside.max()),
        "functions off the data, largest": float(outside.max()),
    }


def report(record: Mapping[str, Any]) -> str:
    """R-hat under each prior, and the comparison of both by PSIS-LOO."""
    lines = [
        f"{record['points']} points of the paper's curve, {record['restarts']} restarts under each prior",
        "rank-normalised R-hat between restarts (1 is agreement)",
    ]
    for name in PRIORS:
        lines += [f"  {name:9} prior   {what:32} {value:.3f}" for what, value in record[name].items()]
    lines.append(
        "PSIS-LOO of mean-field draws (az.compare; elpd in nats over all points): not leave-one-out of the "
        "exact posterior, even where k is low"
    )
    rows = [[name, *(_short(value) for value in row.values())] for name, row in record["compare"].items()]
    head = ["prior", *next(iter(record["compare"].values()))]
    lines.append("  " + table(head, rows).replace("\n", "\n  "))
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> None:
    """Both checks, printed and kept in `record.json`."""
    _, overrides, out = STUDY.begin(arguments)
    results = {
        name: fitted(compose("posterior_checks", [*overrides, prior], folder=out.fits / name))
        for name, prior in PRIORS.items()
    }
    run = results["mixture"].run
    compared = compare({name: arviz_io.load(out.fits / name / "posterior.nc") for name in results})
    record = {
        "seeds": [run.seed],
        "points": len(results["mixture"].data.train),
        "restarts": run.chains,
        "train_seconds": sum(result.metrics["train_seconds"] for result in results.values()),
        **{name: agreement(result, out.fits / name) for name, result in results.items()},
        "compare": {name: row.to_dict() for name, row in compared.iterrows()},
    }
    out.record(record)
    out.end(report(record), "; the fits are in its folders")


if __name__ == "__main__":
    command(main, __doc__)
