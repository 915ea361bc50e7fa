"""One page for a finished run: `python -m experiments.report runs/mnist/default` leaves `report.html` there.

It opens without a server: what was run, the verdict of the checks if `experiments.check` has run, scores,
learning curves, the KL by layer, calibration, uncertain inputs, weights, ArviZ's plots. Only the files of the
folder are read.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from experiments._runner.build import ConfigError
from experiments._runner.command import folder_command, trust_option
from experiments._runner.find_runs import RunFolder, shown, varied
from experiments._runner.folder import read_json, read_metrics
from experiments._runner.own_parts import TARGET, is_point, method_of, unused
from experiments._runner.sweep import UNRANKED
from experiments._runner.trust import strangers, trusted_config
from experiments.analyse import prior_density
from pyrobbb._support.files import write_text
from pyrobbb.checkup import recorded
from pyrobbb.inference import MAP

NAME = "report.html"
LEAD = (
    "This run fits a Bayesian neural network: training finds, for each weight, a distribution instead of a "
    "single number, and predictions average over networks drawn from it."
)
POINT = "This run trains a plain neural network, with a single number for each weight."
MODE = (
    "This run seeks the maximum a posteriori of a Bayesian neural network: for each weight a single number, "
    "which the prior draws towards what it holds likely; several restarts are averaged."
)
EXTRA = "no report.html: it needs the extra `report`, pip install '.[report]' in your clone"
PARTS = {
    "data": ("Data", ""),
    "model": ("Network", ""),
    "prior": ("Prior", "what is believed of a weight before the data"),
    "likelihood": ("Likelihood", "of an answer, given the network's output"),
    "guide": ("Guide", "the family of distributions that the posterior is sought in"),
    "inference": ("Method", ""),
    "kl": ("Weight of the KL", "its share in each minibatch"),
    "optim": ("Optimiser", ""),
    "schedule": ("Schedule", "of the learning rate"),
    "epochs": ("Epochs", ""),
    "batch_size": ("Batch size", ""),
    "samples": ("Draws in training", "of the weights, for each step"),
    "draws": ("Draws to predict", "of the weights, for each restart"),
    "chains": ("Restarts", "called chains"),
    "seed": ("Seed", "of the random numbers"),
}


def report(folder: Path | str, trust: bool = False) -> str:
    """Write `report.html` into a run folder, and say where it is.

    Raises:
        ConfigError: The folder holds no finished run, `config.yaml` names a part that is not trusted, or the
            extra `report` is not installed.
    """
    folder = Path(folder)
    config = trusted_config(folder, trust)
    own = ["--trust"] if strangers(config) else []
    try:
        from pyrobbb.report.run import About, run_page
        from pyrobbb.report.words import component
    except ImportError as error:
        raise ConfigError(EXTRA) from error
    read_metrics(folder)  # which says what is wrong with them
    check = shlex.join(["python", "-m", "experiments.check", str(folder), *own])
    made = read_json(folder / "provenance.json", "remove it: the page does without")
    read_json(folder / "check.json", f"remove it, or make it again: {check}")  # `run_page` names no remedy
    page = run_page(
        folder,
        About(
            name=_title(config, folder),
            settings=[(name, component(config[k]), what) for k, (name, what) in _used(config).items()],
            lead=_lead(config),
            config=yaml.safe_dump(config, sort_keys=False),
            again=str(made.get("command", "")),
            check=check,
            recorded=[asdict(finding) for finding in recorded(folder)],
            published=config.get("published") or "",
            made=_made(made),
            prior=None if is_point(config) else prior_density(config["prior"]),
        ),
    )
    write_text(folder / NAME, page)
    return str(folder / NAME)


def _lead(config: Mapping[str, Any]) -> str:
    if is_point(config):
        return POINT
    guide = {} if "guide" in unused(config) else config["guide"]
    points = method_of(config) is MAP or str(guide.get(TARGET)).endswith(".AutoDelta")
    return MODE if points else LEAD


def _used(config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The parts that took part in the run."""
    without = unused(config)
    return {key: said for key, said in PARTS.items() if key in config and key not in without}


def leave(folder: Path, *, trust: bool) -> str:
    """`report` at the end of a command, which no fault of the page may fail; what there is to say."""
    try:
        return f"report: {report(folder, trust=trust)}"
    except Exception as error:  # the run is finished, whatever became of its page
        return str(error) if isinstance(error, ConfigError) else f"no report.html: {error!r}"


def renew(folder: Path, *, trust: bool) -> str:
    """The page again, with what a command has found since the run left it; nothing if it did not."""
    return leave(folder, trust=trust) if (folder / NAME).exists() else ""


def summary(runs: Sequence[RunFolder], root: Path) -> str:
    """Write `summary.html`, the page of a sweep, into `root`; the reason if the extra is not installed."""
    try:
        from pyrobbb.report.sweep import Line, sweep_page
    except ImportError:
        return EXTRA.replace(NAME, "summary.html")
    keys = varied([run.config for run in runs if run.metrics])
    keys += ["seed"] if len({run.config.get("seed") for run in runs}) > 1 else []
    short = shown(keys, [run.config for run in runs])
    lines = [
        Line(
            name=str(run.folder.relative_to(root)),
            link=quote(f"{run.folder.relative_to(root)}/{NAME}") if (run.folder / NAME).exists() else None,
            settings={
                key.removesuffix(f".{TARGET}"): short[key].get(str(run.config[key]), run.config[key])
                for key in keys
                if key in run.config
            },
            scores=_scores(run) if run.metrics else {},
            problem=run.error,
            ranked=run.measure != UNRANKED,
        )
        for run in sorted(runs, key=lambda run: (run.measure, run.value) if run.metrics else ("~", 0.0))
    ]
    write_text(root / "summary.html", sweep_page(f"Runs in {root.resolve().name}", lines))
    return ""


def _scores(run: RunFolder) -> dict[str, float]:
    """What a run is judged by, and what is shown beside it; test data select no run, and are left out."""
    found = {} if run.measure == UNRANKED else {run.measure: run.value}
    held = {"nll": "validation nll (nats)", "ece": "validation ece"}
    of_run = {
        "free_energy": "free energy (nats)",
        "trivial_free_energy": "ignoring the inputs (nats)",
        "train_seconds": "training (s)",
    }
    for values, names in ((run.metrics.get("validation", {}), held), (run.metrics, of_run)):
        found |= {words: values[key] for key, words in names.items() if values.get(key) is not None}
    return found


def _title(config: Mapping[str, Any], folder: Path) -> str:
    """`mnist: prior=normal`, of the experiment and the folder; the experiment alone of its default."""
    name = str(config.get("name", "run"))
    return name if folder.name in (name, "default") else f"{name}: {folder.name}"


def _made(made: Mapping[str, Any]) -> dict[str, str]:
    """The lines of `provenance.json` that a reader looks for."""
    versions = made.get("versions", {})
    of_run = {name.capitalize(): str(made[name]) for name in ("date", "machine") if name in made}
    return {**of_run, **versions}


def main() -> None:
    """The command line."""
    folder_command("experiments.report", __doc__, report, trust_option)


if __name__ == "__main__":
    main()
