"""What a person sees: a bar on a terminal, lines elsewhere, with the numbers that were promised."""

import io
import math
import re
from copy import deepcopy
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_fakes import classes, classifier
from pyrobbb import BayesianNetwork, MeanFieldNormal, fit, likelihoods, priors
from pyrobbb.data import from_arrays
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.non_centred import NonCentredNormal
from pyrobbb.training.history import Epoch
from pyrobbb.training.progress import Printed, Silent
from pyrobbb.training.trainer import Training
from terminals import Terminal


def row(epoch: int, error: float = 2.5) -> Epoch:
    return Epoch(0, epoch, 3.75, 2.5, 1.25, error, 0.1, 1e-3, 12.3)


def told(file: io.StringIO, *, error: float = 2.5, start: int = 0) -> str:
    progress = Printed(file)
    progress.start(0, start, 3, 2)
    for epoch in range(start + 1, 4):
        for _ in range(2):
            progress.step()
        progress.epoch(row(epoch, error))
        progress.last_line = -math.inf
    progress.stop()
    return file.getvalue()


def test_continuous_integration_has_one_line_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    clock = count(0.0, 10.0)
    monkeypatch.setattr("pyrobbb.training.progress.monotonic", lambda: next(clock))
    file = io.StringIO()
    progress = Printed(file)
    for chain in (0, 1):
        progress.start(chain, 0, 3, 2)
        for epoch in (1, 2, 3):
            progress.epoch(row(epoch))
        progress.stop()
    assert [line.partition(":")[0] for line in file.getvalue().splitlines()] == ["epoch 3/3"] * 2


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_epoch_free_energy_its_parts_error_and_times(kind: type[io.StringIO]) -> None:
    text = told(kind())
    for epoch in (1, 2, 3):
        assert f"epoch {epoch}/3" in text
    assert "free energy 3.75 = KL 2.5 + NLL 1.25" in text
    assert "validation error 2.5" in text
    assert "12.3 s/epoch" in text


def test_each_epoch_says_what_ignoring_the_inputs_costs() -> None:
    network = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    model = BayesianNetwork(network, priors.Normal(sigma=1.0), likelihoods.Normal(scale=0.5))
    x = torch.linspace(-1, 1, 20)[:, None]
    data = from_arrays(x, x, task="regression")
    file = io.StringIO()
    fit(model, MeanFieldNormal, data, epochs=2, progress=Printed(file))
    bound = f"(ignoring the inputs: {trivial_free_energy(model, data.train):.3g})"
    assert f"{bound} = KL " in file.getvalue()
    assert f"nats per datum {bound}" in file.getvalue()
    learned = BayesianNetwork(
        deepcopy(network), priors.Learned(priors.Normal(sigma=1.0)), likelihoods.Normal(scale=0.5)
    )
    fit(learned, MeanFieldNormal, data, epochs=2, progress=Printed(file := io.StringIO()))
    assert "nats per datum (ignoring the inputs: " in file.getvalue()
    assert ") = KL" not in file.getvalue(), "a prior that is learned changes it with every step"


def test_a_fit_with_latent_scales_is_told_that_it_is_worse_than_ignoring_the_inputs() -> None:
    network = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    model = BayesianNetwork(network, priors.ARD(), likelihoods.Normal(scale=0.5))
    x = torch.linspace(-1, 1, 20)[:, None]
    data = from_arrays(x, x, task="regression")
    fit(model, NonCentredNormal, data, epochs=1, progress=Printed(file := io.StringIO()))
    assert "worse than ignoring the inputs" in file.getvalue()


def test_a_plain_network_has_no_kl_to_show() -> None:
    file = io.StringIO()
    progress = Printed(file)
    progress.start(0, 0, 1, 2)
    progress.epoch(Epoch(0, 1, 1.25, 0.0, 1.25, 2.5, 0.1, 1e-3, 12.3))
    assert "epoch 1/1: NLL 1.25, validation error" in file.getvalue()


def test_lines_elsewhere_say_the_time_left_and_no_control_characters() -> None:
    text = told(io.StringIO())
    lines = text.splitlines()
    assert len(lines) == 3
    assert all(re.search(r"\d:\d\d left$", line) for line in lines)
    assert not re.search(r"[\r\x1b]", text)


def test_a_terminal_shows_one_bar_with_the_time_left() -> None:
    text = told(Terminal())
    assert "\r" in text
    assert re.search(r"\d\d:\d\d<", text)
    assert text.count("\n") == 1  # one line, closed at the end


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_without_a_validation_set_no_error_is_shown(kind: type[io.StringIO]) -> None:
    assert "validation" not in told(kind(), error=math.nan)


