"""Ctrl-C and SIGTERM between two steps, never within one: what is saved then is consistent."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While active, a first SIGINT or SIGTERM is only noted; `check` raises KeyboardInterrupt for it.

    A second signal raises at once, as the first does while `at_once` is set. Outside the main thread, where
    Python delivers no signals, it does nothing. The previous handlers are restored at the end.

    Args:
        ignore_repeats: Only note a second signal, too: `torchrun` forwards to its processes what the
            terminal has already sent them.
    """

    def __init__(self, *, ignore_repeats: bool = False) -> None:
        self.ignore_repeats = ignore_repeats

    def __enter__(self) -> Interrupt:
        self.noted = self.at_once = False
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not None:  # a host program's own, which cannot be put back
                    self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        raises = (self.noted or self.at_once) and not self.ignore_repeats
        self.noted = True
        if raises:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self.noted:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
