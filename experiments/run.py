"""Fit a Bayesian neural network: `python -m experiments.run experiment=mnist prior=normal seed=3`."""

import errno
import math
import os
import re
import sys
import warnings
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from omegaconf import DictConfig

from experiments import analyse
from experiments import report as page
from experiments._runner import schema
from experiments._runner.build import ConfigError, build, declarations, loggers
from experiments._runner.command import RESUMES, ended_in_a_line
from experiments._runner.folder import CLAIMING, claimed, read_metrics
from experiments._runner.own_parts import (
    drop_inherited,
    given_to_hydra,
    loaded,
    method_of,
    own_content,
    rename_moved,
    restore_swapped,
    unused,
)
from experiments._runner.record import provenance, run_command
from experiments._runner.reopen import check_finished
from experiments._runner.sweep import ERROR, attempt, in_sweep
from pyrobbb._support.device import best_device
from pyrobbb._support.files import locked, remove_partial_files
from pyrobbb._support.process_group import SINGLE, ProcessGroup, joined
from pyrobbb._support.settings import flat
from pyrobbb._support.standard_output import quiet_if_unread
from pyrobbb._support.text import one_line
from pyrobbb.priors import Deterministic
from pyrobbb.training.progress import Printed, Silent

schema.register()


def execute(
    config: DictConfig, ranks: ProcessGroup = SINGLE, *, quiet: bool = False, given: Collection[str] = ()
) -> dict[str, Any]:
    """Fit what `config` describes, or resume it, and return the metrics (empty but in the first process).

    A note names what the user has `given` without effect.
    """
    run = build(config)
    analyse.sentence(config.get("published", ""))  # an error in it is raised before the run
    point = isinstance(run.prior, Deterministic)
    idle = sorted(unused(config).intersection(given))
    if idle and ranks.is_main:
        method = "a point estimate" if point else method_of(config).__name__
        print(f"note: {method} does not use {', '.join(idle)}", file=sys.stderr)
    with claimed(config) if ranks.is_main else nullcontext(Path(config.folder)) as folder:
        results = ("metrics.json",) if point else ("metrics.json", "posterior.nc")
        finished = all((folder / name).exists() and (folder / name).stat().st_size for name in results)
        if not ranks.from_main(finished):
            error = run.likelihood.prediction.error
            shown = Silent() if quiet else Printed(error=f", validation {error.name} {error.format}")
            run.execute(folder, shown, ranks, loggers(config), provenance=provenance(run_command()))
    if not ranks.is_main:
        return {}
    metrics = read_metrics(folder)
    if finished:
        check_finished(folder, config)
        if not quiet:
            print(f"{folder} is finished; remove it to run it again")
    left = ""
    try:
        with locked(folder):
            left = _draw(config, folder, finished=finished)
    except BlockingIOError:
        if any(_missing(config, folder)):
            print(f"note: no figures were drawn, as another process is working in {folder}", file=sys.stderr)
    except OSError as error:
        if not finished or error.errno not in (errno.EROFS, errno.EACCES):
            raise
        if any(_missing(config, folder)):
            print(f"note: {error}", file=sys.stderr)  # somebody else's folder
    if not quiet:
        print(analyse.report(folder))
        print(left, end="\n" if left else "")
    return metrics


def _missing(config: DictConfig, folder: Path) -> tuple[bool, bool]:
    """Whether figures and page of a run are asked for and not there."""
    bayesian = (folder / "posterior.nc").exists()  # a point estimate has no posterior to analyse
    figures = config.get("figures", True) and bayesian and not analyse.has_figures(folder)
    return figures, config.get("report", True) and not (folder / page.NAME).exists()


def _draw(config: DictConfig, folder: Path, *, finished: bool) -> str:
    """The figures and the page that are not there yet; what there is to say of them."""
    for place in (folder, folder / "figures"):  # a command killed at either left parts
        remove_partial_files(place)
    for name in (ERROR, CLAIMING):  # and at a claim its lock
        (folder / name).unlink(missing_ok=True)
    figures, report = _missing(config, folder)
    if figures:
        analyse.figures(folder, trust=True)  # of this very configuration
    if report or (config.get("report", True) and not finished):
        return page.leave(folder, trust=True)
    return ""


