"""The KL at the drawn weights, as in the paper, against the KL in closed form, under a Gaussian prior.

`python -m experiments.paper.closed_form [seeds=[1,2,3]] [key=value ...]` trains the same network both ways,
by Pyro's `Trace_ELBO` and `TraceMeanField_ELBO`, from the same starting values. The paper (section 3)
says that a closed form does neither better nor worse: the gradients have the same mean, their noise differs.
Writes `closed_form.json`. What is finished is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments._runner.build import ConfigError
from experiments._runner.command import command, part_of, place, refuse, settings
from experiments._runner.compose import compose
from experiments._runner.points import Fitted, Result, fit_point
from experiments._runner.tables import mean_sd, of_seeds, table
from experiments._runner.targets import verdict
from pyrobbb._support.files import make_folder, write_text
from pyrobbb.experiment import evaluate
from pyrobbb.training.progress import Printed

WAYS = {"drawn": "at the drawn weights", "closed": "in closed form"}


@dataclass
class Settings:
    """The comparison."""

    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])


def measure(fitted: Fitted) -> Result:
    """Scores on the test set, and the free energy of the last epoch."""
    part = fitted.data.test
    if part is None:
        raise ConfigError("the comparison needs test data")
    scores = evaluate(fitted.posterior, part, draws=fitted.run.draws, seed=fitted.run.seed)
    if "error" not in scores:
        raise ConfigError("the comparison needs a classification")
    return {"error": scores["error"], "nll": scores["nll"], "free_energy": fitted.history[-1].free_energy}


def main(arguments: Sequence[str]) -> dict[str, list[Result]]:
    """Fit what is missing, and report."""
    chosen, rest = settings(Settings, arguments)
    folder, overrides = place(rest, "runs/closed_form")
    refuse(
        overrides, ("seed", "fast", "samples", "elbo"), "say seeds=[...]; one draw a step, by Pyro's own SVI"
    )
    found: dict[str, list[Result]] = {way: [] for way in WAYS}
    for seed in chosen.seeds:
        for way in WAYS:
            words = [*overrides, f"seed={seed}", *(["elbo=mean_field"] if way == "closed" else [])]
            config = compose("closed_form", words, folder=folder / f"{way}-{seed}")
            result = fit_point(config, measure, progress=Printed())
            if "stopped" in result:
                raise ValueError(f"{config.folder}: {result['stopped']}")
            found[way].append(result)
    target = folder / part_of(chosen, Settings(), ("seeds",))
    make_folder(target)
    write_text(target / "closed_form.json", json.dumps(found, indent=1) + "\n")
    print(report(found, chosen.seeds))
    print(f"{target}: closed_form.json")
    return found


def report(found: dict[str, list[Result]], seeds: Sequence[int]) -> str:
    """Both ways side by side, and target B10."""
    names = (("error", 2), ("nll", 4), ("free_energy", 3))
    lines = [
        [words, *(mean_sd([result[name] for result in found[way]], digits) for name, digits in names)]
        for way, words in WAYS.items()
    ]
    head = ("KL", "test error (%)", "NLL (nats)", "free energy (nats per datum)")
    first, second = (sum(r["error"] for r in found[way]) / len(seeds) for way in WAYS)
    gap = verdict("B10, difference of the errors, points", abs(first - second), high=0.3)
    return "\n".join([table(head, lines), of_seeds(seeds), gap])


if __name__ == "__main__":
    command(main, __doc__)