@pytest.mark.parametrize(("seconds", "lines"), [(0.01, 2 + 4), (0.1, 1 + 20), (2.0, 1 + 20), (120.0, 500)])
def test_a_line_after_each_twentieth_or_minute(
    monkeypatch: pytest.MonkeyPatch, seconds: float, lines: int
) -> None:
    now = 0.0
    monkeypatch.setattr("pyrobbb.training.progress.monotonic", lambda: now)
    progress = Printed(file := io.StringIO())
    progress.start(0, 0, 500, 1)
    for epoch in range(1, 501):
        now += seconds
        progress.epoch(row(epoch))
    said = file.getvalue().splitlines()
    assert len(said) == lines
    assert said[0].startswith("epoch 1/500")
    assert said[-1].startswith("epoch 500/500")


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_resumed_training_goes_on_counting(kind: type[io.StringIO]) -> None:
    text = told(kind(), start=2)
    assert "epoch 3/3" in text
    assert "epoch 1/3" not in text


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_line_worth_reading_is_said_before_during_and_after(kind: type[io.StringIO]) -> None:
    file = kind()
    progress = Printed(file)
    progress.log("before")
    progress.start(0, 0, 1, 1)
    progress.log("during")
    progress.stop()
    progress.stop()  # twice is harmless
    progress.log("after")
    for word in ("before", "during", "after"):
        assert re.search(rf"{word}\n", file.getvalue())


@pytest.mark.parametrize(
    ("seconds", "clock"), [(0.0, "0:00"), (61.4, "1:01"), (3599.6, "1:00:00"), (7325.0, "2:02:05")]
)
def test_the_time_left(monkeypatch: pytest.MonkeyPatch, seconds: float, clock: str) -> None:
    file, now = io.StringIO(), [0.0]
    monkeypatch.setattr("pyrobbb.training.progress.monotonic", lambda: now[0])
    progress = Printed(file)
    progress.start(0, 0, 2, 1)
    now[0] = seconds  # one epoch took so long, one is left
    progress.epoch(row(1))
    assert f"{clock} left" in file.getvalue()


def test_the_error_stream_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    Printed().log("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_steps_done_before_a_resumption_count() -> None:
    progress = Printed(Terminal())
    progress.start(0, 1, 3, 4, 3)  # one epoch of 4 steps, and 3 steps of the next
    assert progress.bar.n == 7
    progress.step()
    assert (progress.bar.n, progress.bar.total) == (8, 12)
    progress.epoch(row(2))
    progress.stop()


def test_another_chain_in_a_finished_folder_is_shown_from_its_first_step(tmp_path: Path) -> None:
    data, starts = classes(), []

    class Listening(Silent):
        def start(self, chain: int, epoch: int, epochs: int, steps: int, done: int = 0) -> None:
            starts.append((chain, epoch))

    def make() -> BayesianNetwork:
        return classifier(data)[0]

    for chains in (1, 2):
        fit(make, MeanFieldNormal, data, epochs=2, chains=chains, folder=tmp_path, progress=Listening())
    assert starts == [(0, 0), (1, 0)]


@pytest.mark.parametrize("event", ["start", "step", "epoch", "stop"])
def test_a_display_that_fails_does_not_end_the_training(event: str, caplog: pytest.LogCaptureFixture) -> None:
    class Torn(Printed):
        """Of a terminal that was closed."""

    def torn(*what: object) -> None:
        raise OSError("the terminal is gone")

    setattr(Torn, event, torn)
    data = classes(20)
    history = Training(*classifier(data), data, epochs=2, batch_size=10, fast="eager", progress=Torn()).run()
    assert len(history.rows) == 2
    [record] = [record for record in caplog.records if "display" in record.message]
    assert record.message == "the display Torn failed and is now off: OSError('the terminal is gone')"


def test_a_display_that_fails_at_the_last_line_leaves_the_posterior(caplog: pytest.LogCaptureFixture) -> None:
    class Torn(Silent):
        def log(self, message: str) -> None:
            raise OSError("the terminal is gone")

    model, guide = classifier(classes(20))
    fitted = fit(model, guide, classes(20), epochs=1, batch_size=10, fast="eager", progress=Torn())
    assert fitted.history is not None
    assert "the display Torn failed" in caplog.text


def test_a_silent_fit_computes_no_bound_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*of: object) -> float:
        raise AssertionError("for a line that nobody sees")

    monkeypatch.setattr("pyrobbb.training.chain.trivial_free_energy", computed)
    fit(*classifier(classes(20)), classes(20), epochs=1, batch_size=10, fast="eager", progress=None)


def test_an_error_of_the_data_ends_the_training_and_not_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*of: object) -> float:
        raise OSError("network drive: try again")

    monkeypatch.setattr("pyrobbb.training.chain.trivial_free_energy", unread)
    options = {"epochs": 1, "batch_size": 10, "fast": "eager", "progress": Printed(io.StringIO())}
    with pytest.raises(OSError, match="network drive"):
        fit(*classifier(classes(20)), classes(20), **options)
