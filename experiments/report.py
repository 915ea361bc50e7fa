"""One page for a finished run: `python -m experiments.report runs/mnist/default` leaves `report.html` there.

It opens without a server: what was run, the verdict of the checks if `experiments.check` has run, scores, learning
curves, the KL by layer, calibration, uncertain inputs, weights, ArviZ's plots. Only the folder's files are read.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from experiments._runner.build import ConfigError
from experiments._runner.command import folder_command
from experiments._runner.folder import read_config, read_json
from experiments._runner.trust import check_trusted
from experiments.analyse import prior_density
from pyrobbb._support.files import write_text

NAME = "report.html"
EXTRA = "no report.html: it needs the extra `report`, pip install 'pyrobbb[report]'"
PARTS = ("data", "model", "prior", "likelihood", "guide", "inference", "kl", "optim", "schedule", "epochs",
         "batch_size", "chains", "seed")  # fmt: skip


def report(folder: Path | str, trust: bool = False) -> str:
    """Write `report.html` into a run folder, and say where it is.

    Raises:
        ConfigError: The folder holds no finished run, `config.yaml` names a part that is not trusted, or the
            extra `report` is not installed.
    """
    folder = Path(folder)
    config = read_config(folder / "config.yaml")
    if not isinstance(config.get("prior"), dict):
        raise ConfigError(f"{folder / 'config.yaml'} is not a configuration of a run: it lacks prior")
    if not trust:
        check_trusted(config, folder / "config.yaml")
    try:
        from pyrobbb.report.run import About, run_page
        from pyrobbb.report.words import component
    except ImportError as error:
        raise ConfigError(EXTRA) from error
    made = read_json(folder / "provenance.json")
    page = run_page(
        folder,
        About(
            name=f"{config.get('name', 'run')}, {folder.name}",
            settings={
                name.replace("_", " ").capitalize(): component(config[name])
                for name in PARTS
                if name in config
            },
            config=yaml.safe_dump(config, sort_keys=False),
            again=str(made.get("command", "")),
            check=shlex.join(["python", "-m", "experiments.check", str(folder)]),
            published=str(config.get("published") or ""),
            made=_made(made),
            prior=prior_density(config["prior"]),
        ),
    )
    write_text(folder / NAME, page)
    return str(folder / NAME)


def leave(folder: Path, *, trust: bool) -> str:
    """`report` at the end of a run, which no fault of the page may fail; what there is to say."""
    if (folder / NAME).exists():
        return ""
    try:
        return f"report: {report(folder, trust=trust)}"
    except Exception as error:  # the run is finished, whatever became of its page
        return str(error) if isinstance(error, ConfigError) else f"no report.html: {error!r}"


def renew(folder: Path, *, trust: bool) -> str:
    """The page again, with what has been found since, if there is one."""
    there = folder / NAME
    if not there.exists():
        return ""
    there.unlink()
    return leave(folder, trust=trust)


def _made(made: Mapping[str, Any]) -> dict[str, str]:
    """The lines of `provenance.json` that a reader looks for."""
    versions = made.get("versions", {})
    return {**{name: str(made[name]) for name in ("date", "machine") if name in made}, **versions}


def options(parser: ArgumentParser) -> None:
    """The options of `report`."""
    parser.add_argument("--trust", action="store_true", help="call whatever prior config.yaml names")


def main() -> None:
    """The command line."""
    folder_command("experiments.report", __doc__, report, options)


if __name__ == "__main__":
    main()
