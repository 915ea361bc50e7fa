"""Several processes train one posterior: the sum of their gradients, their files, and how they end."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from commands import command
from engine_fakes import Interrupts, Listens, Undefined, classes, classifier, normal
from parallel_fakes import Kills, environments, on_processes
from paths import ROOT
from pyrobbb import BayesianNetwork, MeanFieldNormal, fit, likelihoods
from pyrobbb._support.optim import trained
from pyrobbb._support.process_group import SINGLE, ProcessGroup, joined, noise_of
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import dispatch as choose
from pyrobbb.accelerated.dispatch import element_wise
from pyrobbb.accelerated.distributed_step import SummedReference, SummedStep
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.programs import flat_program
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Split
from pyrobbb.training import history
from pyrobbb.training.trainer import Training
from step_cases import PRIORS, Case

PI, N = 0.3, 30  # the KL's share, and the N of `Case`
PATHS = {"passes": ("eager", 0), "program": ("eager", 10**9), "reference": ("off", 0)}


class Alone(ProcessGroup):
    """One of several processes that never hears of the others: its own sum is the whole."""

    def sum_(self, values: Tensor) -> None:
        self.own = values.clone()


def own_sums(case: Case, rows: int, rank: int, size: int, noise: Tensor, fast: str) -> Tensor:
    """What process `rank` adds to the sum: gradients, KL times rows, NLL, rows."""
    ranks = Alone(rank, size)
    samples = len(noise)
    step: Any = case.step(fast=fast, samples=samples, ranks=ranks)
    assert isinstance(step, SummedReference if fast == "off" else SummedStep)
    whole = case.data.head(rows)
    mine = Split(ranks.shard(whole.x), ranks.shard(whole.y))
    share, data = PI * len(mine) / rows, len(mine) / N
    if len(mine) == 0:
        step(mine.x, mine.y, share, data)
    elif fast == "off":
        with Injected(noise.flatten()):
            step(mine.x, mine.y, share, data)
    else:
        step.evaluate(mine.x, mine.y, share, noise)
        step.optimise()
    return ranks.own


def whole_sums(case: Case, rows: int, noise: Tensor) -> Tensor:
    """The same of one process that has all rows, by Pyro's own SVI."""
    with Injected(noise.flatten()):
        terms = case.reference(len(noise)).evaluate(*_pair(case, rows), PI, rows / N)
    parameters = trained(case.optimizer)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return torch.cat(
        [*(g.flatten() for g in gradients), torch.stack([terms.kl * rows, terms.nll]).to(gradients[0])]
    )


def _pair(case: Case, rows: int) -> tuple[Tensor, Tensor]:
    part = case.data.head(rows)
    return part.x, part.y


