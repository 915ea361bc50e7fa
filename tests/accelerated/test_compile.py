"""Compiled programs: apart on disk for each instruction set, and compared once with the program itself."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from commands import interpreter
from pyrobbb import likelihoods
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import compile as compiling
from pyrobbb.accelerated.compile import CannotCompileError, compile, prepared
from pyrobbb.accelerated.record import record
from pyrobbb.bandits import PointLearner
from step_cases import PRIORS, Case

NOISE = """
import torch
from pyrobbb.accelerated.rng import Normals
torch.manual_seed(3)
noise = Normals(20_000, torch.zeros(1), compiled=True)
noise.draw()
print(torch.backends.cpu.get_cpu_capability(), float(noise.values.std()), float(noise.values[:100].sum()))
"""


def _drawn(cache: Path, capability: str) -> tuple[str, float, float]:
    """What a fresh process says of its compiled noise."""
    done = interpreter("-c", NOISE, TORCHINDUCTOR_CACHE_DIR=str(cache), ATEN_CPU_CAPABILITY=capability)
    name, deviation, total = done.stdout.split()
    return name, float(deviation), float(total)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="needs two instruction sets")
@pytest.mark.parametrize("order", [("avx512", "avx2"), ("avx2", "avx512")])
def test_two_instruction_sets_share_a_cache(order: tuple[str, str], tmp_path: Path) -> None:
    found = [_drawn(tmp_path, capability) for capability in order]
    assert {name for name, _, _ in found} == {"AVX512", "AVX2"}
    for _, deviation, total in found:
        assert deviation == pytest.approx(1.0, abs=5 / 200)
        assert total == pytest.approx(found[0][2], abs=1e-3)


def test_the_environment_is_as_it_was_after_a_compilation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for before in (None, str(tmp_path)):
        if before is None:
            monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        else:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before)
        with compiling._own_cache():
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != before
        assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs that compute 0.7 of what they should, as code for other vectors did."""

    def wrong(graph: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            results = graph(*given)
            for value in [*given, *(results if isinstance(results, list | tuple) else [results])]:
                if isinstance(value, Tensor) and value.is_floating_point():
                    value.mul_(0.7)
            return results

        return run

    monkeypatch.setattr(compiling, "_compile", wrong)
    monkeypatch.setattr(compiling, "_COMPILED", {})


WRONG = "the compiled program and the program itself give different results"


def test_a_program_that_computes_something_else_is_refused(broken: None) -> None:
    x = torch.linspace(-1, 1, 50)
    with pytest.raises(CannotCompileError, match=WRONG):
        compile(record(torch.sin, [x]), [x])
    assert torch.equal(x, torch.linspace(-1, 1, 50))
    with pytest.warns(UserWarning, match=WRONG):
        run = prepared(torch.sin, [x])
    assert torch.equal(run(x), x.sin())


@pytest.mark.parametrize("small", [0, 10**9])
def test_a_training_falls_back_in_one_line(small: int, broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobbb.accelerated.dispatch._SMALL", small)
    case = Case(PRIORS["mixture"])
    step = case.step(fast="compiled")
    begins, falls_back = case.said
    assert begins.startswith("compiling the training step")
    assert falls_back.startswith("training without compiled code")
    assert WRONG in falls_back
    case.assert_close(step)


def test_a_bandit_falls_back_in_one_line(broken: None) -> None:
    with isolated(0):
        net = nn.Linear(3, 1)
    x, y = torch.rand(1, 5, 3), torch.rand(1, 5, 1)
    learners = [PointLearner([net], likelihoods.Normal(0.1), compiled=compiled) for compiled in (True, False)]
    with pytest.warns(UserWarning, match=WRONG):
        learners[0].train(x, y)
    learners[1].train(x, y)
    assert torch.equal(learners[0].update.loc, learners[1].update.loc)


def test_products_come_out_transposed_where_only_their_transpose_is_used() -> None:
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)

    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        product, other = a @ b, b.mT @ a.mT
        return [product.mT.contiguous(), other, other.mT + 1]

    graph = record(program, [a, b])
    for ours, exact in zip(graph(a, b), program(a, b), strict=True):
        torch.testing.assert_close(ours, exact)
    turned = [node for node in graph.graph.nodes if node.target is torch.ops.aten.bmm.default]
    assert len(turned) == 2
