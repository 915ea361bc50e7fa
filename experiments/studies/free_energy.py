"""Free energy against error: `python -m experiments.studies.free_energy [seeds=[1,2,3]] [key=value ...]`.

Is a lower free energy a better network? Two paths from one base recipe: rho's learning rate multiplied by
0.1 to 10, so that sigma converges more slowly or faster, and the KL multiplied by a temperature of 0.01
to 3. For each point and seed: the free energy that the paper's objective has there (temperature 1, whatever
was trained; mean over the last epoch, nats per training datum), test error, NLL and calibration of averaged
draws, and how many weights the posterior still uses. Writes `points.csv` and one figure. The test set is
reported, not chosen by. Points that are finished are not run again.

rates=[0.1,1,3,10] temperatures=[0.01,0.1,0.3,1,3] seeds=[1,2,3]    which settings
quick=true       two settings of each on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=20 data.limit=5000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments._runner.build import ConfigError
from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, changed, fit_points
from experiments._runner.study import Study
from experiments._runner.tables import mean_sd, of_seeds, table
from pyrobbb.figures.style import CHAINS, caption, label, new_figure, styled
from pyrobbb.posterior import moments
from pyrobbb.priors import ScaleMixture

# Our prototype, one seed each, 20 epochs: what was trained on, per minibatch of 128 (KL x temperature), and
# test error in %
PROTOTYPE = {(1.0, 1.0): (1722, 1.76), (10.0, 1.0): (1197, 3.48), (1.0, 0.1): (216, 1.53)}
MEASURES = {
    "free_energy": "free energy (nats per datum)",
    "objective": "objective trained",
    "kl": "KL (nats per datum)",
    "error": "test error (%)",
    "nll": "test NLL (nats)",
    "ece": "calibration error (ECE)",
    "above_noise": "weights above the prior's noise (%)",
    "scale": "median sigma",
}
SHOWN = ("error", "nll", "ece", "above_noise")
MARKERS = ("o", "s")


@dataclass
class Settings:
    """The study of free energy against error."""

    rates: list[float] = field(default_factory=lambda: [0.1, 1.0, 3.0, 10.0])
    temperatures: list[float] = field(default_factory=lambda: [0.01, 0.1, 0.3, 1.0, 3.0])
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    quick: bool = False


STUDY = Study(
    "experiments.studies.free_energy",
    "free_energy",
    Settings,
    sets=("seed", "kl", "rates"),
    instead="say seeds=[...], temperatures=[...] or rates=[...]",
    parts=("rates", "temperatures", "seeds"),
)
Setting = tuple[float, float]  # rate of rho, temperature
Path = tuple[list[str], dict[str, np.ndarray]]  # what changes along it, and (settings, seeds) of each measure


def measure(fitted: Fitted) -> Result:
    """Free energy, scores on the test set, and the share of weights above the prior's noise."""
    last, scores = fitted.history[-1], fitted.scores()
    temperature = getattr(fitted.run.kl, "temperature", 1.0)
    return {
        "free_energy": last.free_energy,
        "objective": temperature * last.kl + last.nll,
        "kl": last.kl,
        "train_nll": last.nll,
        "above_noise": 100 * above_noise(fitted),
        "scale": _median_scale(fitted),
        **{
            name: scores[name] for name in ("error", "nll", "ece", "error_mean_weights", "mutual_information")
        },
    }


def above_noise(fitted: Fitted) -> float:
    """Share of the weights whose mean lies beyond three standard deviations of the prior's spike.

    The spike N(0, sigma2^2) is where the prior expects weights that do nothing; 0.3 % of its own draws
    lie beyond 3 sigma2.
    """
    prior = fitted.run.prior
    if not isinstance(prior, ScaleMixture):
        raise ConfigError(f"the share of weights above the spike needs prior=scale_mixture, got {prior!r}")
    locs, _ = moments(fitted.posterior.chains[0])
    every = torch.cat([loc.flatten() for loc in locs.values()])
    return float((every.abs() > 3 * prior.sigma2).double().mean())


def _median_scale(fitted: Fitted) -> float:
    _, scales = moments(fitted.posterior.chains[0])
    return float(torch.cat([scale.flatten() for scale in scales.values()]).median())


def lines(chosen: Settings) -> dict[str, list[Setting]]:
    """The two paths, which share the base."""
    return {
        "rate of rho x": [(rate, 1.0) for rate in sorted(chosen.rates)],
        "temperature": [(1.0, t) for t in sorted(chosen.temperatures)],
    }


