"""The composition root: commands, and YAML declarations by name.

`models` and `guides` in a declaration are the folders next to this one, even if the working folder has a
`models.py` or `guides/` of its own: they are imported here, before any declaration is read. What lies in a
user's own `models/` or `guides/` is found as well, after ours; every other module of the working folder is
importable too.
"""

import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments._runner.reopen import reopen as reopen


def _in_a_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C or SIGTERM before a command has its own answer to it, which takes seconds of imports."""
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv and sys.argv[0].startswith(("-m", "pyrobbb ")):  # a command starts, and nobody's own program
    sys.excepthook = _in_a_line
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # which would end it without a word
        signal.signal(signal.SIGTERM, signal.default_int_handler)

if find_spec("hydra") is None:
    raise ModuleNotFoundError("experiments/ needs Hydra: pip install -e '.[experiments]'", name="hydra")

_CHECKOUT = str(Path(__file__).resolve().parent.parent)

sys.path.insert(0, _CHECKOUT)
try:
    for _name in ("models", "guides"):
        _package = import_module(_name)
        if Path.cwd() != Path(_CHECKOUT):
            _package.__path__.append(str(Path.cwd() / _name))
finally:
    sys.path.remove(_CHECKOUT)
if str(Path.cwd()) not in sys.path:  # where a launcher's worker or an installed script did not put it
    sys.path.append(str(Path.cwd()))


def __getattr__(name: str) -> Any:
    """`reopen`, whose imports take seconds that only those who call it should wait for."""
    if name != "reopen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("experiments._runner.reopen").reopen
