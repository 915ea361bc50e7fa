"""Training: exact resumption, errors that name the place, isolation from the process and from each other."""

import math
import os
import random
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn

from engine_fakes import Interrupts, classes, classifier, network, normal, nothing_changes, restore, values
from pyrobbb import kl_weights as kl
from pyrobbb import likelihoods, priors
from pyrobbb._support import checkpoint
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.device import best_device
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.inference.method import FunctionStep
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import perceptron
from pyrobbb.posterior import Posterior
from pyrobbb.training import history
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.data_checks import check_data
from pyrobbb.training.history import Epoch
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import NonFiniteLossError, Training, fit

EPOCHS, N, B = 3, 20, 6  # 4 steps an epoch, the last of 2 rows


def training(guide: Callable[..., nn.Module] = MeanFieldNormal, **options: Any) -> Training:
    """A training with all that must survive a resumption; always the same one."""
    data = classes(N, validation=8)
    prior = priors.PerParameter(default=priors.ScaleMixture(), where={"2.bias": priors.Deterministic()})
    model = BayesianNetwork(network(), prior, likelihoods.Categorical(), N)  # draws random numbers
    defaults: dict[str, Any] = {
        "epochs": EPOCHS, "batch_size": B, "samples": 2, "seed": 7, "device": "cpu",
        "optim": partial(torch.optim.Adam, lr=0.01),
        "schedule": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS),
        "kl": kl.WarmUp(epochs=2, then=kl.Geometric()),
    }  # fmt: skip
    return Training(model, guide(model), data, **defaults | options)


Uninterrupted = tuple[dict[str, Tensor], list[Epoch]]


def parameters(run: Training) -> dict[str, Tensor]:
    return {
        f"{part}.{name}": parameter.detach().clone()
        for part, module in (("guide", run.guide), ("model", run.model))
        for name, parameter in module.named_parameters()
    }


