"""Where the checkout and the files that tests read lie."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = Path(__file__).resolve().parent / "files"
PYTHONPATH = os.pathsep.join([str(ROOT), str(FILES.parent)])  # for a process that takes parts of the tests
