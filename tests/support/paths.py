"""Where the checkout and the files that tests read lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = Path(__file__).resolve().parent / "files"
