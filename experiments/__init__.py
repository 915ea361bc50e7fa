"""The composition root: commands, and YAML declarations by name.

`models` and `guides` in a declaration are the folders beside this one, also where the working directory has
a `models.py` or `guides/` of its own: they are imported here, before any declaration is read.
"""

import sys
from importlib import import_module
from pathlib import Path

_CHECKOUT = str(Path(__file__).resolve().parent.parent)

sys.path.insert(0, _CHECKOUT)
try:
    for _name in ("models", "guides"):
        import_module(_name)
finally:
    sys.path.remove(_CHECKOUT)
