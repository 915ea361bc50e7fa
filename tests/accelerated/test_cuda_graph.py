"""The CUDA graph path, with CUDA's graphs imitated on the CPU: recorded operations, replayed in place."""

import os
import signal
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from cuda_fakes import FakeCuda, adam
from pyrobbb import likelihoods, priors
from pyrobbb._support.optim import trained
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import cuda_graph, whole_step
from pyrobbb.accelerated import dispatch as choose
from pyrobbb.accelerated.cuda_graph import GraphStep, NumbersByKernels, capturable, lost_by
from pyrobbb.accelerated.dispatch import element_wise, make_step
from pyrobbb.accelerated.distributed_step import SummedStep
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.programs import pyro_program
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.accelerated.whole_step import WholeStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.non_centred import NonCentredNormal
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import Training
from step_cases import AUTOGUIDES, LIKELIHOODS, PRIORS, Looking, Synchronises

B, N = 6, 30


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def made(
    network: nn.Module | None = None, samples: int = 1, optim: Any = None, **options: Any
) -> tuple[Any, Split]:
    """A fast step on the CPU, its optimiser as on CUDA, and a batch."""
    with isolated(1):
        network = network or nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))
        prior: priors.Prior = priors.PerParameter(
            default=priors.ScaleMixture(), where={"0.bias": priors.Deterministic()}
        )
        model = BayesianNetwork(network, prior, likelihoods.Normal(0.5, learn_scale=True), N)
        guide = MeanFieldNormal(model, init_rho=-2.0)
        rows = Split(torch.randn(B, 4), torch.randn(B, 2))
        guide(rows.x, rows.y)
        optimizer = (optim or adam)([*guide.parameters(), *model.parameters()])
        return make_step(model, guide, optimizer, rows, fast="eager", samples=samples, **options), rows


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("small", [0, 10**9])
@pytest.mark.parametrize("weighted", [False, True])
def test_replays_are_the_steps_themselves(
    weighted: bool, small: int, samples: int, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows, other shares, a short batch and another learning rate: nothing is baked into the graph."""
    monkeypatch.setattr(choose, "_SMALL", small)
    ends = []
    for graph in (False, True):
        step, rows = made(samples=samples)
        cuda.state = [step.optimizer]
        rows = replace(rows, weights=torch.arange(float(B))) if weighted else rows
        take = GraphStep(step, rows) if graph else step
        seen = []
        with isolated(7):
            for i in range(9):
                weights = None if rows.weights is None else rows.weights + i
                part = Split(rows.x + 0.1 * i, rows.y - 0.1 * i, weights).head(B if i not in (0, 5) else 4)
                if i == 7:
                    step.optimizer.param_groups[0]["lr"].fill_(1e-3)
                terms = take(part.x, part.y, 0.2 + 0.05 * i, len(part) / N, part.weights)
                seen.append(torch.stack([terms.kl, terms.nll]).clone())
        parameters = [p.detach() for p in trained(step.optimizer)]
        ends.append((torch.stack(seen), deepcopy(parameters)))
    torch.testing.assert_close(ends[1][0], ends[0][0])
    for one, other in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(other, one)
    assert cuda.captures == 1


def test_it_captures_again_after_a_reset(cuda: FakeCuda) -> None:
    step, rows = made()
    cuda.state = [step.optimizer]
    take = GraphStep(step, rows)
    with isolated(0):
        for _ in range(2):
            for _ in range(GraphStep.WARM_UP + 2):
                take(rows.x, rows.y, 0.2, B / N)
            take.reset()
    assert cuda.captures == 2


class Scaled(nn.Linear):
    """A linear map times an attribute."""

    t = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.t


@pytest.mark.parametrize("whole", [False, True])
def test_a_graph_is_told_of_a_network_that_changed(
    whole: bool, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on with the operations that it holds, whether these were recorded before or not."""
    monkeypatch.setattr(whole_step, "compile", lambda graph, inputs: graph)
    with isolated(1):
        model = BayesianNetwork(Scaled(4, 2), priors.Normal(), likelihoods.Normal(0.5), N)
        guide = MeanFieldNormal(model)
        rows = Split(torch.randn(B, 4), torch.randn(B, 2))
        guide(rows.x)
        optimizer = adam(guide.parameters())
        cuda.state = [optimizer]
        step = make_step(model, guide, optimizer, rows, fast="eager")
        if whole:
            step = WholeStep(model, guide, optimizer, element_wise(model, guide, rows), 1, (rows.x, rows.y))
        graph = GraphStep(step, rows)
        for _ in range(GraphStep.WARM_UP + 3):
            graph(rows.x, rows.y, 0.2, B / N)
        assert graph.ready
        before = deepcopy((guide.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
        graph.check_still(rows, model)
        torch.testing.assert_close(
            (guide.state_dict(), optimizer.state_dict(), torch.get_rng_state()), before, rtol=0, atol=0
        )
        model.network.t = 0.5
        with pytest.raises(ValueError, match="the network changed in training, and its step did not see it"):
            graph.check_still(rows, model)


def another_average(optimizer: torch.optim.Optimizer) -> None:
    own = optimizer.state[trained(optimizer)[0]]
    own["exp_avg"] = torch.zeros_like(own["exp_avg"])


@pytest.mark.parametrize("change", [lambda optimizer: optimizer.state.clear(), another_average])
def test_it_captures_again_when_the_moments_lie_elsewhere(change: Any, cuda: FakeCuda) -> None:
    """The graph would write into memory that may be another's by now."""
    ends = []
    for graph in (False, True):
        step, rows = made()
        cuda.state = [step.optimizer]
        take = GraphStep(step, rows) if graph else step
        with isolated(7):
            for i in range(2 * GraphStep.WARM_UP + 6):
                if i == GraphStep.WARM_UP + 3:
                    change(step.optimizer)
                take(rows.x, rows.y, 0.2, B / N)
        ends.append([p.detach() for p in trained(step.optimizer)])
    assert cuda.captures == 2
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(other, one)


def test_a_batch_of_another_type_is_taken_as_it_is(cuda: FakeCuda) -> None:
    """The memory of the first batch's whole numbers would round it."""
    ends = []
    for graph in (False, True):
        step, rows = made()
        whole = replace(rows, y=rows.y.long())
        cuda.state = [step.optimizer]
        take = GraphStep(step, whole) if graph else step
        with isolated(7):
            for _ in range(GraphStep.WARM_UP + 2):
                take(rows.x, whole.y, 0.2, B / N)
            ends.append(take(rows.x, rows.y, 0.2, B / N).nll.clone())
    assert cuda.captures == 1
    torch.testing.assert_close(*ends)


def test_a_step_of_several_processes_becomes_a_graph(cuda: FakeCuda) -> None:
    """As far as one process shows it: the sum over the processes is one of the captured operations.

    A check sums too, so all processes enter it, or none.
    """
    ends: list[list[Tensor]] = []
    sums: list[int] = []

    class Noted(ProcessGroup):
        without = False  # a graph in the other process

        def sum_(self, values: Tensor) -> None:
            sums.append(len(values))
            values.mul_(1.0)  # stands for the all-reduce, in place

        def any(self, *flags: bool) -> list[bool]:
            return [flag or self.without for flag in flags]

    for graph in (False, True):
        step, rows = made()
        summed: Any = SummedStep(step, Noted(0, 2))
        cuda.state = [step.optimizer]
        take = GraphStep(summed, rows) if graph else summed
        with isolated(7):
            for i in range(9):
                part = rows.head(4 if i == 6 else B)
                take(part.x, part.y, 0.2 + 0.05 * i, len(part) / N)
        ends.append([p.detach() for p in trained(step.optimizer)])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(other, one)
    assert cuda.captures == 1
    # the first call, before which there were no moments; the short batch and the capture itself
    assert len(sums) == 9 + 1 + GraphStep.WARM_UP + 2
    for without, summed_again in ((True, 0), (False, 1)):
        before, summed.ranks.without = len(sums), without
        take.check_still(rows, nn.Module())
        assert len(sums) == before + summed_again


class OneOfTwo(ProcessGroup):
    """The first of two processes, whose other has the same to say."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def sum_(self, values: Tensor) -> None:
        values.mul_(2.0)

    def any(self, *flags: bool) -> list[bool]:
        return list(flags)

    def broadcast_(self, values: Tensor) -> None: ...

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


def test_no_graph_of_several_processes_outlives_its_training(cuda: FakeCuda) -> None:
    """NCCL would wait for it, without end, when the process leaves the group."""
    training = small_training(None, ranks=OneOfTwo())
    cuda.state = [training.optimizer]
    step = training.step = GraphStep(training.step, training.train.head(training.own_rows))
    training.run()
    assert cuda.captures == 1
    assert step.one is None


@pytest.mark.parametrize(("stop", "whole"), [(None, False), (9, False), (None, True), (9, True)])
def test_a_training_takes_many_steps_per_launch(
    stop: int | None, whole: bool, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same steps, history and checkpoints as one by one: with a short last batch, interrupted or not.

    Also with the optimiser in the program, which is only recorded here.
    """
    monkeypatch.setattr(GraphStep, "MANY", 4)
    monkeypatch.setattr(whole_step, "compile", lambda graph, inputs: graph)
    ends, launches = [], []
    for graph in (False, True):
        count, launching = 0, 0.0
        folder = tmp_path / str(graph)
        for _ in range(1 if stop is None else 2):
            training = small_training(folder)
            step: Any = training.step
            if graph:
                cuda.state = [training.optimizer]
                first = training.train.head(B)
                if whole:
                    model, guide = training.model, training.guide
                    with isolated():
                        segments = element_wise(model, guide, first)
                        training.step = WholeStep(
                            model, guide, training.optimizer, segments, 1, (first.x, first.y)
                        )
                step = training.step = GraphStep(training.step, first)
                taken = step.take_many

                def counted(first: int, taken: Any = taken) -> Any:
                    nonlocal count, launching
                    count += 1
                    began = perf_counter()
                    found = taken(first)
                    launching += perf_counter() - began
                    return found

                monkeypatch.setattr(step, "take_many", counted)
            if training.resume() or stop is None:
                training.run()
                break
            step_of = training.progress.step
            monkeypatch.setattr(training.progress, "step", Interrupting(step_of, stop))
            with pytest.raises(KeyboardInterrupt):
                training.run()
        launches.append(count)
        assert training.history.train_seconds > launching
        rows = [replace(row, seconds=0.0) for row in training.history.rows]
        ends.append((rows, [p.detach().clone() for p in training.named.values()], training.noise["cpu"]))
    assert launches[0] == 0
    assert launches[1] >= 2
    assert len(ends[0][0]) == 4
    for one, other in zip(ends[0][0], ends[1][0], strict=True):
        for a, b in zip(astuple(one), astuple(other), strict=True):
            assert a == pytest.approx(b, rel=1e-9, nan_ok=True)
    for a, b in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    if stop is None:
        assert torch.equal(ends[0][2], ends[1][2])


def test_where_many_steps_cannot_be_captured_they_go_one_by_one(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same steps, with a line."""
    ends, said = [], list[str]()
    for many in (True, False):
        training = small_training(None)
        cuda.state = [training.optimizer]
        step = training.step = GraphStep(training.step, training.train.head(B), said.append)
        if many:

            def fails(*read: Any) -> Any:
                raise RuntimeError("no room for it")

            monkeypatch.setattr(step.step, "take_all", fails)
        else:
            monkeypatch.setattr(step, "can_take_many", False)
        training.run()
        assert step.one is not None
        assert step.many is None
        ends.append([p.detach().clone() for p in training.named.values()])
    (line,) = said
    assert line.startswith("training with one launch per step: ")
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("full", "each", "large"), [(390, 30, 5), (468, 26, 4), (7, 7, 4), (31, 30, 4), (1, 1, 2)]
)
def test_few_steps_of_an_epoch_are_left_over(
    full: int, each: int, large: int, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MNIST's 50,000 and 60,000 images are 390 and 468 minibatches of 128, and a shorter one."""
    step, rows = made(nn.Sequential(nn.Linear(4, 2)))
    graph = GraphStep(step, rows)
    graph.begin_epoch(rows, torch.zeros(full, B, dtype=torch.int64), [1.0] * full)
    assert graph.steps_per_launch == each
    monkeypatch.setattr(cuda_graph, "ROOM", 5 * rows.x.nbytes + 1)  # for large inputs, and one step more
    graph.begin_epoch(rows, torch.zeros(full + 1, B, dtype=torch.int64), [1.0] * (full + 1))
    assert graph.steps_per_launch == large


def small_training(folder: Path | None, **options: Any) -> Training:
    """Ten minibatches of six rows and one of three, four epochs; in double precision."""
    with isolated(1):
        net = nn.Linear(4, 2).double()
        model = BayesianNetwork(net, priors.ScaleMixture(), likelihoods.Normal(0.5))
        rows = Split(torch.randn(63, 4).double(), torch.randn(63, 2).double())
        data = Dataset("made", rows, Spec(63, (4,), 2, "regression"))
        guide = MeanFieldNormal(model, init_rho=-2.0)
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.9)
    return Training(
        model, guide, data,
        epochs=4, batch_size=B, optim=adam, schedule=schedule, fast="eager", folder=folder, device="cpu",
        progress=Silent(), **options,
    )  # fmt: skip


class Interrupting:
    """Counts steps, and interrupts the training as Ctrl-C does after so many."""

    def __init__(self, step: Any, after: int) -> None:
        self.step, self.left = step, 2 * after

    def __call__(self) -> None:
        self.step()
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("small", [0, 10**9])
def test_what_cannot_be_captured_is_known_beforehand(
    small: int, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_SMALL", small)
    sync = "RuntimeError: called a synchronizing CUDA operation"
    for network, why in (
        (None, None),
        (nn.Sequential(nn.Linear(4, 2), Looking()), sync),
        (nn.Sequential(nn.Linear(4, 2), Synchronises()), sync),
    ):
        step, rows = made(network)
        before = [p.detach().clone() for p in trained(step.optimizer)]
        with isolated(4):  # as in a training: validation looks at values
            random = torch.get_rng_state()
            assert lost_by(step, rows.x, rows.y) == why
            assert torch.equal(torch.get_rng_state(), random)
        for value, p in zip(before, trained(step.optimizer), strict=True):
            assert torch.equal(p, value)
            assert p.grad is None
    step.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert lost_by(step, rows.x, rows.y) == "SGD cannot be captured"


EVERY: list[tuple[Any, Any, Any]] = [
    *((prior, likelihoods.Normal, MeanFieldNormal) for prior in PRIORS.values()),
    (priors.Learned(priors.Normal(), per="input"), likelihoods.Normal, MeanFieldNormal),
    (priors.Learned(priors.ScaleMixture()), likelihoods.Normal, MeanFieldNormal),
    *((priors.Normal(), likelihood, MeanFieldNormal) for likelihood in LIKELIHOODS.values()),
    (priors.Normal(), likelihoods.StudentT, MeanFieldNormal),
    (priors.Normal(), partial(likelihoods.Normal, dist.HalfNormal(1.0)), AutoNormal),
    (priors.Normal(), likelihoods.Poisson, MeanFieldNormal),
    (priors.Normal(), likelihoods.NegativeBinomial, MeanFieldNormal),
    *((priors.Normal(), likelihoods.Normal, guide) for guide in AUTOGUIDES.values()),
    *(
        (hierarchical, likelihoods.Normal, guide)
        for hierarchical in (priors.ARD(), priors.Horseshoe(), priors.GroupHorseshoe())
        for guide in (MeanFieldNormal, NonCentredNormal)
    ),
]


@pytest.mark.parametrize(("prior", "likelihood", "guide"), EVERY)
def test_nothing_of_ours_keeps_a_step_from_its_graph(
    prior: Any, likelihood: Any, guide: Any, cuda: FakeCuda
) -> None:
    """Torch's own distributions copy numbers from the host, as a Student t does two of its."""
    with isolated(1):
        observed = likelihood()
        network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, observed.width(2)))
        model = BayesianNetwork(network, prior, observed, N)
        q = guide(model)
        y = torch.arange(B) % 2
        if not isinstance(observed, likelihoods.Categorical):
            y = torch.stack([y, 1.0 - y], 1)
        rows = Split(torch.randn(B, 4), y)
        q(rows.x, rows.y)
        every = [p for p in (*q.parameters(), *model.parameters()) if p.requires_grad]
        program = pyro_program(model, q, every, 2)
        with Injected(None) as counting, pyro.validation_enabled(False):
            program(None, torch.ones(()), rows.x, rows.y, None)
        steps = [ProgramStep(program, adam(every), (counting.used,))]
        chosen = make_step(model, q, steps[0].optimizer, rows, fast="eager", samples=2)
        steps += [chosen] if isinstance(chosen, ProgramStep) else []
        with pyro.validation_enabled(False):
            assert [lost_by(step, rows.x, rows.y) for step in steps] == [None] * len(steps)


@pytest.mark.parametrize("number", [0.3, 2, True, np.float64(0.3), np.int32(2)])
def test_numbers_become_the_tensors_that_torch_makes(number: Any) -> None:
    like = torch.ones(3, dtype=torch.float64)
    made = {}
    for name, mode in (("torch", nullcontext()), ("ours", NumbersByKernels())):
        with mode:
            made[name] = [torch.tensor(number), torch.tensor(number, dtype=torch.float64, requires_grad=True),
                          like.new_tensor(number), like.new_tensor(data=number), torch.tensor([number]),
                          torch.tensor(data=number, device="cpu")]  # fmt: skip
    for one, other in zip(*made.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.requires_grad == other.requires_grad


def test_a_failed_capture_falls_back_and_leaves_everything_as_it_was(cuda: FakeCuda) -> None:
    """The steps after it are those of a training without graphs."""
    ends, said = [], []
    for graph in (False, True):
        with isolated(0):
            network = nn.Sequential(nn.Linear(4, 2), Looking())
        step, rows = made(network)
        cuda.state = [step.optimizer]
        take = GraphStep(step, rows, said.append) if graph else step
        with isolated(7):
            for _ in range(GraphStep.WARM_UP + 3):
                take(rows.x, rows.y, 0.2, B / N)
        ends.append([p.detach() for p in trained(step.optimizer)])
    assert cuda.captures == 2, "the one that failed, and one that ends it for the generator"
    assert cuda.left == [cuda], "the stream of the capture"
    assert said == [
        "training without a CUDA graph, bound by launches: RuntimeError: a value was looked at while a graph "
        "was being captured"
    ]
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=torch.tensor(1e-2), momentum=0.9, fused=True)


@pytest.mark.parametrize("make", [adam, sgd])
@pytest.mark.parametrize("schedule", ["OneCycleLR", "CyclicLR", "StepLR", "by hand", "memory"])
def test_schedules_of_other_hyperparameters_are_followed(make: Any, schedule: str, cuda: FakeCuda) -> None:
    """OneCycleLR and CyclicLR move momentum or betas at each step: no graph.

    By hand, once, or in other memory: a new one.
    """
    ends = []
    for graph in (False, True):
        step, rows = made(optim=make)
        cuda.state, cuda.captures = [step.optimizer], 0
        said: list[str] = []
        take = GraphStep(step, rows, said.append) if graph else step
        follow = {
            "OneCycleLR": partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.05, total_steps=20),
            "CyclicLR": partial(torch.optim.lr_scheduler.CyclicLR, base_lr=1e-3, max_lr=0.05, step_size_up=5),
            "StepLR": partial(torch.optim.lr_scheduler.StepLR, step_size=2),
            "by hand": lambda optimizer: None,
            "memory": lambda optimizer: None,
        }[schedule](step.optimizer)
        with isolated(7):
            for i in range(16):
                take(rows.x, rows.y, 0.2, B / N)
                if follow is not None:
                    follow.step()
                elif i == 7 and schedule == "memory":
                    for parameter in trained(step.optimizer):
                        parameter.data = parameter.data.clone()
                elif i == 7:
                    for group in step.optimizer.param_groups:
                        group["weight_decay"] = 0.1
        ends.append([p.detach() for p in trained(step.optimizer)])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(other, one)
    assert cuda.captures == {"StepLR": 1, "by hand": 2, "memory": 2}.get(schedule, 0)
    assert len(said) == (schedule not in ("StepLR", "memory"))


def test_capturable_means_steps_and_rates_on_the_device() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    assert capturable(adam(weights))
    assert capturable(sgd(weights))
    assert not capturable(torch.optim.Adam(weights, lr=0.1, fused=True, capturable=True))
    assert not capturable(torch.optim.Adam(weights, lr=0.1, fused=True))
    assert not capturable(torch.optim.SGD(weights, lr=torch.tensor(0.1)))
