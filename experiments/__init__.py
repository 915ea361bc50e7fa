"""The composition root: commands, and YAML declarations by name.

Every module of the working folder can be imported, `models` and `guides` among them: our declarations name
only parts of `pyrobbb` and `experiments`. The checkout's own `models/` and `guides/` have no `__init__.py`,
so that a user's come first, with or without one.
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

_CHECKOUT, _HERE = str(Path(__file__).resolve().parent.parent), str(Path.cwd())
if _HERE not in sys.path:  # where a launcher's worker or an installed script did not put it
    sys.path.insert(sys.path.index(_CHECKOUT) if _CHECKOUT in sys.path else len(sys.path), _HERE)


def __getattr__(name: str) -> Any:
    """`reopen`, whose imports take seconds that only those who call it should wait for."""
    if name != "reopen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("experiments._runner.reopen").reopen
