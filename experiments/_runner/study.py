"""The shape that all studies share: settings and overrides in, fits in one folder, tables and figures out.

STUDY = Study("experiments.paper.closed_form", "closed_form", Settings, sets=("seed",), parts=("seeds",))

def main(arguments):
    chosen, overrides, out = STUDY.begin(arguments)
    ...                                   # the fits, in folders of their own in out.fits
    out.record({"seeds": chosen.seeds, "found": found})
    out.end(report(found))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from experiments._runner.build import key_of
from experiments._runner.command import part_of, place, refuse, settings
from experiments._runner.record import command_line, write_record
from pyrobbb._support import checks
from pyrobbb._support.files import make_folder
from pyrobbb.figures.style import save

S = TypeVar("S")
SMALL = ("data=blobs", "data.features=20", "model.hidden=[8]", "epochs=2", "batch_size=100")


@dataclass(frozen=True)
class NoSettings:
    """For an experiment whose keys are all of its runs."""


@dataclass(frozen=True)
class Study(Generic[S]):
    """A study's settings and where it writes.

    Args:
        module: As it is started, `python -m MODULE`.
        name: Of its folder in `runs/`; `{preset}` stands for the setting of that name.
        settings: The dataclass of its own settings; one named `quick` shrinks the study.
        sets: Keys of a run that the study sets itself, and refuses.
        instead: What to use instead of them.
        parts: Settings that choose a part of the study: its tables and figures have a folder within.
        named: Settings that change the fits, so that another value means another folder.
        small: The overrides of `quick=true`.
        quick: Its settings, where they are not given.
        fixed: Settings that `quick=true`, on synthetic data, refuses.
        choices: What some settings may name: one of these, or a list of some.
        counts: Settings that are whole numbers of at least 1.
    """

    module: str
    name: str
    settings: type[S]
    sets: Sequence[str] = ()
    instead: str = ""
    parts: Sequence[str] = ()
    named: Sequence[str] = ()
    small: Sequence[str] = SMALL
    quick: Mapping[str, Any] = field(default_factory=dict)
    fixed: Sequence[str] = ()
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    counts: Sequence[str] = ()

    def begin(self, arguments: Sequence[str]) -> tuple[S, list[str], Outputs]:
        """The settings, the overrides for every run, and where results go."""
        chosen, rest = settings(self.settings, arguments)
        for key, names in self.choices.items():
            value = getattr(chosen, key)
            checks.each_of(key, [value] if isinstance(value, str) else value, names)
        for key in self.counts:
            checks.count(key, getattr(chosen, key))
        usual, quick = self.settings(), getattr(chosen, "quick", False)
        if quick:
            refuse(arguments, self.fixed, "quick=true has its own")
            given = set(map(key_of, arguments))
            shrunk = {key: value for key, value in self.quick.items() if key not in given}
            usual = replace(usual, **self.quick)  # type: ignore[type-var]
            chosen = replace(chosen, **shrunk)  # type: ignore[type-var]
        default = f"runs/{self.name}".format(**vars(chosen)) + ("/quick" if quick else "")
        differing = (key for key in self.named if getattr(chosen, key) != getattr(usual, key))
        changed = [f"{key}={getattr(chosen, key)}" for key in differing]
        folder = place([*rest, *changed], default)
        overrides = [word for word in rest if not word.startswith("folder=")]
        refuse(overrides, self.sets, self.instead)
        out = Outputs(folder, part_of(chosen, usual, self.parts), command_line(self.module, arguments))
        return chosen, [*(self.small if quick else ()), *overrides], out


class Outputs:
    """The files of a study: tables, numbers and figures, each written whole and named at the end.

    Args:
        fits: The study's folder, with the folders of its fits.
        part: The folder within it for what is written here; empty for the whole study.
        command: What makes them, for the record.
    """

    def __init__(self, fits: Path, part: str = "", command: str = "") -> None:
        self.fits, self.folder, self.command = fits, fits / part, command
        self.names: list[str] = []

    def path(self, name: str) -> Path:
        """Where to write a file of that name."""
        make_folder(self.folder)
        if name not in self.names:
            self.names.append(name)
        return self.folder / name

    def record(self, content: Mapping[str, Any]) -> None:
        """`record.json`: what was found, and how."""
        write_record(self.path("record.json"), self.command, content)

    def figure(self, name: str, figure: Figure) -> None:
        """A figure."""
        save(figure, self.path(name))

    def end(self, words: str, note: str = "") -> None:
        """Print the report, and which files there are."""
        print(words)
        print(f"{self.folder}: {', '.join(self.names)}{note}")
