"""`python -m experiments.results [ROOT]`: the documents' tables and figures, from `docs/records/*.json`.

In README.md and the pages of docs/ what stands between `<!-- NAME -->` and `<!-- /NAME -->` is replaced by
the text of that name (`TEXTS`), and the figures under docs/figures/ are drawn again.
`docs/records/bound.json` has the rows of all runs of the bound in one.
Nothing is run: a number without a record is not there.
"""

import argparse
import re
from pathlib import Path

from experiments._runner.command import ended_in_a_line
from experiments.results.claims import CLAIMS
from experiments.results.examples import EXAMPLES
from experiments.results.figures import FIGURES, SOURCES
from experiments.results.records import Records, Text
from experiments.results.tables import TABLES
from pyrobbb._support.files import make_folder, write_json, write_text
from pyrobbb.figures.style import save

TEXTS: dict[str, Text] = {**TABLES, **CLAIMS, **EXAMPLES, **SOURCES}
MARKED = re.compile(r"(<!-- ([\w.-]+) -->)(.*?)(<!-- /\2 -->)", re.DOTALL)


def filled(page: str, records: Records) -> str:
    """The page with every marked place filled anew."""

    def text(found: re.Match[str]) -> str:
        name = found[2]
        if name not in TEXTS:
            raise ValueError(f"there is no text named {name!r}; there are {', '.join(TEXTS)}")
        break_ = "\n" if found[3].startswith("\n") else ""  # a block on lines of its own, or within a line
        return f"{found[1]}{break_}{TEXTS[name](records)}{break_}{found[4]}"

    return MARKED.sub(text, page)


def make(root: Path) -> list[Path]:
    """Fill the pages and draw the figures under `root`; returns the files."""
    if not (root / "docs" / "records").is_dir():
        raise NotADirectoryError(f"{root} is not this repository: it has no folder docs/records")
    records = Records(root / "docs" / "records")
    written = []
    bound = records.get("bound_mnist")  # which was run in parts
    if bound is not None:
        written.append(records.folder / "bound.json")
        write_json(written[-1], {"made from": "bound_mnist", "rows": bound["rows"]})
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        before = page.read_text(encoding="utf-8")
        if MARKED.search(before):
            write_text(page, filled(before, records))
            written.append(page)
    make_folder(root / "docs" / "figures")
    for name, draw in FIGURES.items():
        figure = draw(records)
        if figure is not None:
            written.append(root / "docs" / "figures" / f"{name}.png")
            save(figure, written[-1])
    return written


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.results", description=__doc__)
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(), help="of the repository; here by default"
    )
    root = parser.parse_args().root
    with ended_in_a_line():
        for path in make(root):
            print(path)


if __name__ == "__main__":
    main()
