"""What a long life of a process brings: too little memory, many fits, many threads."""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from commands import command
from engine_fakes import normal, nothing_changes
from pyrobbb import BayesianNetwork, Posterior, fit_table, likelihoods, priors
from pyrobbb._support import random_state
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import compile as record
from pyrobbb.data import Blobs, from_table
from pyrobbb.experiment import Run
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp

# Too little memory


class Narrow(nn.Module):
    """A linear map for which more than `room` rows, or numbers of all draws together, are too much."""

    def __init__(self, room: float, error: Callable[[], Exception], width: int = 2) -> None:
        super().__init__()
        self.layer, self.room, self.error = nn.Linear(3, width), room, error
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x)
        if len(x) > self.room:
            raise self.error()
        self.most = max(self.most, len(x))
        return output


ERRORS: list[Callable[[], Exception]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory"),
    lambda: RuntimeError("[enforce fail] data. DefaultCPUAllocator: can't allocate memory: you tried to"),
    MemoryError,
]


def posterior(net: nn.Module, likelihood: likelihoods.Likelihood | None = None) -> Posterior:
    with isolated(0):
        model = BayesianNetwork(net, priors.Normal(), likelihood or likelihoods.Normal(0.1), 20)
        guide = MeanFieldNormal(model, init_rho=-1.0)
        guide(torch.zeros(1, 3))
    return Posterior([(model, guide)])


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("width", [2, 20_000])  # draws side by side, and one after the other
def test_blocks_become_smaller_and_the_draws_stay(
    error: Callable[[], Exception], width: int, caplog: pytest.LogCaptureFixture
) -> None:
    with isolated(1):
        whole = posterior(Narrow(20, error, width))
        x = normal(20, 3)
        expected = whole.predict(x, draws=4, sample=True)
        network: Any = whole.model.network
        network.room, network.most = 6, 0
        with nothing_changes():
            found = whole.predict(x, draws=4, sample=True)
    assert network.most == 5
    torch.testing.assert_close(found.means, expected.means)
    torch.testing.assert_close(found.samples, expected.samples)
    assert [r.message for r in caplog.records] == [
        f"out of memory for 20 rows and {4 if width == 2 else 1} draws at a time; retrying with fewer"
    ]


def test_one_row_and_one_draw_that_do_not_fit() -> None:
    with isolated(1):
        tight = posterior(Narrow(20, ERRORS[0]))
        tight.predict(normal(4, 3), draws=2)
        network: Any = tight.model.network
        network.room = 0.5
        with pytest.raises(torch.OutOfMemoryError):
            tight.predict(normal(4, 3), draws=2)