def still_case(prior: str = "mixture") -> Case:
    """A case whose parameters no step changes."""
    case = Case(PRIORS[prior], "normal_learnt", dtype=torch.float64)
    for group in case.optimizer.param_groups:
        group["lr"] = 0.0
    return case


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(("rows", "size"), [(6, 2), (5, 2), (6, 4), (2, 3)])  # equal, unequal, an empty one
@pytest.mark.parametrize("path", PATHS)
def test_on_the_same_noise_the_sum_is_the_gradient_of_one_process(
    path: str, rows: int, size: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, small = PATHS[path]
    monkeypatch.setattr(choose, "_SMALL", small)
    case = still_case("partly_deterministic")
    with isolated(5):
        noise = torch.randn(samples, case.guide.loc.numel(), dtype=torch.float64)
    total = sum(own_sums(case, rows, rank, size, noise, fast) for rank in range(size))
    expected = whole_sums(case, rows, noise)
    assert float(total[-1]) == rows
    torch.testing.assert_close(total[:-1], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rows", [6, 3])
def test_on_noise_of_their_own_the_expected_sum_is_the_expected_gradient_of_one_process(rows: int) -> None:
    """Both means over many draws, apart by no more than their standard errors allow."""
    case = still_case()
    segments = element_wise(case.model, case.guide, case.data)
    program = flat_program(case.model, case.guide, segments, trained(case.optimizer), 500)
    one = ProgramStep(program, case.optimizer, (500, case.guide.loc.numel()))

    def mean(ranks: Alone) -> tuple[Tensor, Tensor]:
        """Of 20 times 500 draws, what this process adds to the sum; and the variance of that mean."""
        x, y = (ranks.shard(part) for part in _pair(case, rows))
        step = SummedStep(one, ranks)
        each = []
        with isolated(ranks.rank + 10 * ranks.size):
            for _ in range(20):
                step(x, y, PI * len(x) / rows, len(x) / N)
                each.append(ranks.own[:-1])
        return torch.stack(each).mean(0), torch.stack(each).var(0) / len(each)

    halves = [mean(Alone(rank, 2)) for rank in range(2)]
    total, variance = (sum(parts) for parts in zip(*halves, strict=True))
    expected, own = mean(Alone(0, 1))
    z = (total - expected).abs() / (variance + own + 1e-16).sqrt()
    assert float(z.max()) < 5


def test_terms_are_those_of_the_whole_minibatch() -> None:
    case = still_case()
    noise = torch.zeros(1, case.guide.loc.numel(), dtype=torch.float64)

    class Both(ProcessGroup):
        def sum_(self, values: Tensor) -> None:
            values += other

    other = own_sums(case, 5, 1, 2, noise, "eager")
    step: Any = case.step(fast="eager", ranks=Both(0, 2))
    step.share.fill_(PI * 3 / 5)
    kl, nll = step.compute(case.data.x[:5][::2], case.data.y[:5][::2], noise)
    expected = whole_sums(case, 5, noise)
    torch.testing.assert_close(torch.stack([kl * 5, nll]), expected[-2:], rtol=1e-6, atol=0.0)


def test_streams_differ_between_processes_numbers_of_them_and_steps() -> None:
    cpu = torch.device("cpu")
    keys = [(ProcessGroup(r, size), step) for size in (1, 2, 3) for r in range(size) for step in (0, 10)]
    states = [noise_of(ranks, cpu, 0, step)["cpu"] for ranks, step in keys]
    assert len({tuple(state.tolist()) for state in states}) == len(keys)


def test_one_process_agrees_with_itself_and_joins_nothing() -> None:
    with joined(torch.device("cpu")) as ranks:
        assert ranks is SINGLE
    assert not torch.distributed.is_initialized()
    assert SINGLE.any(True, False) == [True, False]
    assert SINGLE.gather("a") == ["a"]
    assert SINGLE.shard(torch.arange(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 1), ("cuda:1", 2)])
def test_each_process_needs_a_gpu_of_its_own(device: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in environments(2)[1].items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    refused = pytest.raises(ValueError, match=rf"use device=cuda, not {device}, .* has GPUs \({gpus}\)")
    with refused, joined(torch.device(device)):
        pass
    assert not torch.distributed.is_initialized()


def test_a_batch_smaller_than_the_processes_is_refused() -> None:
    data = classes(12)
    with pytest.raises(ValueError, match="batch_size 2 is less than the number of processes, 3"):
        Training(*classifier(data), data, epochs=1, batch_size=2, ranks=ProcessGroup(0, 3))


# Two real processes, on 61 rows in minibatches of 20: the last of an epoch has one row, and one shard none.
OPTIONS: dict[str, Any] = {"batch_size": 20, "fast": "eager", "seed": 3, "checkpoint_seconds": 0}
EPOCHS = 12


def training(folder: Path | None, ranks: ProcessGroup = SINGLE, **options: Any) -> Training:
    data = classes(61, validation=41)
    made = classifier(data, init_rho=-3.0)
    options = {"epochs": EPOCHS, "optim": fast_adam, **OPTIONS, **options}
    return Training(*made, data, folder=folder, ranks=ranks, **options)


def fast_adam(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=0.05)


def parameters(trained: Training) -> list[Tensor]:
    return [p.detach().clone() for p in trained.named.values()]


def whole_run(ranks: ProcessGroup, folder: Path) -> list[Tensor]:
    trained = training(folder, ranks)
    trained.run()
    return parameters(trained)


def stopped_and_resumed(ranks: ProcessGroup, folder: Path) -> tuple[int, list[Tensor]]:
    interrupts = [Interrupts(at=7, number=signal.SIGTERM)] if ranks.rank == 1 else []
    stopped = training(folder, ranks, callbacks=interrupts)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    steps = stopped.epoch * stopped.M + stopped.batch
    resumed = training(folder, ranks)
    assert resumed.resume()
    resumed.run()
    return steps, parameters(resumed)


def two_draws(case: Case) -> Tensor:
    with isolated(5):
        return torch.randn(2, case.guide.loc.numel(), dtype=torch.float64)


def summed(ranks: ProcessGroup, folder: Path) -> Tensor:
    """The gradients and terms of five rows, which two processes share."""
    case = still_case()
    step: Any = case.step(fast="eager", samples=2, ranks=ranks)
    x, y = (ranks.shard(part) for part in _pair(case, 5))
    step.share.fill_(PI * len(x) / 5)
    kl, nll = step.compute(x, y, two_draws(case))
    return torch.cat([*(p.grad.flatten() for p in step.parameters), torch.stack([kl * 5, nll])])


def test_two_processes_take_the_step_of_one_that_has_all_rows(tmp_path: Path) -> None:
    case = still_case()
    expected = whole_sums(case, 5, two_draws(case))
    for found in on_processes(2, summed, tmp_path):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_two_processes_train_one_posterior_and_resume_exactly(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir()
    halves.mkdir()
    first, second = on_processes(2, whole_run, whole)
    assert not isinstance(first, str), first
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert {p.name for p in whole.iterdir()} == {
        "chain-0.pt", "chain-0.before.pt", "history.csv", ".chain-0.lock"
    }  # fmt: skip
    assert [row.epoch for row in history.read(whole / "history.csv")] == list(range(1, EPOCHS + 1))
    begun = parameters(training(tmp_path / "begun"))
    assert not any(torch.equal(a, b) for a, b in zip(first, begun, strict=True))

    ends = on_processes(2, stopped_and_resumed, halves)
    assert [steps for steps, _ in ends] == [7, 7]  # one was sent the signal, both stopped at the same step
    for _, end in ends:
        assert all(torch.equal(a, b) for a, b in zip(first, end, strict=True))


def loses_one(ranks: ProcessGroup, folder: Path) -> None:
    training(folder, ranks, kl=Kills(epoch=4, i=2)).run()


def test_a_lost_process_ends_the_run_with_a_checkpoint_for_any_number(tmp_path: Path) -> None:
    message, killed = on_processes(2, loses_one, tmp_path)
    assert killed is None
    assert message.startswith("LostProcessError: another process of this run ended")
    assert f"the last checkpoint is {tmp_path / 'chain-0.pt'}: the same command resumes it" in message
    heard = Listens()
    alone = training(tmp_path, progress=heard)
    assert alone.resume()
    assert (alone.epoch, alone.batch) == (3, 1)
    assert "2 processes made" in heard.said[0]
    taken_up = parameters(alone)
    assert [row.epoch for row in alone.run().rows] == list(range(1, EPOCHS + 1))
    assert not any(torch.equal(a, b) for a, b in zip(taken_up, parameters(alone), strict=True))


def has_a_row_without_output(ranks: ProcessGroup, folder: Path) -> None:
    x = normal(40, 2)
    held = x[:6].clone()
    held[3] = 10.0  # the second of process 1
    data = from_arrays(x, x, task="regression", validation=(held, held))
    model = BayesianNetwork(Undefined(2, 2), likelihood=likelihoods.Normal(1.0))
    fit(model, MeanFieldNormal(model), data, epochs=1, progress=None, device="cpu", ranks=ranks)


def test_a_validation_row_without_output_ends_all_processes_with_the_same_error(tmp_path: Path) -> None:
    first, second = on_processes(2, has_a_row_without_output, tmp_path)
    assert first == second
    assert "NonFiniteLossError: validation after epoch 1" in first
    assert "NaN for row 1 of x, counted from 0 (of rows 1, 3 and so on)" in first


TINY = ["data=blobs", "model.hidden=[8]", "epochs=6", "batch_size=25", "draws=5", "validation_draws=1"]
TINY += ["figures=false", "report=false", "checkpoint_seconds=0"]
TINY += ["kl._target_=parallel_fakes.Kills", "+kl.epoch=5", "+kl.i=3"]
SUPPORT = ROOT / "tests" / "support"  # where the command finds `Kills`


def at_once(*words: str) -> tuple[list[int], str]:
    """The command in two processes, as torchrun starts them: how each ended, and what both said of it.

    The store is kept by another process than these two, as torchrun's is, and so outlives both. torchrun
    itself is run by tests/project/test_site_commands.py.
    """
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    agent["MASTER_PORT"] = str(store.port)
    with ThreadPoolExecutor(2) as threads:
        done = [
            threads.submit(command, SUPPORT, "experiments.run", *words, **(environment | agent))
            for environment in environments(2)
        ]
    return [one.result().returncode for one in done], "".join(one.result().stderr for one in done)


def test_what_the_first_process_alone_knows_is_the_one_message(tmp_path: Path) -> None:
    wrong = ["data=mnist", f"data.root={tmp_path}/nowhere", f"folder={tmp_path}/run"]
    ends, said = at_once(*wrong)
    assert ends == [2, 2]
    ours = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(ours) == 1, said
    assert f"{tmp_path}/nowhere" in ours[0]
    assert not (tmp_path / "run").exists()


def test_two_commands_leave_one_set_of_files_and_one_message(tmp_path: Path) -> None:
    words = [*TINY, f"folder={tmp_path}"]
    ends, said = at_once(*words)
    assert ends == [2, -signal.SIGKILL]
    ours = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(ours) == 1, said
    assert "another process of this run ended" in ours[0]
    assert str(tmp_path / "chain-0.pt") in ours[0]
    assert "epoch 1/6: free energy" in said
    assert len(history.read(tmp_path / "history.csv")) == 4
    again = command(SUPPORT, "experiments.run", *words)
    assert "resuming at epoch 4 of 6" in again.stderr
    assert json.loads((tmp_path / "metrics.json").read_text())["processes"] == 1
    assert len(history.read(tmp_path / "history.csv")) == 6
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["epochs"] == 6
