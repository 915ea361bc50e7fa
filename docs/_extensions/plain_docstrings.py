"""Docstrings are written to be read in the source: their asterisks and bars are not markup.

A package's own is followed by the names that it exports, whose entries are on other pages.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

CODE = re.compile(r"(``.*?``|`[^`]*`)", re.DOTALL)


def escaped(text: str) -> str:
    """`text` with `*` and `|` outside code taken as they are; lines of code and names of arguments stay."""
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"(?<!\\)[*|]+(?!\w+: )", _literal, part) for part in parts[::2]]
    return "".join(parts)


def _literal(found: re.Match[str]) -> str:
    return "".join(f"\\{character}" for character in found[0])


def homes(package: Any) -> list[str]:
    """A list of the names that users import from a package, each a link to where it is documented."""
    found = {
        name: getattr(getattr(package, name), "__module__", "") for name in getattr(package, "__all__", ())
    }
    links = [f"- :py:obj:`{package.__name__}.{name} <{home}.{name}>`" for name, home in found.items() if home]
    return ["", *links, ""]


def process(app: Any, what: str, name: str, kind: Any, options: Any, lines: list[str]) -> None:
    """Change the lines of a docstring in place, before napoleon reads them."""
    if what == "attribute" and isinstance(kind, partial):
        lines.clear()  # newer Sphinx takes those of the function that the default calls
    prose = re.split(r"(\n\s*\n)", "\n".join(lines))
    kept = [block if ">>>" in block or "::" in block else escaped(block) for block in prose]
    lines[:] = "".join(kept).split("\n")
    if hasattr(kind, "__path__"):
        lines += homes(kind)
    if what in ("property", "attribute"):
        lines.insert(0, "")  # else napoleon takes what stands before a colon for a type


def skip(app: Any, what: str, name: str, thing: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to an estimator: its text links into scikit-learn's own pages."""
    return True if str(getattr(thing, "__module__", "")).startswith("sklearn.") else None


def setup(app: Any) -> dict[str, bool]:
    """Connect it ahead of napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
