"""Callbacks measure, keep and stop; what they remember survives a resumption exactly."""

import math
import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine_fakes import Interrupts, Listens, StopsAt, classes, classifier, found, network, nothing_changes
from pyrobbb import likelihoods
from pyrobbb._support import checkpoint
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.inference import MAP, SGHMC, SWAG, Inference, Laplace
from pyrobbb.likelihoods import Categorical
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.priors import Normal
from pyrobbb.svi import Terms
from pyrobbb.training.callbacks import BestCheckpoint, Callback, EarlyStopping, View
from pyrobbb.training.history import Epoch
from pyrobbb.training.trainer import Training, fit, train

N = 20


def training(seed: int = 0, **options: Any) -> Training:
    data = classes(N, validation=8)
    defaults: dict[str, Any] = {
        "epochs": 4, "batch_size": 6, "device": "cpu", "fast": "eager", "seed": seed, "chain": seed,
        "optim": partial(torch.optim.Adam, lr=0.05),
    }  # fmt: skip
    return Training(*classifier(data), data, **defaults | options)


class Notes(Callback):
    """Records its events, draws random numbers on the way and leaves gradients off."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_start(self, view: View) -> None:
        self.events.append("start")

    def on_step(self, view: View, terms: Terms) -> None:
        torch.randn(3)
        self.events.append((view.epoch, view.batch, float(terms.kl), float(terms.nll)))

    def on_epoch(self, view: View, row: Epoch) -> None:
        torch.set_grad_enabled(False)
        view.posterior.predict(torch.randn(2, 3), draws=2)
        self.events.append(row)

    def on_end(self, view: View) -> None:
        self.events.append("end")


@pytest.mark.parametrize("fast", ["eager", "off"])
def test_a_callback_sees_every_step_and_epoch_and_changes_nothing(fast: str) -> None:
    alone, notes = training(epochs=2, fast=fast), Notes()
    watched = training(epochs=2, callbacks=[notes], fast=fast)
    alone.run()
    with nothing_changes():
        watched.run()
    assert torch.equal(found(watched), found(alone))
    steps = [event for event in notes.events if isinstance(event, tuple)]
    rows = [event for event in notes.events if isinstance(event, Epoch)]
    assert [step[:2] for step in steps] == [(e, b) for e in range(2) for b in (1, 2, 3, 4)]
    assert rows == watched.history.rows
    assert sum(nll for *_, nll in steps[:4]) / N == pytest.approx(rows[0].nll, rel=1e-6)
    sizes = [6, 6, 6, 2]
    kl = sum(step[2] * size for step, size in zip(steps, sizes, strict=False)) / N
    assert kl / N == pytest.approx(rows[0].kl, rel=1e-6)
    assert (notes.events[0], notes.events[-1]) == ("start", "end")


@pytest.mark.parametrize(
    ("at", "place", "epoch"),
    [({"epoch": 2}, (2, 0), 2), ({"step": 6}, (1, 2), 2), ({"step": 4}, (1, 0), 1)],
)
def test_a_stopped_training_is_where_it_was_stopped_and_stays_there(
    tmp_path: Path, at: dict[str, int], place: tuple[int, int], epoch: int
) -> None:
    progress = Listens()
    run = training(folder=tmp_path, callbacks=[StopsAt(**at)], progress=progress)
    history = run.run()
    assert (run.epoch, run.batch) == place
    assert f"chain 0 stops in epoch {epoch}: that is enough" in progress.said
    assert history.stopped == "that is enough"
    again = training(folder=tmp_path, callbacks=[StopsAt(**at)])
    assert again.resume()
    assert again.run().stopped == "that is enough"
    assert torch.equal(found(again), found(run))
    without = training(folder=tmp_path)  # what stopped it is gone
    assert without.resume()
    whole = training()
    assert len(without.run().rows) == len(whole.run().rows) == 4
    assert torch.equal(found(without), found(whole))


def rows_with(errors: list[float]) -> list[Epoch]:
    nan = math.nan
    return [Epoch(0, i, nan, nan, nan, error, 10 * error, 0.1, 0.0) for i, error in enumerate(errors, 1)]


@pytest.mark.parametrize(
    ("errors", "options", "stops"),
    [
        ([3, 2, 1, 2, 1], {"patience": 2}, 5),
        ([3, 2, 1, 2, 0.5, 1, 1], {"patience": 2}, 7),
        ([3, 2.95, 2.9, 2.85], {"patience": 2, "min_delta": 1.0, "monitor": "error"}, 3),
        ([3, 2.95, 2.9, 2.85], {"patience": 2, "min_delta": 0.1, "monitor": "nll"}, None),
    ],
)
def test_early_stopping_counts(errors: list[float], options: dict[str, Any], stops: int | None) -> None:
    class Stopped:
        at: int | None = None
        why = ""

        def stop(self, reason: str) -> None:
            if self.at is None:
                self.at, self.why = row.epoch, reason

    view: Any = Stopped()
    stopping = EarlyStopping(**options)
    for row in rows_with(errors):
        stopping.on_epoch(view, row)
        restored = EarlyStopping(**options)
        restored.load_state_dict(stopping.state_dict())
        stopping = restored
    assert view.at == stops
    if stops is not None:
        assert "has not improved for 2 epochs (best" in view.why


def patient() -> list[Callback]:
    """Stops after the epochs 2 and 3 whatever they bring: no improvement on epoch 1 is as large."""
    return [EarlyStopping(2, min_delta=1e9)]


def test_early_stopping_resumes_exactly(tmp_path: Path) -> None:
    whole = training(callbacks=patient(), epochs=9)
    stopped_by = whole.run().stopped
    assert re.fullmatch(
        r"validation nll has not improved for 2 epochs \(best \S+ in epoch 1\)", stopped_by or ""
    )
    assert whole.epoch == 3
    stopped = training(callbacks=[*patient(), Interrupts(10)], epochs=9, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    resumed = training(callbacks=[*patient(), Interrupts(99)], epochs=9, folder=tmp_path)
    assert resumed.resume()
    assert (resumed.epoch, resumed.callbacks[0].state_dict()["waited"]) == (2, 1)
    resumed.run()
    assert resumed.history.stopped == whole.history.stopped
    assert torch.equal(found(resumed), found(whole))


class Impatient(Callback):
    """Sends the second signal, which does not wait, while the callbacks are told of epoch 2."""

    def on_epoch(self, view: View, row: Epoch) -> None:
        if row.epoch == 2:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)


def test_a_second_signal_while_callbacks_are_told_keeps_what_was_before(tmp_path: Path) -> None:
    """They would resume as if they had been told, and early stopping would count an epoch less."""
    options: dict[str, Any] = {"epochs": 9, "folder": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        training(callbacks=[Impatient(), *patient()], **options).run()
    resumed = training(callbacks=patient(), **options)
    assert resumed.resume()
    resumed.run()
    assert resumed.epoch == 3


def test_early_stopping_says_epochs_where_few_are_recorded() -> None:
    whole = training(callbacks=patient(), epochs=30, record_every=5)
    assert "has not improved for 10 epochs" in str(whole.run().stopped)
    assert whole.epoch == 15


def test_in_another_training_the_same_callback_starts_afresh(tmp_path: Path) -> None:
    [stopping] = callbacks = patient()
    first = training(callbacks=callbacks, epochs=9, folder=tmp_path)
    assert (first.run().stopped, first.epoch) == (first.history.stopped, 3)
    kept = stopping.state_dict()
    second = training(callbacks=callbacks, epochs=9)
    assert second.run().stopped == first.history.stopped
    assert (second.epoch, stopping.state_dict()) == (3, kept)
    resumed = training(callbacks=callbacks, epochs=9, folder=tmp_path)
    assert resumed.resume()
    assert resumed.done
    assert stopping.state_dict() == kept


def test_more_patience_goes_on_from_where_less_had_stopped(tmp_path: Path) -> None:
    """The folder had stayed stopped, whatever stops it now; other callbacks had begun anew with another."""
    best, options = BestCheckpoint(), {"epochs": 9, "folder": tmp_path}
    assert training(callbacks=[*patient(), best], **options).run().stopped
    kept, said = best.state_dict(), Listens()
    more = training(callbacks=[EarlyStopping(3, min_delta=1e9), best], progress=said, **options)
    assert more.resume()
    assert (more.epoch, more.done, best.state_dict()) == (3, False, kept)
    kind = "EarlyStopping(patience=3, monitor='nll', min_delta=1000000000.0)"
    assert said.said == [f"the checkpoint was made with other callbacks: {kind} starts afresh"]
    assert "has not improved for 3 epochs" in str(more.run().stopped)
    beside = training(callbacks=[EarlyStopping(3, min_delta=1e9), best, Notes()], **options)
    assert beside.resume()  # what stopped it is there
    assert beside.done


def test_in_a_batch_each_chain_stops_by_itself() -> None:
    class StopsFirst(Callback):
        def on_epoch(self, view: View, row: Epoch) -> None:
            if view.chain == 1 and row.epoch == 2:
                view.stop("first")

    alone = [training(seed, callbacks=[StopsFirst()]) for seed in range(3)]
    for run in alone:
        run.run()
    batch = [training(seed, callbacks=[StopsFirst()]) for seed in range(3)]
    train(batch)
    assert [run.epoch for run in batch] == [run.epoch for run in alone] == [4, 2, 4]
    for a, b in zip(alone, batch, strict=True):
        torch.testing.assert_close(found(b), found(a), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("step", [5, 6])
def test_a_batch_of_two_of_which_one_stops_goes_on_as_one(step: int) -> None:
    alone = training(1)
    alone.run()
    batch = [training(0, callbacks=[StopsAt(step=step)]), training(1)]
    train(batch)
    assert (batch[0].epoch, batch[0].batch) == (1, step - 4)
    torch.testing.assert_close(found(batch[1]), found(alone), rtol=1e-4, atol=1e-3)
    assert [row.epoch for row in batch[1].history.rows] == [1, 2, 3, 4]


def test_the_best_epoch_is_kept_and_brought_back(tmp_path: Path) -> None:
    seen: dict[int, Tensor] = {}

    class Keeps(Callback):
        def on_epoch(self, view: View, row: Epoch) -> None:
            seen[row.epoch] = view.guide.loc.detach().clone()

    data, best = classes(N, validation=8), BestCheckpoint(folder=tmp_path)
    posterior = fit(
        *classifier(data), data, epochs=12, batch_size=6, device="cpu", callbacks=[Keeps(), best],
        optim=partial(torch.optim.Adam, lr=0.3), progress=None,
    )  # fmt: skip
    rows = posterior.history.rows
    lowest = min(rows, key=lambda row: row.validation_nll)
    assert best.best_epoch == lowest.epoch
    best.restore(posterior)
    assert torch.equal(posterior.chains[0][1].loc.detach(), seen[lowest.epoch])
    assert checkpoint.load(best.path())["value"] == lowest.validation_nll


def test_the_best_follows_the_folder_of_its_training(tmp_path: Path) -> None:
    best = BestCheckpoint()
    for name in ("a", "b"):
        training(callbacks=[best], epochs=1, folder=tmp_path / name).run()
        assert best.path() == tmp_path / name / "chain-0.best.pt"
        assert best.path().is_file()


@pytest.mark.parametrize("method", [Laplace(), SWAG(snapshots=3, rank=2), SGHMC(cycles=1, draws=3)])
def test_the_best_of_a_posterior_that_is_more_than_an_epoch_s_weights_is_refused(
    method: Inference, tmp_path: Path
) -> None:
    data, best = classes(N, validation=8), BestCheckpoint(folder=tmp_path)
    model = BayesianNetwork(network(), Normal(sigma=0.5), Categorical())
    options: dict[str, Any] = {"epochs": 6, "batch_size": 6, "device": "cpu", "progress": None}
    posterior = fit(model, None, data, callbacks=[best], inference=method, **options)
    before = posterior.draw(3)
    with pytest.raises(
        ValueError, match=r"without which the best epoch's weights are a point: keep the post"
    ):
        best.restore(posterior)
    assert all(torch.equal(value, before[name]) for name, value in posterior.draw(3).items())
    # what the message says instead
    mode = fit(model, None, data, callbacks=[best], inference=MAP(), **options)
    best.restore(mode)
    around = Laplace().around(mode, data.train).draw(3)
    assert all(bool((value.std(0) > 0).all()) for value in around.values())


@pytest.mark.parametrize(
    "method", [SWAG(snapshots=4, rank=2, start=0.5), SGHMC(cycles=1, draws=4, exploring=0.5)]
)
def test_a_method_that_is_stopped_before_its_draws_says_so(
    method: Inference, caplog: pytest.LogCaptureFixture
) -> None:
    """8 epochs of 4 steps: nothing is kept before the middle, all at the end, some in between."""
    data = classes(N, validation=8)

    def run(epoch: int) -> None:
        model = BayesianNetwork(network(), Normal(sigma=0.5), Categorical())
        fit(
            model, None, data, epochs=8, batch_size=6, device="cpu", inference=method, progress=None,
            callbacks=[StopsAt(epoch=epoch)],
        )  # fmt: skip

    with pytest.raises(ValueError, match=r"was stopped with 0 of its 4 .*: that is a point, not a posterior"):
        run(3)
    run(7)
    assert "was stopped with 3 of its 4" in caplog.text
    caplog.clear()
    run(9)
    assert "was stopped" not in caplog.text


def test_the_best_of_several_chains_is_where_it_was_told_to_be(tmp_path: Path) -> None:
    data = classes(N, validation=8)
    own, told = BestCheckpoint(), BestCheckpoint(folder=tmp_path / "best")
    posterior = fit(
        lambda: classifier(data)[0], type(classifier(data)[1]), data, chains=2, epochs=3, batch_size=6,
        device="cpu", callbacks=[own, told], optim=partial(torch.optim.Adam, lr=0.3), progress=None,
        folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(
        ValueError, match="each of which trains with a copy of it; pass folder= to BestCheckpoint"
    ):
        own.restore(posterior)
    told.restore(posterior)
    for chain, (_, guide) in enumerate(posterior.chains):
        kept = checkpoint.load(told.path(chain))
        assert kept["value"] == min(row.validation_nll for row in posterior.histories[chain].rows)
        assert torch.equal(guide.loc.detach(), kept["guide"]["loc"])


@pytest.mark.parametrize("callback", [EarlyStopping(), BestCheckpoint(folder=".")])
def test_without_validation_data(callback: Callback) -> None:
    data = classes(N)
    run = Training(*classifier(data), data, epochs=1, device="cpu", callbacks=[callback])
    with pytest.raises(
        ValueError, match=f"{type(callback).__name__} needs validation data: pass validation="
    ):
        run.run()


def test_the_best_without_a_folder() -> None:
    with pytest.raises(ValueError, match="BestCheckpoint needs a folder"):
        training(callbacks=[BestCheckpoint()]).run()


@pytest.mark.parametrize("fast", ["eager", "off"])
def test_a_long_gradient_is_scaled_down_to_the_norm(fast: str) -> None:
    """Plain SGD moves the parameters by at most lr times the norm, and by exactly that if it is small."""
    optim, norm = partial(torch.optim.SGD, lr=0.01), 0.3
    run = training(epochs=1, batch_size=N, clip_norm=norm, optim=optim, fast=fast)
    before = found(run)
    run.run()
    assert float((found(run) - before).norm()) == pytest.approx(0.01 * norm, rel=1e-4)
    free, wide = (training(epochs=1, optim=optim, fast=fast, clip_norm=c) for c in (None, 1e9))
    free.run()
    wide.run()
    assert torch.equal(found(free), found(wide))


def test_clipping_in_a_batch_is_each_chains_own() -> None:
    options: dict[str, Any] = {"clip_norm": 0.5, "optim": partial(torch.optim.SGD, lr=0.1)}
    alone, batch = ([training(seed, **options) for seed in range(2)] for _ in range(2))
    for run in alone:
        run.run()
    train(batch)
    for a, b in zip(alone, batch, strict=True):
        torch.testing.assert_close(found(b), found(a), rtol=1e-4, atol=1e-5)


def test_rows_of_some_epochs_only() -> None:
    whole, some = training(epochs=5), training(epochs=5, record_every=2)
    rows = [replace(row, seconds=0.0) for row in whole.run().rows]
    kept = some.run().rows
    assert torch.equal(found(whole), found(some))
    assert [row.epoch for row in kept] == [2, 4, 5]
    assert [replace(row, seconds=0.0) for row in kept] == [rows[1], rows[3], rows[4]]


def test_a_stop_before_the_first_row_leaves_a_posterior(capsys: pytest.CaptureFixture[str]) -> None:
    posterior = fit(
        *classifier(data := classes(N)), data, epochs=4, batch_size=6, device="cpu",
        callbacks=[StopsAt(step=1)],
    )  # fmt: skip
    assert posterior.history.rows == []
    assert "that is enough" in capsys.readouterr().err


class Remembers(nn.Linear):
    """Adds a tensor that is a plain attribute and changes in training."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.m = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.m = self.m + 0.01
        return super().forward(x) + self.m


