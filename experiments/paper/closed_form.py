"""The KL at the drawn weights, as in the paper, against the KL in closed form, under a Gaussian prior.

`python -m experiments.paper.closed_form [seeds=[1,2,3]] [key=value ...]` trains the same network both ways,
by Pyro's `Trace_ELBO` and `TraceMeanField_ELBO`, from the same starting values. The paper (section 3)
says that a closed form does neither better nor worse: the gradients have the same mean, their noise differs.
Writes `record.json`. What is finished is not run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments._runner.command import command
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, Result, fit_point
from experiments._runner.study import Study
from experiments._runner.tables import Writer, estimate, mean_sd, of_seeds, table
from pyrobbb.training.progress import Printed

WAYS = {"drawn": "at the drawn weights", "closed": "in closed form"}


@dataclass
class Settings:
    """The comparison."""

    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])


STUDY = Study(
    "experiments.paper.closed_form",
    "closed_form",
    Settings,
    sets=("seed", "fast", "samples", "elbo"),
    instead="say seeds=[...]; one draw per step, with Pyro's own SVI",
    parts=("seeds",),
)


def measure(fitted: Fitted) -> Result:
    """Scores on the test set, and the free energy of the last epoch."""
    scores = fitted.scores()
    return {"error": scores["error"], "nll": scores["nll"], "free_energy": fitted.history[-1].free_energy}


def main(arguments: Sequence[str]) -> dict[str, list[Result]]:
    """Fit what is missing, and report."""
    chosen, overrides, out = STUDY.begin(arguments)
    found: dict[str, list[Result]] = {way: [] for way in WAYS}
    for seed in chosen.seeds:
        for way in WAYS:
            words = [*overrides, f"seed={seed}", *(["elbo=mean_field"] if way == "closed" else [])]
            config = compose("closed_form", words, folder=out.fits / f"{way}-{seed}")
            result = fit_point(config, measure, progress=Printed())
            if "stopped" in result:
                raise ValueError(f"{config.folder}: {result['stopped']}")
            found[way].append(result)
    record = {"seeds": chosen.seeds, "found": found}
    out.record(record)
    out.end(f"{report(record)}\n{of_seeds(chosen.seeds)}")
    return found


def differences(record: Mapping[str, Any]) -> list[float]:
    """Test errors with the KL at the drawn weights less those with it in closed form, seed by seed."""
    pairs = zip(*(record["found"][way] for way in WAYS), strict=True)
    return [drawn["error"] - closed["error"] for drawn, closed in pairs]


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """Both ways side by side, and their difference."""
    names = (("error", 2), ("nll", 4), ("free_energy", 3))
    lines = [
        [words, *(mean_sd([one[name] for one in record["found"][way]], digits) for name, digits in names)]
        for way, words in WAYS.items()
    ]
    head = ("KL", "test error %", "NLL, nats", "free energy, nats per datum")
    gap = estimate(differences(record), 3, sign=True)
    return f"{write(head, lines)}\n\nDifference of the test errors, paired: {gap} points."


if __name__ == "__main__":
    command(main, __doc__)
