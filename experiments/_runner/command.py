"""The command line of an experiment: `python -m experiments.NAME [key=value ...]`."""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments._runner.build import (
    KNOWN,
    LONGEST,
    NOT_OF_THE_RUN,
    ConfigError,
    changes,
    innermost,
    key_of,
    with_place,
)
from pyrobbb._support.checks import meant
from pyrobbb._support.process_group import LostProcessError
from pyrobbb._support.standard_output import quiet_if_unread
from pyrobbb.training.trainer import NonFiniteLossError

T = TypeVar("T")
TOLD = (ValueError, NonFiniteLossError, LostProcessError, OSError, HydraException, OmegaConfBaseException)
Options = Callable[[argparse.ArgumentParser], object]
RESUMES = "; the same command resumes from the last checkpoint, or begins again if there is none"
FOLDER = """\
folder=F says where the results go, otherwise to a folder of runs/ named after the experiment and what you
change; the same command again resumes where it stopped."""


def some(key: str, values: Sequence[object], *, empty: bool = False) -> None:
    """ConfigError if a list is empty, unless it may be, or names a value twice, which would count once."""
    if not values and not empty:
        raise ConfigError(f"{key}: must name at least one, got []")
    if twice := [value for i, value in enumerate(values) if value in values[:i]]:
        raise ConfigError(f"{key}: {twice[0]} is named twice")


def settings(kind: type[T], arguments: Sequence[str]) -> tuple[T, list[str]]:
    """An experiment's own settings, changed by `key=value`, and the other arguments, for its runs."""
    every_field = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    known = list(every_field)
    every = {*known, *KNOWN, *NOT_OF_THE_RUN}
    for key in map(key_of, arguments):
        if key.startswith("hydra."):
            raise ConfigError(f"{key}: a study is not a Hydra job; folder=runs/mine says where results go")
        if "." not in key and key not in every:
            own_keys = f"; this experiment's own are {', '.join(known)}" * bool(known)
            raise ConfigError(f"{key}: there is no such key{meant(key, every) or own_keys}")
    own = [a for a in arguments if key_of(a) in known]
    try:
        chosen = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.from_cli(own)))
    except OmegaConfBaseException as error:
        raise ConfigError(innermost(error)) from error
    assert isinstance(chosen, kind)
    for key in map(key_of, own):
        if isinstance(value := getattr(chosen, key), list):
            some(key, value, empty="empty" in every_field[key].metadata)
    return chosen, [a for a in arguments if a not in own]


def place(arguments: Sequence[str], default: str) -> Path:
    """The folder for an experiment's results: the last `folder=F`; else `default` and what is changed."""
    words = [a for a in arguments if a.startswith("folder=")]
    if not words:
        name = changes(arguments)
        return Path(f"{default},{name}" if name else default)  # no folder of `experiments.run`'s
    folder = words[-1].partition("=")[2]
    if not folder:
        raise ConfigError("folder: it has no name; write folder=runs/mine")
    return Path(folder)


def part_of(asked: object, whole: object, keys: Sequence[str]) -> str:
    """`rows=sgd+mixture,seeds=1`: how a part of a study differs from the whole in `keys`, as a folder's name.

    Tables and figures of a part go there, so that those of the whole stay; the fits themselves are shared.
    Lists that are too long for a name are counted, beside a few digits of their hash: `methods=17,0fe1c2`.
    """
    lists = {key: (list(getattr(asked, key)), list(getattr(whole, key))) for key in keys}
    parts = {key: own for key, (own, every) in lists.items() if own != every}
    name = ",".join(f"{key}={'+'.join(map(str, own))}" for key, own in parts.items())
    name = name.replace("/", "_").replace(" ", "")
    if len(name.encode()) <= LONGEST:
        return name
    counts = (f"{key}={len(own)}" for key, own in parts.items())
    return ",".join([*counts, sha256(name.encode()).hexdigest()[:6]])


def refuse(arguments: Sequence[str], keys: Sequence[str], instead: str) -> None:
    """ConfigError for a key that the experiment sets itself, for the user's value would be ignored."""
    for argument in arguments:
        key = key_of(argument)
        if any(key == own or key.startswith(f"{own}.") for own in keys):
            raise ConfigError(f"{key}: this experiment sets it itself; {instead}")


@contextmanager
def ended_in_a_line(after: str = "", speaks: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """End the program with a line on stderr for bad input (2) or Ctrl-C (130), of which `after` says more.

    Of several processes the one that `speaks` says it.
    """
    try:
        with quiet_if_unread():
            yield
    except TOLD as error:
        if speaks():
            print(f"error: {with_place(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        if speaks():
            print(f"\ninterrupted{after}", file=sys.stderr)
        sys.exit(130)


def folder_command(
    name: str, doc: str | None, report: Callable[..., str], options: Options | None = None
) -> None:
    """The command line `python -m NAME FOLDER ...`: print `report` of each folder, or one line for bad input.

    `options` adds arguments to the parser; they go to `report` by name.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=doc)
    parser.add_argument("folder", nargs="+", type=Path, help="such as runs/mnist/default")
    if options:
        options(parser)
    arguments = vars(parser.parse_args())
    with ended_in_a_line():
        for folder in arguments.pop("folder"):
            print(report(folder, **arguments))


def trust_option(parser: argparse.ArgumentParser) -> None:
    """The option of a command that opens a run folder."""
    parser.add_argument("--trust", action="store_true", help="call whatever parts config.yaml names")


def command(main: Callable[[list[str]], object], doc: str | None) -> None:
    """Run `main` on the `key=value` words given; one line for bad input, and `doc` for `--help`."""
    arguments = sys.argv[1:]
    with ended_in_a_line(RESUMES):
        if {"-h", "--help"} & set(arguments):
            print(f"{inspect.cleandoc(doc or '')}\n\n{FOLDER}")
            return
        for argument in arguments:
            if argument.startswith("-") or "=" not in argument:
                raise ConfigError(f"{argument!r} is not a key=value, such as folder=runs/mine; see --help")
        main(arguments)
