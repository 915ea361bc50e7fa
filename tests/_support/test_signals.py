"""Signals wait for the end of a step, and the handlers that were there come back."""

import os
import signal
import threading

import pytest

from pyrobbb._support.signals import Interrupt

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@BOTH
def test_a_first_signal_is_only_noted(number: int) -> None:
    with Interrupt() as interrupt:
        interrupt.check()
        send(number)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


@BOTH
def test_a_second_signal_raises_at_once(number: int) -> None:
    with Interrupt():
        send(number)
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_the_handlers_come_back() -> None:
    seen: list[int] = []
    before = {
        n: signal.signal(n, lambda number, frame: seen.append(number))
        for n in (signal.SIGINT, signal.SIGTERM)
    }

    def noted_and_broken() -> None:
        with Interrupt():
            send(signal.SIGTERM)
            raise RuntimeError("inside")

    try:
        with pytest.raises(RuntimeError, match="inside"):
            noted_and_broken()
        assert seen == []
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert seen == [signal.SIGINT, signal.SIGTERM]
        with Interrupt() as interrupt:  # and it forgets
            interrupt.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_ignored_signals_are_ignored_again() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_a_host_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python says None for what C installed, and cannot restore it."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with Interrupt():
        monkeypatch.undo()
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_outside_the_main_thread_it_does_nothing() -> None:
    outcome: list[object] = []

    def work() -> None:
        try:
            with Interrupt() as interrupt:
                interrupt.check()
            outcome.append("done")
        except BaseException as error:
            outcome.append(error)

    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == ["done"]
    assert signal.getsignal(signal.SIGINT) is handler


@BOTH
def test_a_first_signal_raises_at_once_where_work_may_be_given_up(number: int) -> None:
    with Interrupt() as interrupt:
        interrupt.at_once = True
        with pytest.raises(KeyboardInterrupt):
            send(number)
