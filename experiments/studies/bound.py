"""The bound under each prior: `python -m experiments.studies.bound [seeds=[1,2,3]] [key=value ...]`.

Trains each network under each prior on MNIST, with one recipe (`experiment=bound`), and compares the free
energy with that of a posterior that ignores its inputs: fixed priors, one whose scales are learned, and
hierarchical ones whose scales the bound pays for. The free energy is that at temperature 1, whatever was
trained. Writes `record.json`, with every seed, and the table. Points that are finished are not run again.

networks=[2x400,2x1200,conv]    which networks, from 2x10; conv: 3x3, 16 and 32 channels, one hidden
                 layer of 128; lenet16, lenet32: 5x5 without padding, 16 and 32 or 32 and 64, 64
priors=[mixture,gaussian,learned,learned_input,ard,group_horseshoe]    which priors
rates=[10]       rho's learning rate, in units of mu's
temperatures=[1] by which the KL is multiplied in training
starts=[-5]      rho's initial value
seeds=[1,2,3]    which seeds
data.validation=0    trains on all images, without a validation error
quick=true       two priors on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=20 data.limit=5000.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_points
from experiments._runner.study import Study
from experiments._runner.tables import mean_sd, of_seeds, table
from experiments.scoreboard.compare import failures, notes
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.priors import Learned

CONV = ["model=convnet", "data.flatten=false"]
LENET = [*CONV, "model.kernel=5", "model.padded=false", "model.hidden=64"]
NETWORKS = {
    **{f"2x{n}": [f"model.hidden=[{n},{n}]"] for n in (10, 25, 50, 100, 200, 400, 1200)},
    "conv": CONV,
    **{f"lenet{n}": [*LENET, f"model.channels=[{n},{2 * n}]"] for n in (16, 32)},
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
USUAL = {"rate": 10.0, "temperature": 1.0, "start": -5.0}  # those of experiment=bound
LENGTHS = ("epochs", "images")  # of each training
OF_A_RUN = ("checkpoint_seconds", "name", "folder", "device")  # what does not change what is trained
FEWEST = 10  # settings of which a rank correlation says something
HEADS = {"rate": "rate of rho", "temperature": "temperature", "start": "rho from"}
SHOWN = {  # what the table says, with how many digits
    "free_energy": ("F", 3),
    "trivial_free_energy": ("ignoring the inputs", 2),
    "kl": ("KL", 3),
    "train_nll": ("NLL", 3),
    "test_error": ("test error (%)", 2),
    "test_nll": ("test NLL", 4),
    "test_ece": ("test ECE", 4),
    "bits_per_weight": ("bits per weight", 3),
    "in_use": ("|mu| > sigma (%)", 1),
    "learned_numbers": ("learned", 0),
    "seconds": ("seconds", 0),
}


@dataclass
class Settings:
    """The study of the bound."""

    networks: list[str] = field(default_factory=lambda: ["2x400", "2x1200", "conv"])
    priors: list[str] = field(
        default_factory=lambda: ["mixture", "gaussian", "learned", "ard", "group_horseshoe"]
    )
    rates: list[float] = field(default_factory=lambda: [USUAL["rate"]])
    temperatures: list[float] = field(default_factory=lambda: [USUAL["temperature"]])
    starts: list[float] = field(default_factory=lambda: [USUAL["start"]])
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    quick: bool = False


STUDY = Study(
    "experiments.studies.bound",
    "bound",
    Settings,
    sets=("seed", "prior", "model", "rates", "kl"),
    instead="say seeds=[...], rates=[...], temperatures=[...], starts=[...], priors=[...] or networks=[...]",
    parts=("networks", "priors", "rates", "temperatures", "starts", "seeds"),
    choices={"networks": NETWORKS, "priors": PRIORS},
    fixed=("networks",),
    quick={"networks": ["2x400"], "priors": ["learned", "ard"], "seeds": [1, 2]},
)


class Setting(NamedTuple):
    """What is compared; each was run with every seed."""

    network: str
    prior: str
    rate: float = USUAL["rate"]
    temperature: float = USUAL["temperature"]
    start: float = USUAL["start"]

    @property
    def name(self) -> str:
        """Its part of a folder's name, with what differs from `experiment=bound`."""
        other = {name: value for name, value in self._asdict().items() if value != USUAL.get(name)}
        return ",".join(
            f"{name}={value if isinstance(value, str) else f'{value:g}'}" for name, value in other.items()
        )