def assert_identical(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def timeless(rows: list[Epoch]) -> list[Epoch]:
    return [replace(row, seconds=0.0) for row in rows]


def test_training_lowers_the_free_energy_and_learns_all_parameters() -> None:
    adam = partial(torch.optim.Adam, lr=0.05)
    run = training(epochs=15, kl=kl.Uniform(), schedule=None, samples=1, optim=adam)
    before = parameters(run)
    rows = run.run().rows
    after = parameters(run)
    assert set(after) == {"guide.loc", "guide.rho", "model.network.2.bias"}
    assert all(not torch.equal(after[name], before[name]) for name in after)
    assert [row.epoch for row in rows] == list(range(1, 16))
    # the ratio: mean 0.53, sd 0.026 over 20 seeds
    assert rows[-1].free_energy < 0.7 * rows[0].free_energy
    for row in rows:
        assert row.free_energy == pytest.approx(row.kl + row.nll)
        assert 0 <= row.validation_error <= 100
        assert row.validation_error == pytest.approx(12.5 * round(row.validation_error / 12.5))  # of 8 data
        assert row.validation_nll > 0
        assert row.seconds > 0
    assert run.history.train_seconds == pytest.approx(sum(row.seconds for row in rows))


def test_a_single_batch_can_be_overfitted() -> None:
    """Far below ln(e + 9) - 1 = 1.46, the floor of a softmax that is taken twice."""
    data = classes(10, outputs=10)
    model, guide = classifier(data, init_rho=-8.0)
    rows = Training(
        model, guide, data, epochs=150, batch_size=10, device="cpu",
        optim=partial(torch.optim.Adam, lr=0.1), kl=kl.Tempered(temperature=1e-3),
    ).run().rows  # fmt: skip
    assert rows[-1].nll < 0.1  # mean 0.005, sd 0.002 over 20 seeds


def test_the_history_names_each_epochs_own_learning_rate() -> None:
    rates = [row.lr for row in training().run().rows]
    assert rates == pytest.approx([0.01, 0.0075, 0.0025])


def test_each_epoch_has_an_order_of_its_own() -> None:
    run, orders = training(), []
    begin = run.begin_epoch

    def watched() -> tuple[Tensor, ...]:
        orders.append(begin())
        return orders[-1]

    run.begin_epoch = watched  # type: ignore[method-assign]
    run.run()
    shuffles = torch.Generator().manual_seed(7)
    assert len(orders) == EPOCHS
    for rows in orders:
        expected = torch.randperm(N, generator=shuffles).split(B)
        assert all(map(torch.equal, rows, expected))
        assert [len(part) for part in rows] == [6, 6, 6, 2]


def test_kl_shares_reach_the_steps() -> None:
    """With a KL share of zero on all steps, rho is free to grow; with the whole KL, it must."""

    class Seen(kl.KLWeight):
        def __init__(self) -> None:
            self.asked: list[tuple[int, int, int, float]] = []

        def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
            self.asked.append((i, M, epoch, batch_fraction))
            return batch_fraction

    seen = Seen()
    training(kl=seen, epochs=2).run()
    sizes = [0.3, 0.3, 0.3, 0.1]
    assert seen.asked == [(i + 1, 4, epoch, pytest.approx(sizes[i])) for epoch in (1, 2) for i in range(4)]


def test_every_row_is_seen_once_an_epoch_in_another_order() -> None:
    run = training(epochs=2)
    batches: list[Tensor] = []
    inner = run.step

    def spy(x: Tensor, *rest: Any) -> Any:
        batches.append(x)
        return inner(x, *rest)

    run.step = FunctionStep(spy)
    run.run()
    assert [len(x) for x in batches] == [6, 6, 6, 2] * 2
    first, second = torch.cat(batches[:4]), torch.cat(batches[4:])
    assert not torch.equal(first, second)
    for seen in (first, second):
        assert torch.equal(seen[seen[:, 0].argsort()], run.train.x[run.train.x[:, 0].argsort()])


# Resumption


@pytest.fixture(scope="module")
def uninterrupted() -> Uninterrupted:
    return finished()


def finished(**options: Any) -> Uninterrupted:
    run = training(**options)
    rows = run.run().rows
    return parameters(run), timeless(rows)


def resumed(at: int, folder: Path, **options: Any) -> Training:
    """A training that was interrupted in step `at`, and a fresh one that took its checkpoint up."""
    stopped = training(folder=folder, callbacks=[Interrupts(at)], **options)
    with nothing_changes(), pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert stopped.epoch * 4 + stopped.batch == at
    run = training(folder=folder, **options)
    restore(run, folder / "chain-0.pt")
    return run


@pytest.mark.parametrize("at", [1, 3, 4, 5, 10, 12])
def test_an_interrupted_training_ends_as_if_it_had_not_been(
    tmp_path: Path, uninterrupted: Uninterrupted, at: int
) -> None:
    run = resumed(at, tmp_path)
    rows = run.run().rows
    assert_identical(parameters(run), uninterrupted[0])
    assert timeless(rows) == uninterrupted[1]
    assert timeless(history.read(tmp_path / "history.csv")) == uninterrupted[1]


@pytest.mark.parametrize(
    "options",
    [
        {"fast": "off"},
        {"fast": "off", "vectorize": True},
        {"guide": AutoNormal},
        {"guide": AutoMultivariateNormal, "rates": {"scale": 2.0}},
        {"optim": partial(torch.optim.SGD, lr=1e-4, momentum=0.9), "schedule": None},
    ],
)
def test_every_way_of_training_resumes(tmp_path: Path, options: dict[str, Any]) -> None:
    run = resumed(6, tmp_path, **options)
    rows = run.run().rows
    expected = finished(**options)
    assert_identical(parameters(run), expected[0])
    assert timeless(rows) == expected[1]


def test_interrupted_again_and_again(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    path = tmp_path / "chain-0.pt"
    for step in range(0, 12, 2):
        run = training(folder=tmp_path, callbacks=[Interrupts(2)])
        if step:
            restore(run, path)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    run = training(folder=tmp_path)
    restore(run, path)
    run.run()
    assert_identical(parameters(run), uninterrupted[0])


def test_the_state_can_be_taken_between_two_runs(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    stopped = training(callbacks=[Interrupts(6)])
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    torch.randn(3)
    checkpoint.save(tmp_path / "mine.pt", stopped.state_dict())
    run = training()
    restore(run, tmp_path / "mine.pt")
    run.run()
    assert_identical(parameters(run), uninterrupted[0])


def test_sigterm_leaves_a_checkpoint_too(tmp_path: Path) -> None:
    run = training(folder=tmp_path, callbacks=[Interrupts(2, signal.SIGTERM)])
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert checkpoint.load(tmp_path / "chain-0.pt")["batch"] == 2


def test_a_second_signal_leaves_a_consistent_checkpoint(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """It stops at once, within a step: what is kept must still be a state between two steps."""
    run = training(folder=tmp_path)
    inner, count = run.step, 0

    def impatient(*args: Any) -> Any:
        nonlocal count
        terms = inner(*args)
        count += 1
        if count == 6:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return terms

    run.step = FunctionStep(impatient)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    again = training()
    if (tmp_path / "chain-0.pt").exists():
        restore(again, tmp_path / "chain-0.pt")
    again.run()
    assert_identical(parameters(again), uninterrupted[0])


def test_a_finished_training_has_nothing_left_to_do(tmp_path: Path) -> None:
    run = training(folder=tmp_path)
    run.run()
    again = training(folder=tmp_path)
    restore(again, tmp_path / "chain-0.pt")
    before = parameters(again)
    assert timeless(again.run().rows) == timeless(run.history.rows)
    assert_identical(parameters(again), before)
    assert_identical(parameters(again), parameters(run))


def test_neither_folder_nor_validation_nor_progress_change_the_result(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    for options in ({"folder": tmp_path}, {"validation_draws": 0}, {"checkpoint_seconds": 0.0}, {"chain": 3}):
        run = training(**options)
        run.run()
        assert_identical(parameters(run), uninterrupted[0])


def test_more_epochs_can_be_added(tmp_path: Path) -> None:
    training(folder=tmp_path, schedule=None).run()
    longer = training(folder=tmp_path, schedule=None, epochs=EPOCHS + 2)
    restore(longer, tmp_path / "chain-0.pt")
    whole = training(schedule=None, epochs=EPOCHS + 2)
    whole.run()
    longer.run()
    assert_identical(parameters(longer), parameters(whole))


@pytest.mark.parametrize("damage", ["cut", "changed", "absent"])
def test_the_checkpoint_before_ends_in_the_same_parameters(
    tmp_path: Path, uninterrupted: Uninterrupted, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = training(folder=tmp_path, checkpoint_seconds=0.0, callbacks=[Interrupts(10)])
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    path = tmp_path / "chain-0.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes(content[:5000] if damage == "cut" else content)
    run = training(folder=tmp_path)
    assert run.resume()
    assert (run.epoch, run.batch) == (2, 1)
    assert ("using the previous one" in caplog.text) == (damage != "absent")
    rows = run.run().rows
    assert_identical(parameters(run), uninterrupted[0])
    assert timeless(history.read(tmp_path / "history.csv")) == timeless(rows) == uninterrupted[1]


def test_a_run_killed_within_an_epoch_goes_on_within_it(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """Checkpoints are as old as `checkpoint_seconds` at most, however long an epoch takes."""

    class Dies(Silent):
        left = 6

        def step(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise SystemExit

    with pytest.raises(SystemExit):
        training(folder=tmp_path, checkpoint_seconds=0.0, progress=Dies()).run()
    run = training(folder=tmp_path)
    assert run.resume()
    assert run.epoch * run.M + run.batch == 5
    run.run()
    assert_identical(parameters(run), uninterrupted[0])


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert not training().resume()
    assert not training(folder=tmp_path / "absent").resume()


def test_the_progress_is_told_where_it_goes_on_and_that_it_ends(tmp_path: Path) -> None:
    class Told(Silent):
        def __init__(self) -> None:
            self.events: list[Any] = []

        def start(self, chain: int, epoch: int, epochs: int, steps: int, done: int = 0) -> None:
            self.events.append((epoch, epochs, steps, done))
            raise RuntimeError("no terminal")

        def stop(self) -> None:
            self.events.append("stop")

    run = resumed(6, tmp_path)
    run.progress = told = Told()
    with nothing_changes(), pytest.raises(RuntimeError, match="no terminal"):
        run.run()
    assert told.events == [(1, 3, 4, 2), "stop"]


def test_two_trainings_in_one_folder(tmp_path: Path) -> None:
    class Second(Silent):
        def step(self) -> None:
            with pytest.raises(BlockingIOError, match=f"another run is working in {tmp_path}"):
                second.run()

    second = training(folder=tmp_path, epochs=1)
    training(folder=tmp_path, epochs=1, progress=Second()).run()
    second.run()


# Checkpoints that do not fit


def saved(tmp_path: Path) -> Path:
    training(folder=tmp_path, epochs=1).run()
    return tmp_path / "chain-0.pt"


class Renamed(MeanFieldNormal):
    """A family of its own whose parameters have the names and shapes of another's."""


def test_a_checkpoint_of_another_guide(tmp_path: Path) -> None:
    path = saved(tmp_path)
    for other, name in ((AutoNormal, "AutoNormal"), (Renamed, "Renamed")):
        message = rf"chain-0\.pt was made with guide MeanFieldNormal, this is {name}"
        with pytest.raises(CheckpointError, match=message):
            restore(training(other), path)


def other(net: nn.Module) -> Training:
    model = BayesianNetwork(net, priors.ScaleMixture(), likelihoods.Categorical(), N)
    return Training(
        model, MeanFieldNormal(model), classes(N), epochs=1, batch_size=B, device="cpu", samples=2
    )


def test_a_checkpoint_of_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoint of another"):
        restore(other(network(hidden=5)), saved(tmp_path))


def test_a_checkpoint_of_another_architecture_with_as_many_weights(tmp_path: Path) -> None:
    def layers(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(widths)))

    one, two = other(layers(3, 2, 6, 3)), other(layers(3, 6, 2, 3))  # 36 weights each
    one.folder = tmp_path
    one.run()
    with pytest.raises(CheckpointError, match="checkpoint of another"):
        restore(two, tmp_path / "chain-0.pt")


def test_a_checkpoint_with_other_deterministic_parameters(tmp_path: Path) -> None:
    path = saved(tmp_path)
    model = BayesianNetwork(network(), priors.ScaleMixture(), likelihoods.Categorical(), N)
    run = Training(model, MeanFieldNormal(model), classes(N), epochs=1, batch_size=B, device="cpu")
    before = parameters(run)
    with pytest.raises(CheckpointError, match="checkpoint of another"):
        restore(run, path)
    assert_identical(parameters(run), before)  # refused as a whole


@pytest.mark.parametrize("content", [{}, {"guide": {}}, {"guide": 3, "model": 4}])
def test_a_checkpoint_of_something_else(tmp_path: Path, content: dict[str, Any]) -> None:
    checkpoint.save(tmp_path / "other.pt", content)
    with pytest.raises(CheckpointError, match=r"other\.pt is not .* it lacks .*; give another folder$"):
        restore(training(), tmp_path / "other.pt")


@pytest.mark.parametrize(
    "key", ["made_with", "guide", "optimizer", "noise", "order", "sums", "history", "schedule"]
)
def test_a_checkpoint_with_a_part_of_another_kind(tmp_path: Path, key: str) -> None:
    content = checkpoint.load(saved(tmp_path))
    checkpoint.save(tmp_path / "odd.pt", content | {key: "text"})
    with pytest.raises(CheckpointError, match=r"odd\.pt (does not hold what a training needs|holds no)"):
        restore(training(), tmp_path / "odd.pt")


# Non-finite losses


def deep(optim: Any, **options: Any) -> Training:
    """Two hidden layers under the paper's narrowest spike; shares 2^(M-i) and plain SGD lead to infinity."""
    data = classes(64, features=20, outputs=10)
    data = Dataset("positive", Split(2 * data.train.x.abs(), data.train.y), data.spec)
    with isolated(0):
        net = perceptron(20, (30, 30), 10)
    prior = priors.ScaleMixture(pi=0.75, sigma2=float(np.exp(-8)))
    model = BayesianNetwork(net, prior, likelihoods.Categorical(), 64)
    guide = MeanFieldNormal(model)
    return Training(
        model, guide, data, epochs=2, batch_size=4, device="cpu", kl=kl.Geometric(),
        optim=partial(optim, lr=0.1), **options,
    )  # fmt: skip


def test_a_non_finite_loss_names_its_place_and_causes(tmp_path: Path) -> None:
    run = deep(torch.optim.SGD, folder=tmp_path)
    with nothing_changes(), pytest.raises(NonFiniteLossError) as caught:
        run.run()
    message = str(caught.value)
    assert re.search(r"not finite in epoch \d+, step \d+ of 16: KL (inf|nan), NLL \S+", message)
    for hint in ("learning rate", "sigma2", "2^(M-i)", "Adam", "rho"):
        assert hint in message
    assert "checkpoint" not in message  # there is none yet
    assert not (tmp_path / "chain-0.pt").exists()


def test_adam_survives_the_same() -> None:
    assert all(np.isfinite(row.free_energy) for row in deep(torch.optim.Adam).run().rows)


def test_the_last_good_checkpoint_is_kept(tmp_path: Path) -> None:
    blow_up = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 1.0 if epoch < 2 else 1e38)
    run = training(
        schedule=blow_up, folder=tmp_path, checkpoint_seconds=0.0, optim=partial(torch.optim.SGD, lr=1e-4)
    )
    with pytest.raises(
        NonFiniteLossError, match=r"epoch 3, step \d of 4.*the last good checkpoint is .*chain-0\.pt"
    ):
        run.run()
    kept = checkpoint.load(tmp_path / "chain-0.pt")
    assert kept["epoch"] == 2
    assert all(value.isfinite().all() for value in kept["guide"].values())
    assert len(history.read(tmp_path / "history.csv")) == 2
    assert run.history.rows[-1].epoch == 2


# Isolation


def test_two_trainings_do_not_touch_each_other(uninterrupted: Uninterrupted) -> None:
    def finish(run: Training) -> dict[str, Tensor]:
        run.run()
        return parameters(run)

    second = finish(training(seed=8, guide=AutoNormal))
    assert_identical(finish(training()), uninterrupted[0])

    class Nests(Silent):
        """Runs the second training within a step of the first."""

        steps = 0

        def step(self) -> None:
            self.steps += 1
            if self.steps == 5:
                assert_identical(finish(nested), second)

    nested, nests = training(seed=8, guide=AutoNormal), Nests()
    assert_identical(finish(training(progress=nests)), uninterrupted[0])
    assert nests.steps == 12

    one, two = (
        training(callbacks=[Interrupts(3)]),
        training(seed=8, guide=AutoNormal, callbacks=[Interrupts(6)]),
    )
    for run in (one, two):
        with pytest.raises(KeyboardInterrupt):
            run.run()
    assert_identical(finish(one), uninterrupted[0])
    assert_identical(finish(two), second)


def test_the_seed_decides_everything(uninterrupted: Uninterrupted) -> None:
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    same, different = training(), training(seed=8)
    same.run()
    different.run()
    assert_identical(parameters(same), uninterrupted[0])
    assert not torch.equal(parameters(different)["guide.loc"], uninterrupted[0]["guide.loc"])


def test_the_process_is_left_as_it_was() -> None:
    data, likelihood = values(), likelihoods.Normal(learn_scale=True)
    pyro.get_param_store().clear()
    try:
        pyro.param("mine", torch.tensor(3.0))
        pyro.param("loc", torch.zeros(2))  # the name of the guide's own
        for validate in (True, False):
            model = BayesianNetwork(nn.Linear(3, 2), priors.Normal(), likelihood, 12)
            with pyro.validation_enabled(validate), nothing_changes():
                posterior = fit(model, MeanFieldNormal(model), data, epochs=1, batch_size=5, device="cpu")
                posterior.predict(data.train.x, data.train.y, draws=2)
                posterior.predict(data.train.x, mean_weights=True)
                posterior.draw(2)
                posterior.mean_weights()
    finally:
        pyro.get_param_store().clear()


def test_the_process_is_left_as_it_was_after_errors() -> None:
    class Breaks(Callback):
        def on_step(self, view: Any, terms: Any) -> None:
            raise RuntimeError("broken callback")

    data = classes(N)
    wrong = Dataset("wrong", Split(data.train.x[:, :2], data.train.y), data.spec)
    broken, (model, guide) = training(callbacks=[Breaks()]), classifier(data)
    with nothing_changes():
        with pytest.raises(RuntimeError, match="broken callback"):
            broken.run()
        with pytest.raises(ValueError, match="shapes"):
            fit(model, guide, wrong, epochs=1, batch_size=5, device="cpu")
        posterior = fit(model, guide, data, epochs=1, batch_size=5, device="cpu")
        with pytest.raises(ValueError, match="shapes"):
            posterior.predict(wrong.train.x, draws=2)
        with pytest.raises(ValueError, match="draws"):
            posterior.draw(0)


# Files


def test_history_csv_grows_while_it_runs(tmp_path: Path) -> None:
    class Reads(Silent):
        def __init__(self) -> None:
            self.seen: list[list[Epoch]] = []

        def epoch(self, row: Epoch) -> None:
            self.seen.append(history.read(tmp_path / "history.csv"))

    progress = Reads()
    rows = training(folder=tmp_path, progress=progress).run().rows
    assert progress.seen == [rows[:1], rows[:2], rows[:3]]


def test_chains_share_a_history(tmp_path: Path) -> None:
    first = training(folder=tmp_path, epochs=1).run().rows
    second = training(folder=tmp_path, epochs=2, chain=1, seed=8).run().rows
    assert history.read(tmp_path / "history.csv") == first + second
    assert (tmp_path / "chain-0.pt").exists()
    assert (tmp_path / "chain-1.pt").exists()


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    training(folder=tmp_path / "runs" / "first", epochs=1).run()
    assert (tmp_path / "runs" / "first" / "chain-0.pt").exists()


# Arguments


def test_cuda_asked_for_and_absent() -> None:
    with pytest.raises(
        ValueError, match="device 'cuda' was requested, but torch finds no CUDA device; use device=cpu"
    ):
        best_device("cuda")
    assert best_device("auto") == best_device(None) == torch.device("cpu")


def test_a_learning_rate_of_its_own_for_rho() -> None:
    slow, fast = (training(rates=rates, epochs=1, schedule=None) for rates in ({}, {"rho": 10.0}))
    before = parameters(slow)
    slow.run()
    fast.run()
    moved = [(parameters(run)["guide.rho"] - before["guide.rho"]).abs().mean() for run in (slow, fast)]
    assert float(moved[1] / moved[0]) == pytest.approx(10, abs=0.5)  # mean 9.99, sd 0.02 over 20 seeds
    assert [group["lr"] for group in fast.optimizer.param_groups] == [0.01, 0.1]


def test_regression_reports_the_root_mean_squared_error() -> None:
    data = values(40, outputs=1)
    data = replace(data, validation=Split(normal(5, 3, seed=9), normal(5, 1, seed=10)))
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale=0.3), 40)
    guide = MeanFieldNormal(model)
    run = Training(model, guide, data, epochs=1, batch_size=10, device="cpu", validation_draws=0)
    row = run.run().rows[0]
    loc, _ = guide.loc_and_scale()
    assert data.validation is not None
    residual = data.validation.x @ loc["weight"].T + loc["bias"] - data.validation.y
    assert row.validation_error == pytest.approx(float(residual.square().mean().sqrt()), rel=1e-5)
    log_density = torch.distributions.Normal(0.0, 0.3).log_prob(residual)
    assert row.validation_nll == pytest.approx(-float(log_density.mean()), rel=1e-5)


def test_without_a_validation_set_its_columns_are_nan() -> None:
    data = values()
    model = BayesianNetwork(nn.Linear(3, 2), priors.Normal(), likelihoods.Normal(0.1), 12)
    row = Training(model, MeanFieldNormal(model), data, epochs=1, batch_size=5, device="cpu").run().rows[0]
    assert np.isnan(row.validation_error)
    assert np.isnan(row.validation_nll)


def test_fit_goes_on_from_the_folder_and_refuses_other_data(tmp_path: Path) -> None:
    def fitted(epochs: int, shift: float = 0.0) -> Any:
        data = classes(40)
        moved = replace(data, train=Split(data.train.x + shift, data.train.y))
        model, guide = classifier(data)
        fit(model, guide, moved, epochs=epochs, batch_size=10, folder=tmp_path, seed=3)
        return guide.loc.detach()

    fitted(2)
    assert [row.epoch for row in history.read(tmp_path / "history.csv")] == [1, 2]
    long = fitted(4)
    assert [row.epoch for row in history.read(tmp_path / "history.csv")] == [1, 2, 3, 4]
    assert torch.equal(fitted(4), long)  # nothing is trained again
    with pytest.raises(CheckpointError, match="was made with other training data of the same shape"):
        fitted(6, shift=0.5)


# What only the end would show


def test_a_last_step_to_infinity_is_no_success(tmp_path: Path) -> None:
    data = values()
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.1), 12)
    far = partial(torch.optim.SGD, lr=1e38)
    training = Training(
        model, MeanFieldNormal(model), data, epochs=1, batch_size=12, optim=far, device="cpu", folder=tmp_path
    )
    with pytest.raises(NonFiniteLossError, match="not finite after the last step, in epoch 1"):
        training.run()
    assert not (tmp_path / "chain-0.pt").exists()


def test_a_divergence_that_validation_finds_first_is_one_too() -> None:
    x = normal(20, 8)
    data = from_arrays(x, 1e4 * x[:, :1], task="regression", validation=0.3)
    model = BayesianNetwork(nn.Linear(8, 1), priors.Normal(), likelihoods.Normal(scale=1.0))
    far = partial(torch.optim.SGD, lr=1e38)
    with pytest.raises(NonFiniteLossError, match=r"validation after epoch 1: .* NaN .* learning rate"):
        fit(model, MeanFieldNormal(model), data, epochs=3, optim=far, device="cpu", progress=None)


class Sequences(nn.Module):
    """An LSTM that takes the batch for time, as torch's default has it."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x.reshape(len(x), 1, 3))[0]
        return out[:, -1]


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_network_that_mixes_rows_is_refused(batch_first: bool) -> None:
    with isolated(0):
        model = BayesianNetwork(Sequences(batch_first), priors.Normal(), likelihoods.Normal(0.1), 12)

    def make() -> Training:
        return Training(model, MeanFieldNormal(model), values(), epochs=1, batch_size=6, device="cpu")

    if batch_first:
        make()
    else:
        with pytest.raises(ValueError, match=r"depends on the other rows of the batch, .*batch_first=True"):
            make()


class Normalised(nn.Module):
    """Subtracts in training, as a batch normalisation does, the mean over the rows, or of each row."""

    seen: Tensor

    def __init__(self, dim: int, breaks: bool = False) -> None:
        super().__init__()
        self.layer, self.dim, self.breaks, self.calls = nn.Linear(3, 4), dim, breaks, 0
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        if self.training:
            if self.breaks and x.requires_grad:
                raise RuntimeError("no slopes by x")
            self.calls += 1
            self.seen.add_(out.detach().mean(0))
            out = nn.functional.dropout(out - out.mean(self.dim, keepdim=True), 0.1)
        return out[:, :2]


def test_a_network_that_mixes_rows_in_training_alone_is_refused() -> None:
    def checked(net: Normalised) -> None:
        model, rows = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1), 12), values()
        before = torch.get_rng_state()
        try:
            check_data(model, rows.train, None)
        finally:
            assert torch.equal(torch.get_rng_state(), before)
            assert model.network.calls == 0
            assert not model.network.seen.any()

    with pytest.raises(ValueError, match=r"mixes the rows of a batch in training mode, .* network.eval"):
        checked(Normalised(0))
    checked(Normalised(1))
    checked(Normalised(1, breaks=True))


def test_batch_normalisation_that_was_put_back_into_training_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1), 12)
    model.train()
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm1d\) mixes the rows"):
        Training(model, MeanFieldNormal(model), values(), epochs=1, batch_size=6, device="cpu")


def test_the_validation_error_of_token_inputs_is_no_whole_number() -> None:
    tokens = torch.randint(4, (12, 3), generator=torch.Generator().manual_seed(0))
    part = Split(tokens, normal(12, 1))
    data = Dataset("tokens", part, Spec(12, (3,), 1, "regression"), validation=part)
    net = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 1))
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1), 12)
    guide = MeanFieldNormal(model)
    training = Training(model, guide, data, epochs=1, batch_size=12, validation_draws=0, device="cpu")
    found = training.run().rows[0].validation_error
    prediction: Any = Posterior([(model, guide)]).predict(tokens, mean_weights=True)
    assert found == pytest.approx(float((prediction.mean - part.y).square().mean().sqrt()), rel=1e-6)


def test_what_a_killed_training_left_half_written_is_swept(tmp_path: Path) -> None:
    mine, another = tmp_path / ".chain-0.pt.1-ab.part", tmp_path / ".chain-1.pt.1-ab.part"
    for path in (mine, another):
        path.write_text("half")
    training(folder=tmp_path, epochs=1).run()
    assert not mine.exists()
    assert another.exists()  # of a chain that another process may be training


def test_the_kl_s_weight_is_a_finite_number() -> None:
    class Of(kl.KLWeight):
        def __init__(self, weight: Any) -> None:
            self.given = weight

        def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> Any:
            return self.given

    training(kl=Of(torch.tensor(0.25)), epochs=1).run()
    for wrong in (None, math.nan):
        with pytest.raises(
            ValueError, match=f"kl: what Of.weight returns must be a finite number, got {wrong}"
        ):
            training(kl=Of(wrong), epochs=1).run()
