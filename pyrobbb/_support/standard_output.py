"""What a command prints: it ends by one rule where nobody reads it, or where it cannot be written."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyrobbb._support.files import named_errors


@contextmanager
def quiet_if_unread() -> Iterator[None]:
    """End the program without a word (141) where nobody reads on what it prints, as after `| head`.

    What stdout's encoding has not is printed as an escape: a finished command does not fail at its words.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    ended = False
    try:
        yield
        ended = True
        with named_errors("standard output"):
            print(end="", flush=True)  # here, not at Python's own end; nothing where stdout is closed
    except OSError as error:
        unread = isinstance(error, BrokenPipeError)
        if ended or unread:  # it would fail again at Python's own end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if unread:
            sys.exit(141)
        raise