Place = tuple[Setting, int]  # and the seed


def measure(fitted: Fitted) -> Result:
    """The bound and where it goes, and the scores of averaged draws on the test set."""
    last, scores, model = fitted.history[-1], fitted.scores(), fitted.posterior.model
    ledger = kl_ledger(fitted.posterior, seed=fitted.run.seed) or {}
    weights = [ledger[name] for name in model.sites if name in ledger]
    informative = [entry.informative for entry in weights if entry.informative is not None]
    learned = [part for part in model.prior.parts() if isinstance(part, Learned)]
    return {
        "images": len(fitted.data.train),
        "free_energy": last.free_energy,
        "trivial_free_energy": trivial_free_energy(model, fitted.data.train),
        "kl": last.kl,
        "train_nll": last.nll,
        "test_error": scores["error"],
        "test_nll": scores["nll"],
        "test_ece": scores["ece"],
        "validation_error": last.validation_error if fitted.data.validation is not None else None,
        "bits_per_weight": sum(entry.nats for entry in ledger.values()) / math.log(2) / model.num_weights,
        "in_use": 100 * sum(informative) / model.num_weights if informative else None,
        "learned_numbers": sum(part.num_learned for part in learned),
    }


def places(chosen: Settings) -> dict[str, Place]:
    """The folder's name of each point."""
    axes = chosen.networks, chosen.priors, chosen.rates, chosen.temperatures, chosen.starts
    every = product(map(Setting._make, product(*axes)), chosen.seeds)
    return {f"{setting.name},seed={seed}": (setting, seed) for setting, seed in every}


def rows(results: dict[Place, Result]) -> list[dict[str, Any]]:
    """One row for each setting: means over seeds, and each seed's values."""
    found = []
    for setting in dict.fromkeys(setting for setting, _ in results):
        every = {seed: result for (one, seed), result in results.items() if one == setting}
        own = {seed: every[seed] for seed in sorted(every) if "stopped" not in every[seed]}
        row: dict[str, Any] = {**setting._asdict(), "seeds": list(own)}
        one = next(iter(own.values()), {})
        row |= {"epochs": one.get("epochs", [None])[-1], "images": one.get("images")}
        for name in (*SHOWN, "validation_error"):
            values = [r[name] for r in own.values() if r.get(name) is not None]
            row[name] = fmean(values) if values else None
            row[f"{name}_each"] = values
        row |= _failed({seed: result["stopped"] for seed, result in every.items() if "stopped" in result})
        found.append(row)
    return found


def _failed(stopped: Mapping[int, str]) -> dict[str, Any]:
    """What a row says of seeds without a result, and why."""
    return {"stopped": [*stopped.values()], "stopped_seeds": [*stopped]}


