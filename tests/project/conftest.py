"""The documentation site, built once for all tests that open it, with several workers too."""

import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

from commands import interpreter

NEEDED = ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "sklearn", "altair")  # the extra `docs`
ARGUMENTS = ("-b", "html", "-W", "--keep-going", "-q")  # as `make docs` has them


@dataclass(frozen=True)
class Site:
    """Where it is, whether Sphinx found no fault, and what it said."""

    folder: Path
    sound: bool
    said: str


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Site:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"the extra `docs` is not installed: there is no {', '.join(missing)}")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, kept = shared / "site", shared / "site.json"
    with FileLock(str(shared / "site.lock")):
        if not kept.exists():
            done = interpreter("-m", "sphinx", *ARGUMENTS, "docs", str(folder), status=None)
            kept.write_text(json.dumps([done.returncode == 0, done.stdout + done.stderr]))
    return Site(folder, *json.loads(kept.read_text()))
