"""Did it work? A verdict on a run folder: `python -m experiments.check runs/mnist/default`.

Trains on for a moment with the paper's objective, compares the free energy with that of ignoring the inputs,
the held-out rows with their predictions, and restarts with one another; notes what the prior predicts, how
noisy the free energy is, and how near the last layer is to its posterior. `--sbc 50` fits to 50 data sets
drawn from the model, by the run's own settings: for small models. Writes `check.json` into the folder, and
`report.html` again if it is there.
"""

from argparse import ArgumentParser
from dataclasses import asdict, replace
from pathlib import Path

from experiments import report
from experiments._runner.command import folder_command, trust_option
from experiments._runner.reopen import reopen
from pyrobbb import Posterior
from pyrobbb._support.files import write_json
from pyrobbb.checkup import check, notes, verdict
from pyrobbb.data.dataset import Dataset
from pyrobbb.evaluation.sbc import simulation_based_calibration
from pyrobbb.experiment import Run


def checked(folder: Path, trust: bool = False, sbc: int = 0) -> str:
    """Check a run folder, and report what was found."""
    opened = reopen(folder, trust=trust)
    run, posterior, data = opened.run, opened.posterior, opened.data
    simulated = []
    if sbc:  # first, as it may refuse the data
        calibration = simulation_based_calibration(
            posterior.model, data, lambda made, seed: fitted(run, made, seed), repeats=sbc, seed=run.seed
        )
        simulated.append(str(calibration))
    findings = check(posterior, data, seed=run.seed)
    beside = notes(posterior, data, seed=run.seed)
    if not (folder / "metrics.json").exists():
        beside.insert(0, f"the run is not finished: epoch {opened.epoch} of {run.epochs}")
    beside += simulated
    said = verdict(findings)
    kept = {"verdict": said, "findings": [asdict(finding) for finding in findings], "notes": beside}
    lines = [*map(str, findings), *(f"{'note':9} {note}" for note in beside), said]
    try:
        write_json(folder / "check.json", kept)
    except OSError as error:  # a folder of somebody else's; what was found is printed all the same
        return "\n".join([*lines, f"note: {error}"])
    return "\n".join(filter(None, [*lines, report.renew(folder, trust=trust)]))


def fitted(run: Run, data: Dataset, seed: int) -> Posterior:
    """The posterior of other data by the run's own settings."""
    training = replace(run, seed=seed, chains=1, stacking=False).training(data)
    training.run()
    return training.posterior


def options(parser: ArgumentParser) -> None:
    """The options of `check`."""
    parser.add_argument(
        "--sbc", type=int, default=0, metavar="M", help="fit to M data sets drawn from the model as well"
    )
    trust_option(parser)


def main() -> None:
    """The command line."""
    folder_command("experiments.check", __doc__, checked, options)


if __name__ == "__main__":
    main()
