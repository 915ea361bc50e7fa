"""The bound under each prior: `python -m experiments.studies.bound [seeds=[1,2,3]] [key=value ...]`.

Trains each network under each prior on MNIST at temperature 1, with one recipe (`experiment=bound`), and
compares the free energy with that of a posterior that ignores its inputs: fixed priors, one whose scales are
learned, and hierarchical ones whose scales the bound pays for. Writes `record.json`, with every seed, and the
table. Points that are finished are not run again.

networks=[2x400,2x1200,conv]    which networks, from 2x50; conv: 16 and 32 channels, one hidden layer of 128
priors=[mixture,gaussian,learned,learned_input,ard,group_horseshoe]    which priors
rates=[10]       rho's learning rate, in units of mu's
seeds=[1,2,3]    which seeds
quick=true       two priors on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=20 data.limit=5000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_points
from experiments._runner.study import Study
from experiments._runner.tables import mean_sd, of_seeds, table
from pyrobbb._support import checks
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.priors import Learned

NETWORKS = {
    **{f"2x{n}": [f"model.hidden=[{n},{n}]"] for n in (50, 100, 200, 400, 1200)},
    "conv": ["model=convnet", "data.flatten=false"],
}
WEIGHTS = ["estimator=weights", "guide=non_centred"]  # latent scales: Pyro's own program, weights drawn
PRIORS = {
    "mixture": ["prior=scale_mixture"],
    "gaussian": ["prior=normal", "prior.sigma=0.1"],
    "learned": ["prior=learned_normal"],
    "learned_input": ["prior=learned_normal", "prior.per=input"],
    "learned_mixture": ["prior=learned_mixture"],
    "learned_gradient": ["prior=learned_mixture", "prior.by=gradient", "estimator=weights"],
    "ard": ["prior=ard", *WEIGHTS],
    "horseshoe": ["prior=horseshoe", *WEIGHTS],
    "group_horseshoe": ["prior=group_horseshoe", *WEIGHTS],
}
RATE = 10.0  # that of experiment=bound
COLUMNS = ("free_energy", "trivial_free_energy", "kl", "train_nll", "test_error", "test_nll",
           "validation_error", "bits_per_weight", "in_use", "learned_numbers", "seconds")  # fmt: skip


@dataclass
class Settings:
    """The study of the bound."""

    networks: list[str] = field(default_factory=lambda: ["2x400", "2x1200", "conv"])
    priors: list[str] = field(
        default_factory=lambda: ["mixture", "gaussian", "learned", "ard", "group_horseshoe"]
    )
    rates: list[float] = field(default_factory=lambda: [RATE])
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    quick: bool = False

    def __post_init__(self) -> None:
        checks.each_of("networks", self.networks, NETWORKS)
        checks.each_of("priors", self.priors, PRIORS)


STUDY = Study(
    "experiments.studies.bound",
    "bound",
    Settings,
    sets=("seed", "prior", "model", "rates"),
    instead="say seeds=[...], rates=[...], priors=[...] or networks=[...]",
    parts=("networks", "priors", "rates", "seeds"),
)
Place = tuple[str, str, float, int]  # network, prior, rho's rate, seed


def measure(fitted: Fitted) -> Result:
    """The bound and where it goes, and the scores of averaged draws on the test set."""
    last, scores, model = fitted.history[-1], fitted.scores(), fitted.posterior.model
    ledger = kl_ledger(fitted.posterior, seed=fitted.run.seed) or {}
    weights = [ledger[name] for name in model.sites if name in ledger]
    informative = [entry.informative for entry in weights if entry.informative is not None]
    learned = [part for part in model.prior.parts() if isinstance(part, Learned)]
    return {
        "free_energy": last.free_energy,
        "trivial_free_energy": trivial_free_energy(model, fitted.data.train),
        "kl": last.kl,
        "train_nll": last.nll,
        "test_error": scores["error"],
        "test_nll": scores["nll"],
        "validation_error": last.validation_error,
        "bits_per_weight": sum(entry.nats for entry in ledger.values()) / math.log(2) / model.num_weights,
        "in_use": 100 * sum(informative) / model.num_weights if informative else None,
        "learned_numbers": sum(part.num_learned for part in learned),
    }


def places(chosen: Settings) -> dict[str, Place]:
    """The folder's name of each point."""
    return {
        f"network={network},prior={prior}{_other(rate)},seed={seed}": (network, prior, rate, seed)
        for network in chosen.networks
        for prior in chosen.priors
        for rate in chosen.rates
        for seed in chosen.seeds
    }


