"""Recipes for a low error at temperature 1: `python -m experiments.studies.recipes [key=value ...]`.

Fits a network on MNIST by each recipe of `recipes.yaml`, which changes one thing or two of Bayes by
Backprop as in Table 1 (Adam with cosine decay); all have as many epochs and the whole KL. The recipe with
the lowest mean error on validation data is the one to take; test errors are for the report alone.
Restarts, the seeds of a recipe averaged in probability, stand apart: they are a posterior of several
modes. Writes `record.json`, with every seed, and the table. What is finished is not run again.

recipes=[mixture,slow_rho,...]    which recipes
seeds=[1,2,3]                     which seeds
quick=true                        two recipes on synthetic data, for a test
Other arguments are for every run, as in `experiments.run`: epochs=40 model.hidden=[1200,1200]; with
data.validation=0 what was chosen before is trained on every image, and nothing is ranked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from torch import Tensor

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_point
from experiments._runner.folder import reading
from experiments._runner.study import Study
from experiments._runner.tables import Writer, estimate, mean_sd, of_seeds, table
from experiments.scoreboard.compare import failures, notes, pairs, reason, values
from pyrobbb._support import checkpoint
from pyrobbb.evaluation.metrics import classification_metrics
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.predictive import ClassPrediction
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.history import Epoch

DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
RECIPES: Mapping[str, Mapping[str, Any]] = DECLARED["recipes"]
CENTRE = "mixture"
SHOWN = {  # what the table says, with how many digits
    "validation_error": ("validation error (%)", 2),
    "test_error": ("test error (%)", 2),
    "test_error_mean_weights": ("of the mean weights", 2),
    "test_nll": ("test NLL", 4),
    "test_ece": ("test ECE", 4),
    "free_energy": ("F", 3),
    "trivial_free_energy": ("ignoring the inputs", 2),
    "seconds": ("seconds", 0),
}

AVERAGED = ("validation_error", "test_error", "test_nll", "test_ece")  # of several restarts


@dataclass
class Settings:
    """The study of recipes."""

    recipes: list[str] = field(default_factory=lambda: list(RECIPES))
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    quick: bool = False


STUDY = Study(
    "experiments.studies.recipes",
    "recipes",
    Settings,
    sets=("seed", "prior", "guide", "kl", "optim", "schedule", "estimator", "rates", "chains"),
    instead="say recipes=[...] or seeds=[...]",
    parts=("recipes", "seeds"),
    choices={"recipes": RECIPES},
    quick={"recipes": ["mixture", "average"], "seeds": [1, 2]},
)


class LastThird(Callback):
    """The mean over the epochs of the last third of everything that is trained."""

    keeps = ("mean", "count")

    def __init__(self, epochs: int) -> None:
        self.start = 2 * epochs // 3
        self.mean: dict[str, Tensor] = {}
        self.count = 0

    def on_epoch(self, view: View, row: Epoch) -> None:
        if row.epoch <= self.start:
            return
        self.count += 1
        for name, value in view.guide.state_dict().items():
            old = self.mean.get(name, torch.zeros_like(value))
            self.mean[name] = old + (value - old) / self.count


def fit(name: str, seed: int, overrides: Sequence[str], folder: Path) -> Result:
    """Fit a recipe once and measure it; its probabilities on validation and test data stay in the folder."""
    recipe = RECIPES[name]
    words = [*recipe.get("words", ()), f"seed={seed}", *overrides]
    config = compose(recipe.get("experiment", "table1_mixture"), words, folder=folder)
    average = LastThird(config.epochs) if recipe.get("average") else None

    def measure(fitted: Fitted) -> Result:
        posterior, last = fitted.posterior, fitted.history[-1]
        if average is not None:
            posterior.chains[0][1].load_state_dict(average.mean)
        scores, probs = fitted.scores(), {}
        for part, rows in (("validation", fitted.data.validation), ("test", fitted.data.test)):
            if rows is None:  # trained on them too
                continue
            prediction = posterior.predict(rows.x, draws=fitted.run.draws, seed=seed)
            assert isinstance(prediction, ClassPrediction)
            probs[part] = {"probs": prediction.probs, "y": rows.y}
        checkpoint.save(folder / "probabilities.pt", probs)
        held = probs.get("validation")
        return {
            **({} if held is None else {"validation_error": classification_metrics(**held)["error"]}),
            **{f"test_{key}": value for key, value in scores.items()},
            "free_energy": last.free_energy,
            "trivial_free_energy": trivial_free_energy(posterior.model, fitted.data.train),
        }

    found = fit_point(config, measure, callbacks=[average] if average is not None else ())
    if "validation_error" not in found and "stopped" not in found:
        found.pop("validation_errors")  # which are NaN
    return found


def averaged(folders: Sequence[Path]) -> Result:
    """Errors of several fits averaged in probability."""
    each, found = [], Result()
    for folder in folders:
        with reading(path := folder / "probabilities.pt"):
            each.append(checkpoint.load(path))
    for part in [name for name in ("validation", "test") if name in each[0]]:
        probs = torch.stack([one[part]["probs"] for one in each]).mean(dim=0)
        scores = classification_metrics(probs, each[0][part]["y"])
        found |= {f"{part}_{key}": value for key, value in scores.items()}
    return {key: found[key] for key in AVERAGED if key in found}


def ranked(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """The recipes, the lowest mean validation error first; one that never stayed finite is the last."""
    return sorted(found, key=lambda name: fmean(values(found[name], "validation_error") or [100.0]))


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """A row for each recipe, the lowest validation error first; what is ahead of the centre; restarts."""
    found = record["found"]
    order = ranked(found)
    shown = [key for key in SHOWN if any(values(each, key) for each in found.values())]
    lines, titles, failed = [], dict[str, str](), list[Result]()
    for name in order:
        title = RECIPES[name]["title"]
        without = [{"method": title, **one} for one in found[name] if reason(one)]
        titles[name] = title + failures(len(without))
        failed += without
        cells = [mean_sd(values(found[name], key), SHOWN[key][1]) for key in shown]
        lines.append([titles[name], *cells, _ahead(found, name)])
    head = ["recipe", *(SHOWN[key][0] for key in shown), "test error less the centre's, paired"]
    words = [write(head, lines), of_seeds(record["seeds"])]
    of_several = [key for key in shown if key in AVERAGED]
    restarts = [
        [
            titles[name],
            *(f"{record['restarts'][name][key]:.{SHOWN[key][1]}f}" for key in of_several),
        ]
        for name in order
        if name in record["restarts"]
    ]
    if restarts:
        head = [f"{len(record['seeds'])} restarts averaged", *(SHOWN[key][0] for key in of_several)]
        words.append(write(head, restarts))
    if failed:
        words.append("\n".join(notes(failed)))
    return "\n\n".join(words)


def differences(found: Mapping[str, Sequence[Result]], name: str) -> list[float]:
    """Test error of a recipe less that of the centre, by seed."""
    return [a - b for a, b in pairs(found[name], found.get(CENTRE, []), "test_error", "seed")]


def _ahead(found: Mapping[str, Sequence[Result]], name: str) -> str:
    gap = differences(found, name)
    return "" if name == CENTRE or not gap else estimate(gap, 2, sign=True)


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Fit what is missing, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    if not chosen.quick:
        overrides = ["epochs=20", "draws=20", *overrides]
    found: dict[str, list[Result]] = {name: [] for name in chosen.recipes}
    for seed in chosen.seeds:
        for name in chosen.recipes:
            result = fit(name, seed, overrides, out.fits / f"{name}-{seed}")
            found[name].append({"seed": seed, **result})
            part = "validation" if "validation_error" in result else "test"
            said = result.get("stopped") or f"{part} error {result[f'{part}_error']:.2f} %"
            print(f"seed {seed}, {name}: {said}", flush=True)
    folders = {
        name: [out.fits / f"{name}-{result['seed']}" for result in each if "stopped" not in result]
        for name, each in found.items()
    }
    restarts = {name: averaged(each) for name, each in folders.items() if len(each) > 1}
    record = {"seeds": chosen.seeds, "found": found, "restarts": restarts}
    out.record(record)
    out.end(report(record))
    return record


if __name__ == "__main__":
    command(main, __doc__)
