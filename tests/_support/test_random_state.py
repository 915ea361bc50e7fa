"""Work inside `isolated` leaves no trace outside, and its own random numbers depend on its seed alone."""

import os
import signal
import threading
import time
from itertools import product

import numpy as np
import pyro
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import law, nothing_changes
from pyrobbb._support.random_state import isolated, mixed_seed, random_state, set_random_state


def test_everything_is_put_back_after_an_error_too() -> None:
    def mess() -> None:
        with isolated(3):
            torch.randn(10)
            pyro.param("a", torch.zeros(2))
            pyro.enable_validation(False)
            raise RuntimeError("inside")

    with nothing_changes(), pytest.raises(RuntimeError, match="inside"):
        mess()


def test_the_param_store_is_empty_inside_and_as_it_was_outside() -> None:
    pyro.get_param_store().clear()
    pyro.param("mine", torch.tensor(3.0))
    try:
        with isolated():
            assert list(pyro.get_param_store()) == []
            pyro.param("mine", torch.tensor(4.0))
            with isolated():
                assert list(pyro.get_param_store()) == []
            assert pyro.param("mine").item() == 4.0
        assert pyro.param("mine").item() == 3.0
    finally:
        pyro.get_param_store().clear()


@pytest.mark.parametrize("outside", [True, False])
def test_validation_is_off_inside_and_as_before_outside(outside: bool) -> None:
    with pyro.validation_enabled(outside):
        with isolated():
            assert not pyro.distributions.is_validation_enabled()
            assert not pyro.distributions.Normal(0.0, 1.0)._validate_args
        assert pyro.distributions.is_validation_enabled() is outside


@law
@given(st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_the_seed_alone_decides(seed: int, outer: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(outer)
        with isolated(seed):
            first = torch.randn(4)
        torch.randn(outer % 7)
        with isolated(seed):
            assert torch.equal(torch.randn(4), first)


def test_each_sequence_of_one_length_has_a_seed_of_its_own() -> None:
    numbers = (-1, 0, 1, 2, 999_999, 1_000_000)
    found = [mixed_seed(*each) for each in product((0, 1, 2), numbers, numbers)]
    assert len(set(found)) == len(found)


def test_a_whole_number_of_numpy_s_is_the_seed_that_it_says() -> None:
    with isolated(7):
        expected = torch.randn(4)
    with isolated(np.int64(7)):
        assert torch.equal(torch.randn(4), expected)


def test_without_a_seed_the_state_goes_on_inside_and_is_put_back() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.randn(3)
        torch.manual_seed(5)
        with isolated():
            assert torch.equal(torch.randn(3), expected)
        assert torch.equal(torch.randn(3), expected)


def test_a_state_can_be_kept_and_taken_up() -> None:
    with isolated(1):
        torch.randn(7)
        state = random_state("cpu")
        expected = torch.randn(5)
    assert set(state) == {"cpu"}
    with nothing_changes(), isolated():
        set_random_state(state, "cpu")
        assert torch.equal(torch.randn(5), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_forked_while_a_thread_has_its_turn_has_its_own() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with isolated():
            entered.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    try:
        if (child := os.fork()) == 0:
            try:
                with isolated():
                    os._exit(0)
            finally:
                os._exit(1)
        for _ in range(500):
            if (ended := os.waitpid(child, os.WNOHANG)) != (0, 0):
                break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
        assert ended == (child, 0)
    finally:
        leave.set()
        holder.join()