def test_other_errors_are_not_taken_for_it() -> None:
    with isolated(1):
        broken = posterior(Narrow(1, lambda: RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            broken.predict(normal(4, 3), draws=2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
def test_the_kernel_refuses_memory(tmp_path: Path) -> None:
    """Two draws of 20,000 rows of 2,000 units are 320 MB: more than the process may have; in blocks, less."""
    program = """
import resource, torch
from torch import nn
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb import BayesianNetwork, Posterior, likelihoods, priors
from pyrobbb._support.random_state import isolated
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 2000), nn.ReLU(), nn.Linear(2000, 1))
model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1), 10)
guide = MeanFieldNormal(model)
guide(torch.zeros(1, 3))
posterior, x = Posterior([(model, guide)]), torch.randn(20_000, 3)
small = posterior.predict(x, draws=2)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150_000_000, resource.RLIM_INFINITY))
large = posterior.predict(x, draws=2, rows=20_000, megabytes=100_000)
torch.testing.assert_close(small.means, large.means)
"""
    (tmp_path / "large.py").write_text(program)
    done = command(tmp_path, "large")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("out of memory for 20000 rows and 2 draws at a time; retrying with fewer") == 1


# Many fits


def tiny(seed: int = 0, hidden: Sequence[int] = (5,), **options: Any) -> Run:
    return Run(
        data=Blobs(N=30, validation=10, test=10),
        model=partial(mlp, hidden=hidden),
        prior=priors.ScaleMixture() if hidden else priors.Normal(),
        likelihood=likelihoods.Categorical(),
        guide=MeanFieldNormal,
        optim=partial(torch.optim.Adam, lr=1e-2),
        epochs=2,
        batch_size=10,
        draws=2,
        seed=seed,
        device="cpu",
        **options,
    )


def alive() -> dict[str, int]:
    gc.collect()
    counts = {"tensor": 0, "module": 0, "optimiser": 0}
    # isinstance would ask proxies, some of which warn or are gone
    for kind, count in Counter(map(type, gc.get_objects())).items():
        counts["tensor"] += count * issubclass(kind, Tensor)
        counts["module"] += count * issubclass(kind, nn.Module)
        counts["optimiser"] += count * issubclass(kind, torch.optim.Optimizer)
    return counts


@pytest.mark.parametrize("fast", ["auto", "eager", "off"])
def test_a_fit_leaves_nothing_behind(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobbb.accelerated.compilation_cost._OF_RECORDING", 1e-9)  # "auto": replayed
    tiny(fast=fast).execute()
    before = alive()
    for seed in range(2):
        tiny(seed, fast=fast).execute()
    assert alive() == before


def test_the_same_step_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_COMPILED", {})
    compiled, compile_ = [], record._compile
    monkeypatch.setattr(record, "_compile", lambda *given: compiled.append(1) or compile_(*given))
    runs = [tiny(seed, hidden=(), fast="compiled") for seed in (1, 2, 1)]  # less to compile
    one, other, same = (run.execute().posterior for run in runs)
    assert len(compiled) == len(record._COMPILED) > 0
    locs = [p.chains[0][1].loc for p in (one, other, same)]
    assert torch.equal(locs[0], locs[2])
    assert not torch.equal(locs[0], locs[1])


# Many threads


def parameters(seed: int) -> list[Tensor]:
    guide = tiny(seed, fast="off" if seed % 2 else "eager").execute().posterior.chains[0][1]
    return [value.detach().clone() for value in guide.parameters()]


def test_eight_fits_in_eight_threads_end_as_one_after_another() -> None:
    alone = list(map(parameters, range(8)))
    with nothing_changes(), ThreadPoolExecutor(8) as threads:
        together = list(threads.map(parameters, range(8)))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def turn_is_taken() -> bool:
    """Whether a thread of its own would have to wait."""

    def free() -> bool:
        if found := random_state._TURN.acquire(blocking=False):
            random_state._TURN.release()
        return found

    with ThreadPoolExecutor(1) as thread:
        return not thread.submit(free).result()


class Watched(nn.Sequential):
    """A network that notes whether it is read in turn: in a prediction, draws lie in the place of weights."""

    seen: ClassVar[list[bool]]
    one: ClassVar[nn.Module]  # not its copies, which nobody else has

    def __init__(self) -> None:
        super().__init__(nn.Embedding(7, 3, padding_idx=0), nn.Flatten(), nn.Linear(9, 1))

    def __getattribute__(self, name: str) -> Any:
        if name in ("__getstate__", "state_dict", "get_buffer") and self is getattr(Watched, "one", None):
            Watched.seen.append(turn_is_taken())
        return super().__getattribute__(name)


READS: dict[str, Callable[[Posterior, Path], object]] = {
    "function": lambda p, _: p.function(0),
    "draws of a sampler": lambda p, _: Posterior([(p.model, EmpiricalGuide(p.model, 1))]).draw(1),
    "mean weights": lambda p, _: p.mean_weights(),
    "save": lambda p, folder: p.save(folder),
    "load": lambda p, folder: Posterior.load(folder, *p.chains[0]),
}


@pytest.mark.parametrize("read", READS)
def test_a_network_is_read_in_turn(read: str, tmp_path: Path) -> None:
    with isolated(0):
        model = BayesianNetwork(Watched(), priors.Normal(), likelihoods.Normal(0.1), 20)
        guide = MeanFieldNormal(model, init_rho=-1.0)
        guide(torch.zeros(1, 3, dtype=torch.long))
    whole = Posterior([(model, guide)])
    whole.save(tmp_path)
    Watched.one, Watched.seen = model._modules["network"], []
    READS[read](whole, tmp_path)
    assert Watched.seen
    assert all(Watched.seen)


class InTurn(TorchDataset[tuple[Tensor, Tensor]]):
    """Rows that may draw, as the generator is seeded for each, or take a gradient, as in a training."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        assert turn_is_taken()
        assert torch.is_grad_enabled()
        return torch.randn(3), torch.randn(2)


def test_a_data_set_is_read_in_turn() -> None:
    whole = posterior(nn.Linear(3, 2))
    with nothing_changes():
        whole.predict(InTurn(), draws=2)


def test_a_table_is_fitted_on_one_thread_of_torchs_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads, seen = torch.set_num_threads, []

    def noted(count: int) -> None:
        seen.append(turn_is_taken())
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", noted)
    table = from_table({"x": [0.0, 1.0, 2.0], "y": [0.0, 2.5, 4.0]}, target="y")
    fit_table(table, noise="learned", hidden=(50,), epochs=1, fast="off", progress=None)
    assert seen == [True, True]  # else another thread could put back a number that is not the user's