def report(results: dict[tuple[Setting, int], Result], batch_size: int) -> str:
    """Mean and standard deviation over seeds of each setting, next to the prototype's one seed."""
    head = [
        "rate of rho",
        "temperature",
        "F (nats/datum)",
        "objective per minibatch",
        "test error (%)",
        "NLL (nats)",
    ]
    head += ["ECE", "above noise (%)", "median sigma", "prototype, 20 epochs: objective, error"]
    rows = []
    for setting in dict.fromkeys(s for s, _ in results):
        values = [r for (s, _), r in results.items() if s == setting and "stopped" not in r]
        row = [f"{setting[0]:g}", f"{setting[1]:g}"]
        if not values:
            rows.append([*row, *["not finite"] * 7, "-"])
            continue
        objective = np.mean([value["objective"] for value in values])
        row += [mean_sd([v["free_energy"] for v in values], 3), f"{objective * batch_size:.0f}"]
        for name, digits in (("error", 2), ("nll", 4), ("ece", 4), ("above_noise", 1), ("scale", 5)):
            row.append(mean_sd([v[name] for v in values], digits))
        theirs = PROTOTYPE.get(setting)
        rows.append([*row, "-" if theirs is None else f"{theirs[0]}, {theirs[1]} %"])
    return f"{table(head, rows)}\n{of_seeds(sorted({seed for _, seed in results}))}"


def figure(chosen: Settings, results: dict[tuple[Setting, int], Result]) -> Figure | None:
    """Error, NLL, calibration and share of weights against the free energy, along both paths."""
    drawn: dict[str, Path] = {}
    for name, settings_ in lines(chosen).items():
        kept = [s for s in settings_ if all("stopped" not in results[s, seed] for seed in chosen.seeds)]
        if not kept:
            continue

        words = [f"{s[0] if name.startswith('rate') else s[1]:g}" for s in kept]
        drawn[name] = (
            words,
            {
                measure: np.array([[results[s, seed][measure] for seed in chosen.seeds] for s in kept])
                for measure in ("free_energy", *SHOWN)
            },
        )
    seeds = len(chosen.seeds)
    title = "Error, calibration and weights in use against the free energy, by rate of rho and temperature "
    title += "(one seed)" if seeds == 1 else f"({seeds} seeds, bars of one standard deviation)"
    return trade_off(drawn, title) if drawn else None


@styled
def trade_off(paths: Mapping[str, Path], title: str) -> Figure:
    """One panel for each measure: its mean over seeds against the free energy's, bars of one sd."""
    figure = new_figure(9.4, 7.5)
    for axes, measure in zip(figure.subplots(2, 2).flat, SHOWN, strict=True):
        for i, (name, (words, values)) in enumerate(paths.items()):
            both = values["free_energy"], values[measure]
            x, y = (each.mean(1) for each in both)
            sd = [each.std(1, ddof=min(1, each.shape[1] - 1)) for each in both]
            axes.errorbar(
                x, y, sd[1], sd[0], fmt=MARKERS[i] + "-", ms=5, lw=1.2, color=CHAINS[i], capsize=2, label=name
            )
            for at, word in enumerate(words):
                place = (5, 5) if i == 0 else (5, -11)
                axes.annotate(
                    word, (x[at], y[at]), place, textcoords="offset points", fontsize=7.5, color=CHAINS[i]
                )
        axes.margins(x=0.12, y=0.15)
        label(axes, f"{MEASURES['free_energy']}, temperature 1", MEASURES[measure])
    figure.axes[0].legend(loc="best")
    caption(figure, title)
    return figure


def main(arguments: Sequence[str]) -> dict[tuple[Setting, int], Result]:
    """Fit what is missing of the study, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    if chosen.quick:
        chosen.rates, chosen.temperatures, chosen.seeds = [1.0, 10.0], [0.1, 1.0], [1, 2]
    places = {
        f"rate={rate:g},temperature={t:g},seed={seed}": ((rate, t), seed)
        for seed in chosen.seeds
        for line in lines(chosen).values()
        for rate, t in line
    }
    base = compose("free_energy", overrides, folder=out.fits)
    configs = {
        name: changed(base, out.fits / name, {"rates.rho": rate, "kl.temperature": t, "seed": seed})
        for name, ((rate, t), seed) in places.items()
    }
    found = fit_points(configs, measure, lambda r: f"F {r['free_energy']:.3f}, error {r['error']:.2f} %")
    results = {places[name]: found[name] for name in places}
    columns = [*MEASURES, "train_nll", "error_mean_weights", "mutual_information", "seconds", "stopped_epoch"]
    rows = ([*s, seed, *(r.get(name, "") for name in columns)] for (s, seed), r in results.items())
    out.csv("points.csv", ["rate_of_rho", "temperature", "seed", *columns], rows)
    points = [
        dict(zip(("rate_of_rho", "temperature", "seed"), (*s, seed), strict=True)) | r
        for (s, seed), r in results.items()
    ]
    out.record({"batch_size": base.batch_size, "points": points})
    drawn = figure(chosen, results)
    if drawn:
        out.figure("free_energy.png", drawn)
    out.end(report(results, base.batch_size))
    return results


if __name__ == "__main__":
    command(main, __doc__)