def _other(rate: float) -> str:
    return "" if rate == RATE else f",rate={rate:g}"


def rows(results: dict[Place, Result]) -> list[dict[str, Any]]:
    """One row for each network, prior and rate: means over seeds, and each seed's values."""
    found = []
    for setting in dict.fromkeys(place[:3] for place in results):
        every = {place[3]: r for place, r in results.items() if place[:3] == setting}
        own = {seed: result for seed, result in every.items() if "stopped" not in result}
        network, prior, rate = setting
        row: dict[str, Any] = {"network": network, "prior": prior, "rate": rate, "seeds": sorted(own)}
        for name in COLUMNS:
            values = [r[name] for r in own.values() if r.get(name) is not None]
            row[name] = fmean(values) if values else None
            row[f"{name}_each"] = values
        found.append(row)
    return found


def report(found: Sequence[dict[str, Any]]) -> str:
    """The table, and the rank correlation of free energy and validation error over all runs of a kind."""
    head = [
        "network",
        "prior",
        "rate of rho",
        "F",
        "ignoring the inputs",
        "KL",
        "NLL",
        "test error (%)",
        "test NLL",
    ]
    head += ["bits per weight", "|mu| > sigma (%)", "learned", "seconds"]
    digits = {"free_energy": 3, "trivial_free_energy": 2, "kl": 3, "train_nll": 3, "test_error": 2}
    digits |= {"test_nll": 4, "bits_per_weight": 3, "in_use": 1, "learned_numbers": 0, "seconds": 0}

    def cell(row: dict[str, Any], name: str) -> str:
        return mean_sd(row[f"{name}_each"], digits[name]) if row[f"{name}_each"] else "-"

    cells = [
        [row["network"], row["prior"], f"{row.get('rate', RATE):g}", *(cell(row, name) for name in digits)]
        for row in found
    ]
    seeds = sorted({seed for row in found for seed in row["seeds"]})
    return "\n".join([table(head, cells), of_seeds(seeds), *map(correlation, kinds(found).items())])


def kinds(found: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows under the fixed mixture, and rows under priors that are learned or hierarchical."""
    fixed = ("mixture", "gaussian")
    return {
        "the fixed mixture": [row for row in found if row["prior"] == "mixture"],
        "learned priors": [row for row in found if row["prior"] not in fixed],
    }


def correlation(kind: tuple[str, list[dict[str, Any]]]) -> str:
    """Spearman's rank correlation of the free energy with the validation error, over runs."""
    name, own = kind
    pairs = [
        pair
        for row in own
        for pair in zip(row["free_energy_each"], row["validation_error_each"], strict=True)
    ]
    if len(own) < 3:  # seeds of one setting differ by chance alone
        return f"{name}: too few settings for a rank correlation"
    rank = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return (
        f"{name}: rank correlation of F with the validation error {rank:.2f} over {len(pairs)} runs, "
        f"{len(own)} settings"
    )


def main(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Fit what is missing, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    if chosen.quick:
        chosen.networks, chosen.priors, chosen.seeds = ["2x400"], ["learned", "ard"], [1, 2]
    points = places(chosen)
    networks = NETWORKS if not chosen.quick else {"2x400": []}
    configs = {
        name: compose(
            "bound",
            [*networks[network], *PRIORS[prior], f"rates.rho={rate:g}", f"seed={seed}", *overrides],
            folder=out.fits / name,
        )
        for name, (network, prior, rate, seed) in points.items()
    }
    fits = fit_points(configs, measure, lambda r: f"F {r['free_energy']:.3f}, error {r['test_error']:.2f} %")
    found = rows({points[name]: result for name, result in fits.items()})
    out.record({"seeds": chosen.seeds, "rows": found})
    out.end(report(found))
    return found


if __name__ == "__main__":
    command(main, __doc__)