def joined(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of records made one after another; seeds of one setting, trained alike, are in one row.

    A later run of a seed takes the place of an earlier one, in each number that it has. A number that an
    earlier run has of some of its seeds alone is left out, and so is a setting of which no seed ended.
    """
    alike: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for part in parts:
        words = part["command"].split()
        rest = sorted(word for word in words if word.partition("=")[0] not in (*STUDY.parts, *OF_A_RUN))
        for row in part["rows"]:
            setting = (row.get(name, USUAL.get(name)) for name in Setting._fields)
            alike.setdefault((*setting, *rest), []).append(row)
    found = (same[0] if len(same) == 1 else _together(same) for same in alike.values())
    return [row for row in found if row["seeds"]]


def _together(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = {**same[-1], "seeds": sorted({seed for row in same for seed in row["seeds"]})}
    found |= {name: next((row[name] for row in reversed(same) if row.get(name)), None) for name in LENGTHS}
    for name in (*SHOWN, "validation_error"):
        of_seed: dict[int, float] = {}
        for row in same:
            each = row.get(f"{name}_each", ())
            if len(each) == len(row["seeds"]):  # else of some seeds it is not known
                of_seed |= dict(zip(row["seeds"], each, strict=True))
        values = [of_seed[seed] for seed in sorted(of_seed)]
        found |= {name: fmean(values) if values else None, f"{name}_each": values}
    stopped: dict[int, str] = {}
    for row in same:
        stopped |= dict(zip(row.get("stopped_seeds", ()), row.get("stopped", ()), strict=True))
    return found | _failed({seed: why for seed, why in stopped.items() if seed not in found["seeds"]})


def report(record: Mapping[str, Any]) -> str:
    """The table, and the rank correlation of free energy and validation error over many settings of a kind.

    Temperatures and starts are shown where one is not the usual; a column that no row has, as in earlier
    records, is left out.
    """
    found = record["rows"]
    shown = {name: said for name, said in SHOWN.items() if any(f"{name}_each" in row for row in found)}
    lengths = [name for name in LENGTHS if any(row.get(name) for row in found)]
    axes = [
        name
        for name, usual in USUAL.items()
        if name == "rate" or any(row.get(name, usual) != usual for row in found)
    ]

    def cells(row: dict[str, Any]) -> list[str]:
        prior = row["prior"] + failures(len(row.get("stopped", ())))
        setting = [row["network"], prior, *(str(row.get(name) or "-") for name in lengths)]
        setting += [f"{row.get(name, USUAL[name]):g}" for name in axes]
        each = (mean_sd(row.get(f"{name}_each", ()), digits) for name, (_, digits) in shown.items())
        return [*setting, *each]

    head = ["network", "prior", *lengths, *(HEADS[name] for name in axes)]
    head += [title for title, _ in shown.values()]
    seeds = sorted({seed for row in found for seed in row["seeds"]})
    lines = [table(head, map(cells, found)), of_seeds(seeds) if seeds else ""]
    failed = [
        {"method": f"{row['network']}, {row['prior']}", "stopped": why}
        for row in found
        for why in row.get("stopped", ())
    ]
    return "\n".join(filter(None, [*lines, *notes(failed), *map(correlation, kinds(found).items())]))


def kinds(found: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows under the fixed mixture, and rows under priors that are learned or hierarchical."""
    fixed = ("mixture", "gaussian")
    return {
        "the fixed mixture": [row for row in found if row["prior"] == "mixture"],
        "learned priors": [row for row in found if row["prior"] not in fixed],
    }


def ranks(rows: Sequence[dict[str, Any]]) -> tuple[float | None, int]:
    """Spearman's correlation of free energy and validation error over settings, and how many these are.

    Both are means over seeds; None for fewer than `FEWEST` settings.
    """
    own = [row for row in rows if row["validation_error"] is not None]
    pairs = [[row[key] for row in own] for key in ("free_energy", "validation_error")]
    return float(spearmanr(*pairs).statistic) if len(own) >= FEWEST else None, len(own)


def correlation(kind: tuple[str, list[dict[str, Any]]]) -> str:
    """The rank correlation of a kind of prior, in words; nothing for too few settings."""
    name, (rank, count) = kind[0], ranks(kind[1])
    if rank is None:
        return ""
    return f"{name}: rank correlation of F with the validation error {rank:.2f} over {count} settings"


def main(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Fit what is missing, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    points = places(chosen)
    configs = {}
    for name, (at, seed) in points.items():
        words = [*NETWORKS[at.network], *PRIORS[at.prior], f"rates.rho={at.rate:g}", f"seed={seed}"]
        words.append(f"guide.init_rho={at.start:g}")
        if at.temperature != 1:
            words += ["kl=tempered", f"kl.temperature={at.temperature:g}"]
        configs[name] = compose("bound", [*words, *overrides], folder=out.fits / name)
    fits = fit_points(configs, measure, lambda r: f"F {r['free_energy']:.3f}, error {r['test_error']:.2f} %")
    found = rows({points[name]: result for name, result in fits.items()})
    record = {"seeds": chosen.seeds, "study": "bound", "rows": found}
    out.record(record)
    out.end(report(record))
    return found


if __name__ == "__main__":
    command(main, __doc__)