@hydra.main(version_base="1.3", config_path=".", config_name="run")
def hydra_main(config: DictConfig) -> float:
    """One job; returns the validation error (or root mean squared error), for sweepers that search."""
    schema.register()  # a launcher's worker process has not run this file
    ranks = SINGLE
    with ended_in_a_line(RESUMES, speaks=lambda: ranks.speaks()):
        words, own = given_to_hydra()
        rename_moved(config)
        restore_swapped(config, "run", words, own)  # on which a file of the user's builds
        drop_inherited(config, own)
        if "data" in own and own["data"] != {"root"} and "published" not in own:
            config.published = ""  # of other data
        if in_sweep():
            return attempt(config, lambda: execute(config, quiet=True, given=own))
        with joined(best_device(config.get("device"))) as ranks:
            execute(config, ranks, given=own)
    return math.nan  # of a single job nobody asks; those of a sweep are `attempt`'s


def check_argument(argument: str) -> None:
    """ConfigError for a `key=value` to which Hydra's own error would name no key."""
    key, equals, _ = argument.partition("=")
    kinds = {field.name: field.type for field in fields(schema.run_schema())}
    if argument.startswith("-"):  # an option of Hydra's
        if (plain := key.lstrip("-")).partition(".")[0] in kinds:
            raise ConfigError(f"{argument}: a key has no dashes, write {plain}=...")
        return
    if not equals:
        if argument.startswith("~"):
            return
        raise ConfigError(f"{argument!r} is neither key=value nor the first YAML file; see --help")
    name = key.strip("+~ ")
    if not name:
        raise ConfigError(f"{argument!r} has no key; write key=value")
    try:
        value = OverridesParser.create().parse_override(argument).value()
    except Exception as error:  # Hydra's, or its lexer's own
        raise ConfigError(
            f"{argument} cannot be read: {one_line(error, 80)}; if its value has spaces, brackets or letters "
            f"beyond English, quote it, \"{key}='...'\""
        ) from error
    if kinds.get(name) is bool and isinstance(value, int) and value not in (0, 1):  # Hydra takes any number
        raise ConfigError(f"{name} must be true or false, got {value}")
    names = [path.stem for path in declarations(name)]
    if not names:  # not a group of components
        return
    if not isinstance(value, str | list | Sweep):
        if isinstance(value, dict):
            plus = "+" * argument.startswith("+")
            each = " ".join(f"{plus}{k}={v}" for k, v in flat({name: value}).items())
            raise ConfigError(f"{argument}: keys of {name} are given one by one, {each}")
        word = "null" if value is None else value
        raise ConfigError(f"{name}: {word} is not a name; there are {', '.join(names)}")


def own_file(argument: str) -> list[str]:
    """Hydra's options for the user's own configuration file."""
    path = Path(argument).absolute()  # a link goes by its own name
    if not path.is_file():
        raise ConfigError(f"{argument} " + ("is not a file" if path.exists() else "does not exist"))
    defaults = loaded(path).get("defaults")
    if not isinstance(defaults, list) or defaults[:1] != ["run"]:
        raise ConfigError(f"{argument} needs a list `defaults:` with `- run` as its first entry")
    if path.stem in {own.stem for own in declarations()} | {"schema"}:
        raise ConfigError(f"{argument}: {path.stem} is the name of a configuration here; give yours another")
    if path.suffix != ".yaml":
        raise ConfigError(f"{argument}: the name of a configuration ends in .yaml; rename it")
    own_content(path.parent, path.stem)
    return ["--config-dir", str(path.parent), "--config-name", path.stem]


def main() -> None:
    """The command line; a first argument `file.yaml` is the user's own configuration."""
    arguments, given = sys.argv[1:], "HYDRA_FULL_ERROR" in os.environ
    try:
        # a sweep also ends between two jobs, or while they run elsewhere
        with quiet_if_unread() if given else ended_in_a_line(RESUMES):
            for i, argument in enumerate(arguments):
                named = "=" not in argument or Path(argument).is_file()
                if argument.endswith((".yaml", ".yml")) and named and argument[0] != "-":
                    arguments[i : i + 1] = own_file(argument)
                    break
            for before, argument in pairwise(["", *arguments]):
                if not before.startswith("--"):  # whose value it may be
                    check_argument(argument)
            if "COMP_LINE" in os.environ:  # a shell asks what completes it; a file's name is not Hydra's
                os.environ["COMP_LINE"] = re.sub(r" [^ =]+\.ya?ml(?= )", "", os.environ["COMP_LINE"])
            multirun = ("-m", "--multirun")  # which Hydra takes first or last alone
            sys.argv[1:] = sorted(arguments, key=lambda word: word not in multirun)
            os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else Hydra prints many lines, and exits, itself
            # without it a file's own content comes last, as one would expect
            warnings.filterwarnings("ignore", r".*Defaults list is missing `_self_`")
            hydra_main()
    finally:
        if not given:
            os.environ.pop("HYDRA_FULL_ERROR", None)


if __name__ == "__main__":
    main()
