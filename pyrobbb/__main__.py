"""The command `pyrobbb`: the commands of a checkout, and completion for the shell."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pyrobbb import __version__
from pyrobbb._support.standard_output import quiet_if_unread

COMMANDS = ("run", "analyse", "check", "report", "summarise")
SHELLS = ("bash", "zsh", "fish")
HELP = """usage: pyrobbb COMMAND ...

  run KEY=VALUE ...     fit one run, or many with -m; the same command resumes
  analyse FOLDER ...    figures and report of a run folder
  check FOLDER ...      whether a fit can be trusted
  report FOLDER ...     one page for a run, report.html
  summarise FOLDER ...  rank all runs beneath a folder
  completion SHELL      print what bash, zsh or fish needs for TAB

pyrobbb COMMAND --help says more."""
NO_CHECKOUT = """error: the commands belong to the repository's experiments/, which the wheel does not carry:
clone it and run pip install -e '.[experiments]' there. The library needs none of them."""


def main() -> None:
    """Run the command that the first argument names."""
    word, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if word in COMMANDS:
        sys.argv = [f"pyrobbb {word}", *rest]
        _imported(word).main()
        return
    try:
        with quiet_if_unread():
            print(_said(word, rest))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _said(word: str, rest: list[str]) -> str:
    if word in ("-h", "--help"):
        return HELP
    if word == "--version":
        return f"pyrobbb {__version__}"
    if word == "completion" and len(rest) == 1 and rest[0] in SHELLS:
        folder = Path(_imported("_runner").__file__).parent.parent  # quick: a shell asks whenever it starts
        return (folder / f"completion.{rest[0]}").read_text(encoding="utf-8").removesuffix("\n")
    _refuse(word, rest)


def _refuse(word: str, rest: list[str]) -> NoReturn:
    from pyrobbb._support.checks import meant  # torch comes with it, for which no completion should wait

    usage, near = "pyrobbb --help", meant(word, (*COMMANDS, "completion"))
    if word == "completion":
        usage, near = f"pyrobbb completion {'|'.join(SHELLS)}", meant(" ".join(rest), SHELLS)
    print(f"error: {' '.join(sys.argv[1:])!r} is not a command; see {usage}{near}", file=sys.stderr)
    sys.exit(2)


def _imported(name: str) -> Any:
    """A module of the commands; one message where the checkout or its extra is not installed."""
    try:
        return import_module(f"experiments.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("experiments", "hydra", "omegaconf"):
            raise
        print(NO_CHECKOUT, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
