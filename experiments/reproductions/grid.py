"""Hyperparameter grids of both reports, and their winners.

`python -m experiments.reproductions.grid [preset=reduced] [key=value ...]`

Prior (pi, sigma1, sigma2), learning rate and samples per step, each point a network trained from its start
with the prior that it claims: `pi_used`, `sigma1_used` and `sigma2_used` are read from the trained model,
and a point that differs is an error. Writes `record.json`, the best points and heat maps. Points
that are finished are not run again. Validation accuracy decides; the test set is not looked at.

preset=reduced    27 priors at 2x400 (lr 1e-3, 1 sample), and 3 rates x 5 sample counts under one prior
preset=ghia       its 324 points at 2x1200, 10 epochs each, from its starting means and rho (a GPU, or days)
preset=rahmanto   its 27 points at 2x800, 5 samples, 300 epochs, rate x 0.95 per epoch; our start each time,
                  and two hidden layers, where its code has one and continues from point to point
quick=true        2 x 2 points on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=10 model.hidden=[800,800] seed=2.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from pyro import poutine

from experiments._runner.build import ConfigError
from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, changed, fit_points
from experiments._runner.study import Study
from experiments.reproductions.grid_points import PRESETS, Point, points
from experiments.reproductions.grid_report import figures, report


@dataclass
class Settings:
    """The grid."""

    preset: str = "reduced"
    top: int = 5
    quick: bool = False


STUDY = Study(
    "experiments.reproductions.grid",
    "grid/{preset}",
    Settings,
    sets=("prior", "optim.lr", "samples"),
    instead="its points are prior, rate and samples; see preset=",
    choices={"preset": PRESETS},
    counts=("top",),
)


def measure(fitted: Fitted) -> Result:
    """Validation accuracy of the averaged draws, and the prior that the trained model has."""
    part = fitted.data.validation
    if part is None:
        raise ConfigError("the grid needs validation data; set data.validation")
    prediction = fitted.posterior.predict(part.x, draws=fitted.run.draws, seed=fitted.run.seed)
    metrics = prediction.metrics(part.y)
    return {
        "accuracy": 100 - metrics["error"],
        "rows": len(part),
        "nll": metrics["nll"],
        "free_energy": fitted.history[-1].free_energy,
        **used_prior(fitted),
    }


def used_prior(fitted: Fitted) -> dict[str, float]:
    """pi, sigma1 and sigma2 at every weight site of the trained model's own trace."""
    model, first = fitted.posterior.model, fitted.data.train.head(1)
    trace = poutine.trace(model).get_trace(first.x, first.y)
    found = set()
    for site in model.sites:
        distribution = trace.nodes[site]["fn"].base_dist
        found.add(tuple(float(getattr(distribution, name).unique()) for name in ("pi", "sigma1", "sigma2")))
    claimed = tuple(getattr(fitted.run.prior, name) for name in ("pi", "sigma1", "sigma2"))
    if len(found) != 1 or not np.allclose(next(iter(found)), claimed, rtol=1e-6):
        raise ConfigError(f"the network was trained under the prior {found}, its point claims {claimed}")
    return dict(zip(("pi_used", "sigma1_used", "sigma2_used"), next(iter(found)), strict=True))


def main(arguments: Sequence[str]) -> dict[Point, Result]:
    """Fit the grid, or what is missing of it, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    every, of_preset = points(chosen.preset, chosen.quick)
    base = compose("grid", [*of_preset, *overrides], folder=out.fits)
    configs = {str(p): changed(base, out.fits / str(p), p.values()) for p in every}
    found = fit_points(configs, measure, lambda r: f"validation accuracy {r['accuracy']:.2f} %")
    results = {point: found[str(point)] for point in every}
    record = {"seeds": [base.seed], "rows": [{**asdict(p), **result} for p, result in results.items()]}
    out.record(record)
    for name, drawn in figures(results):
        out.figure(name, drawn)
    out.end(report(record, top=chosen.top))
    return results


if __name__ == "__main__":
    command(main, __doc__)
