"""Is the posterior right? Restarts against each other, priors against each other, and NUTS against the guide.

`python -m experiments.studies.posterior_checks [key=value ...]` in three parts, each left in the folder and
found again: four restarts of the paper's regression under two priors (R-hat of weights and of functions,
PSIS-LOO by `az.compare`); and the tutorial's six points by NUTS and by the mean-field guide.

nuts_chains=4 nuts_warmup=150 nuts_draws=150 nuts_depth=6    how much work NUTS does
nuts_seed=0                                                  its own seed
Other arguments are for the restarts, as in `experiments.run`: data.N=100 chains=2 epochs=50. Of these the
mean field of the six points takes the number of chains, their draws and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments._runner.command import command
from experiments._runner.compose import compose, fitted
from experiments._runner.study import Study
from experiments.paper.figures import band_grid
from pyrobbb._support import checks
from pyrobbb.data import ToyPoints
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.diagnostics import compare, function_draws, r_hat
from pyrobbb.experiment import Result, Run
from pyrobbb.inference import NUTS
from pyrobbb.training.trainer import fit

PRIORS = {"mixture": "prior=scale_mixture", "Gaussian": "prior=normal"}
INSIDE, OUTSIDE = torch.linspace(0.0, 0.5, 11)[:, None], torch.tensor([[-0.3], [0.8], [1.2]])
AT = (0.0, 1.5, 5.0, 100.0)
REACH = torch.linspace(-5.25, 5.25, 211)[:, None]


@dataclass(frozen=True)
class Settings:
    """How much work NUTS does, and its seed."""

    nuts_chains: int = 4
    nuts_warmup: int = 150
    nuts_draws: int = 150
    nuts_depth: int = 6
    nuts_seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            checks.count(name, value, minimum=0 if name == "nuts_seed" else 1)


COMPARED = " with ".join(PRIORS.values())
STUDY = Study(
    "experiments.studies.posterior_checks",
    "posterior_checks",
    Settings,
    sets=("prior",),
    instead=f"it compares {COMPARED}",
)


def restarts(folder: Path, overrides: Sequence[str]) -> dict[str, Result]:
    """The paper's regression, fitted from several seeds under each prior, with `posterior.nc`."""
    return {
        name: fitted(compose("posterior_checks", [*overrides, prior], folder=folder / name))
        for name, prior in PRIORS.items()
    }


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


def toy_mean_field(folder: Path, run: Run) -> Result:
    """As many mean-field restarts of the six points."""
    changes = [f"chains={run.chains}", "together=true", f"draws={run.draws}", f"seed={run.seed}"]
    return fitted(compose("toy_regression", changes, folder=folder / "toy"))


def toy_nuts(result: Result, folder: Path, chosen: Settings, x: Tensor) -> np.ndarray:
    """NUTS function draws `(chains, draws, G)` at `x` on the same model, kept in `nuts/` of the folder."""
    method = NUTS(warmup=chosen.nuts_warmup, draws=chosen.nuts_draws, max_tree_depth=chosen.nuts_depth)
    posterior = fit(
        lambda: deepcopy(result.posterior.model), None, result.data.to("cpu"), inference=method, epochs=1,
        chains=chosen.nuts_chains, seed=chosen.nuts_seed, device="cpu", folder=folder / "nuts",
    )  # fmt: skip
    return function_draws(posterior, x, draws=chosen.nuts_draws)[..., 0]


def toy_comparison(result: Result, folder: Path, chosen: Settings) -> tuple[dict[str, Any], Figure]:
    """Spread of the function under NUTS and under the guide, as numbers and as a figure."""
    points = torch.tensor(AT)[:, None]
    x = torch.cat([points, REACH])
    exact = toy_nuts(result, folder, chosen, x)
    guide = function_draws(result.posterior, x, draws=result.run.draws)[..., 0]
    k = len(AT)
    drawn = band_grid(
        {
            "mean field, one restart": [(REACH[:, 0].numpy(), guide[0, :, k:])],
            f"mean field, {len(guide)} restarts": [(REACH[:, 0].numpy(), _pooled(guide)[:, k:])],
            f"NUTS, {len(exact)} chains": [(REACH[:, 0].numpy(), _pooled(exact)[:, k:])],
        },
        result.data.train.x[:, 0].cpu().numpy(),
        result.data.train.y[:, 0].cpu().numpy(),
        truth=[ToyPoints().truth(REACH[:, 0]).numpy()],
        y_limits=[(-40.0, 25.0)],
        title="Six points, the same model: the mean-field posterior is far too sure of the function",
    )
    numbers = {
        "x": AT,
        "sd, one mean-field restart": guide[0].std(0)[:k].tolist(),
        "sd, mean-field restarts pooled": _pooled(guide).std(0)[:k].tolist(),
        "sd, NUTS": _pooled(exact).std(0)[:k].tolist(),
        "mean, mean-field": _pooled(guide).mean(0)[:k].tolist(),
        "mean, NUTS": _pooled(exact).mean(0)[:k].tolist(),
        "R-hat, mean-field restarts": r_hat(guide[..., :k, None])[:, 0].tolist(),
        "R-hat, NUTS chains": r_hat(exact[..., :k, None])[:, 0].tolist(),
    }
    return numbers, drawn


def _pooled(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1])


def main(arguments: Sequence[str]) -> None:
    """All three checks, printed and kept in `record.json`."""
    chosen, overrides, out = STUDY.begin(arguments)
    folder = out.fits
    results = restarts(folder, overrides)
    run = results["mixture"].run
    found: dict[str, Any] = {"settings": asdict(chosen)}
    points = len(results["mixture"].data.train)
    lines = [f"{points} points of the paper's curve, {run.chains} restarts under each prior"]
    lines.append("rank-normalised R-hat between restarts (1 is agreement)")
    for name, result in results.items():
        found[name] = agreement(result, folder / name)
        lines += [f"  {name:9} prior   {what:32} {value:.3f}" for what, value in found[name].items()]
    table = compare({name: arviz_io.load(folder / name / "posterior.nc") for name in results})
    found["compare"] = {name: row.to_dict() for name, row in table.iterrows()}
    lines.append(
        "PSIS-LOO of mean-field draws (az.compare; elpd in nats over all points): no leave-one-out of the "
        "posterior, even where k is good"
    )
    lines.append("  " + table.round(2).to_string().replace("\n", "\n  "))
    toy, drawn = toy_comparison(toy_mean_field(folder, run), folder, chosen)
    found["toy"] = toy
    lines.append("six points, sd of f(x) under the posterior")
    lines.append(" " * 34 + "".join(f"{f'x = {x:g}':>10}" for x in AT))
    for key in [k for k in toy if k != "x"]:
        lines.append(f"  {key:32}" + "".join(f"{value:10.2f}" for value in toy[key]))
    out.record({"seed": run.seed, **found})
    out.figure("nuts.png", drawn)
    out.end("\n".join(lines), "; the fits are in its folders")


if __name__ == "__main__":
    command(main, __doc__)
