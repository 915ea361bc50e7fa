"""`python -m experiments.results.examples [PAGE ...]`: what the examples of tutorials and how-tos print.

Runs the Python of each page that shows what it prints, as a reader would, and keeps it in
`docs/records/examples.json`. `make results` puts the output of the K-th block of PAGE.md between
`<!-- printed.PAGE.K -->` and `<!-- /printed.PAGE.K -->`. With names of pages, only those are run again.
"""

import argparse
import re
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from experiments._runner.command import ended_in_a_line
from experiments._runner.record import write_record
from experiments.results.records import NONE, Record, Text, of
from pyrobbb._support.files import read_json

DOCS = Path(__file__).parents[2] / "docs"
RECORD = DOCS / "records" / "examples.json"
MARK = re.compile(r"<!-- printed\.([\w-]+)\.(\d+) -->")
EXTRAS = {"sklearn": ("sklearn",), "onnxruntime": ("onnxruntime", "onnxscript")}  # what an import needs


def pages() -> list[Path]:
    """Tutorials and how-tos with Python in them."""
    every = (page for folder in ("tutorials", "howto") for page in sorted((DOCS / folder).glob("*.md")))
    return [page for page in every if blocks_of(page)]


def blocks_of(page: Path) -> list[str]:
    """The blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def lacks(code: str) -> str | None:
    """The package of an extra that a block imports and that is not installed."""
    imported = re.findall(r"^(?:import|from) (\w+)", code, re.M)
    needed = [name for package in imported for name in EXTRAS.get(package, ())]
    return next((name for name in needed if find_spec(name) is None), None)


def run(page: Path) -> tuple[dict[str, Any], list[str]]:
    """The names that a page's blocks leave, run one after the other, and what each printed.

    A block that imports what is not installed is left out. Files are written to the working folder.
    """
    names: dict[str, Any] = {"__name__": page.stem}
    printed = []
    for code in blocks_of(page):
        with redirect_stdout(StringIO()) as out:
            if not lacks(code):
                exec(compile(code, str(page), "exec"), names)
        printed.append(out.getvalue().rstrip())
    return names, printed


def shown(page: Path) -> list[int]:
    """The blocks of a page, counted from 1, whose output it shows."""
    return [int(found[2]) for found in MARK.finditer(page.read_text(encoding="utf-8"))]


def output(page: str, block: int, record: Record) -> str:
    """What a block printed, as a block."""
    printed = record["pages"].get(page, {}).get(str(block))
    return NONE if printed is None else f"```\n{printed}\n```"


EXAMPLES: dict[str, Text] = {
    f"printed.{page.stem}.{block}": of("examples", partial(output, page.stem, block), NONE)
    for page in pages()
    for block in shown(page)
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pages that are named, or all, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.results.examples", description=__doc__)
    parser.add_argument("page", nargs="*", help="such as callbacks; all by default")
    only = parser.parse_args(arguments).page
    named = {page.stem: page for page in pages() if shown(page)}
    unknown = [name for name in only if name not in named]
    if unknown:
        raise ValueError(f"no page that shows its output is named {unknown[0]}; there are {', '.join(named)}")
    found = read_json(RECORD).get("pages", {})
    for name in only or named:
        if (lacking := next(filter(None, map(lacks, blocks_of(named[name]))), None)) is not None:
            raise ValueError(f"the examples of {name} need {lacking}, which is not installed")
        with TemporaryDirectory() as folder, chdir(folder), torch.random.fork_rng():
            printed = run(named[name])[1]
        found[name] = {str(block): printed[block - 1] for block in shown(named[name])}
        print(name)
    kept = {name: found[name] for name in named if name in found}
    write_record(RECORD, "python -m experiments.results.examples", {"pages": kept})


if __name__ == "__main__":
    with ended_in_a_line():
        main()