def test_the_best_has_the_network_s_tensors_that_no_state_has(tmp_path: Path) -> None:
    class Seen(Callback):
        def on_epoch(self, view: Any, row: Epoch) -> None:
            if row.epoch == best.best_epoch:
                self.m = view.model.network.m.clone()

    x = torch.linspace(-1, 1, 24)[:, None]
    data = from_arrays(x, -x, task="regression", validation=(x, x))  # where it begins
    best, seen = BestCheckpoint(folder=tmp_path), Seen()
    posterior = fit(
        lambda: BayesianNetwork(Remembers(), likelihood=likelihoods.Normal(scale=0.3)), MeanFieldNormal, data,
        epochs=5, batch_size=12, seed=1, device="cpu", callbacks=[best, seen], progress=None,
        optim=partial(torch.optim.Adam, lr=0.1),
    )  # fmt: skip
    network = posterior.model.network
    assert best.best_epoch < 5  # whose loss is 1.77 above the least, sd 0.06 over 20 seeds
    assert not torch.equal(network.m, seen.m)
    best.restore(posterior)
    assert torch.equal(network.m, seen.m)


def test_the_best_has_the_network_s_numbers_and_modes_of_its_epoch(tmp_path: Path) -> None:
    class Later(Callback):
        def on_epoch(self, view: Any, row: Epoch) -> None:
            network = view.model.network
            self.gain, network.gain = network.gain, network.gain + 50.0
            network.eval()

    class Gaining(nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)
            nn.init.ones_(self.weight)  # so that more gain is far more loss
            self.gain = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * super().forward(x)

    x = torch.linspace(-1, 1, 24)[:, None]
    data, best = from_arrays(x, -x, task="regression", validation=(x, x)), BestCheckpoint(folder=tmp_path)
    posterior = fit(
        lambda: BayesianNetwork(Gaining(), likelihood=likelihoods.Normal(scale=0.3)), MeanFieldNormal, data,
        epochs=2, batch_size=12, seed=1, device="cpu", callbacks=[best, Later()], progress=None, fast="off",
    )  # fmt: skip
    assert best.best_epoch == 1
    assert (posterior.model.network.gain, posterior.model.network.training) == (101.0, False)
    best.restore(posterior)
    assert (posterior.model.network.gain, posterior.model.network.training) == (1.0, True)
