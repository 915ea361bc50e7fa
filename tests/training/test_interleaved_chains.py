"""Several chains side by side on CUDA, which is imitated on the CPU: each ends exactly as it does alone."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cuda_fakes import FakeCuda, adam
from engine_fakes import Listens
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import whole_step
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.accelerated.cuda_graph import GraphStep, side_by_side
from pyrobbb.accelerated.dispatch import element_wise
from pyrobbb.accelerated.whole_step import WholeStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.inference import MAP, SVI
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training import interleaved_chains, loop
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.interleaved_chains import InterleavedChains
from pyrobbb.training.trainer import Training, train

R, B = 3, 6


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The CPU in the place of CUDA, and its loop's choice."""
    monkeypatch.setattr(GraphStep, "MANY", 4)
    monkeypatch.setattr(whole_step, "compile", lambda graph, inputs: graph)
    monkeypatch.setattr(loop, "BatchedChains", lambda chains, fast: InterleavedChains(chains))
    return FakeCuda(monkeypatch)


def made(
    folder: Path | None = None, module: nn.Module | None = None, whole: bool = False, **options: Any
) -> list[Training]:
    """Trainings of ten minibatches of six rows and one of three, from seeds of their own."""
    with isolated(1):
        rows = Split(torch.randn(63, 4), torch.randn(63, 2))
    data = Dataset("made", rows, Spec(63, (4,), 2, "regression"))
    inference = options.setdefault("inference", SVI())
    options.setdefault("epochs", 4)
    found = []
    for r in range(R):
        with isolated(r):
            network = nn.Sequential(nn.Linear(4, 2), *([] if module is None else [module]))
            model = BayesianNetwork(network, priors.ScaleMixture(), likelihoods.Normal(0.5))
            guide = inference.guide(model, partial(MeanFieldNormal, init_rho=-2.0))
        training = Training(
            model, guide, data,
            batch_size=B, optim=adam, fast="eager", folder=folder, chain=r, seed=r, device="cpu",
            schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.9), progress=Listens(),
            **options,
        )  # fmt: skip
        step: Any = training.step
        first = data.train.head(B)
        if whole:
            with isolated():
                segments = element_wise(model, guide, first)
                step = WholeStep(model, guide, training.optimizer, segments, 1, (first.x, first.y))
        training.step = GraphStep(step, first)
        found.append(training)
    return found


def seen(trainings: Sequence[Training]) -> list[Any]:
    """Histories, parameters and random states, as they ended."""
    ends: list[Any] = []
    for training in trainings:
        rows = [astuple(replace(row, seconds=0.0)) for row in training.history.rows]
        values = [p.detach() for p in training.named.values()]
        ends.append((torch.tensor(rows, dtype=torch.float64), values, training.noise["cpu"]))
    return ends


def alone(cuda: FakeCuda, **options: Any) -> list[Any]:
    trainings = made(**options)
    for training in trainings:
        cuda.state = [training.optimizer]
        training.run()
    return seen(trainings)


def agree(ours: list[Any], theirs: list[Any]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"whole": True, "epochs": 2}, {"inference": MAP()}])
def test_each_ends_exactly_as_it_does_alone(options: dict[str, Any], cuda: FakeCuda) -> None:
    trainings = made(**options)
    cuda.state = [training.optimizer for training in trainings]
    train(trainings)
    assert cuda.captures == 2 * R
    assert all(isinstance(t.step, GraphStep) and t.step.generator is None for t in trainings)
    assert [t.progress.shown.said for t in trainings] == [[]] * R  # type: ignore[attr-defined]
    agree(seen(trainings), alone(cuda, **options))


def test_an_interrupted_one_resumes_exactly(cuda: FakeCuda, tmp_path: Path) -> None:
    trainings = made(tmp_path)
    cuda.state = [training.optimizer for training in trainings]
    steps = 0

    def interrupt() -> None:
        nonlocal steps
        steps += 1
        if steps == 16:  # the first of two that go with one launch
            os.kill(os.getpid(), signal.SIGINT)

    trainings[0].progress.step = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        train(trainings)
    assert {(t.epoch, t.batch) for t in trainings} == {(1, 6)}
    again = made(tmp_path)
    cuda.state = [training.optimizer for training in again]
    assert all(training.resume() for training in again)
    train(again)
    agree(seen(again), alone(cuda))


class Stops(Callback):
    """Ends one of the chains after its second epoch."""

    def on_epoch(self, chain: Any, row: Any) -> None:
        if chain.chain == 1 and row.epoch == 2:
            chain.stop("as asked")


def test_one_that_stops_early_leaves_the_others_as_they_are(cuda: FakeCuda) -> None:
    trainings = made(callbacks=(Stops(),))
    cuda.state = [training.optimizer for training in trainings]
    train(trainings)
    assert [training.epoch for training in trainings] == [4, 2, 4]
    agree(seen(trainings), alone(cuda, callbacks=(Stops(),)))


def test_chains_that_disturb_one_another_take_turns(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = made()

    @contextmanager
    def disturbed(streams: Sequence[Any]) -> Iterator[Any]:
        with torch.no_grad():
            trainings[1].guide.loc.add_(0.1)  # type: ignore[operator]
        with side_by_side(streams) as each:
            yield each

    monkeypatch.setattr(interleaved_chains, "side_by_side", disturbed)
    cuda.state = [training.optimizer for training in trainings]
    train(trainings)
    said = ["the chains take turns: side by side they do not end as they do alone"]
    assert trainings[0].progress.shown.said == said  # type: ignore[attr-defined]
    agree(seen(trainings), alone(cuda))


def test_those_that_cannot_go_side_by_side_are_refused(cuda: FakeCuda) -> None:
    class Watches(Callback):
        def on_step(self, chain: Any, terms: Any) -> None: ...

    refused: list[tuple[str, list[Training]]] = [
        ("the network draws random numbers of its own", made(module=nn.Dropout(0.5))),
        ("a callback observes each step", made(callbacks=(Watches(),))),
        ("trainings with different epochs: 4 and 2", [made()[0], made()[1]]),
        ("a training has no graph", made()),
    ]
    refused[2][1][1].epochs = 2
    without: Any = refused[3][1][1].step
    refused[3][1][1].step = without.step
    for why, trainings in refused:
        with pytest.raises(NotBatchableError, match=why):
            train(trainings)
        for training in trainings:
            assert isinstance(training.step, GraphStep) is (training.step is not without.step)
            if isinstance(training.step, GraphStep):
                assert training.step.generator is training.step.step.normals.generator is None
