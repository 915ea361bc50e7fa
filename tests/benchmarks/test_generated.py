"""What a step on CUDA launches and moves, from generated code: no device is needed."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.generated import CASES, step_kernels, table

DOCS = Path(__file__).parents[2] / "docs"
RECORD = DOCS / "records" / "cuda_kernels.json"


def test_a_step_is_few_launches_and_210_megabytes() -> None:
    """784-1200-1200-10, batch 128, Adam; and as docs/benchmarks.md has it.

    In float32, two launches more for biases and activations save products that take half as long again. In
    TF32 these are within the products (tests/accelerated/test_whole_step.py), and the rest is the same code.
    """
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    if torch.__version__.partition("+")[0] != found["torch"]:
        pytest.skip(f"the code generator that is mocked here is that of torch {found['torch']}")
    kernels = step_kernels()
    assert len(kernels) == found["Adam"]["launches"] == 17
    megabytes = sum(kernel.large for kernel in kernels) / 1e6
    assert megabytes == pytest.approx(found["Adam"]["MB"], abs=0.1)
    assert megabytes <= 210
    in_tf32 = found["Adam, TF32"]
    assert (in_tf32["launches"], in_tf32["MB"]) == (15, pytest.approx(megabytes, abs=2.5))


def test_the_page_has_the_records_table() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    assert table(found) in (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for name in CASES:
        assert sum(large for _, large, _ in found[name]["kernels"]) == pytest.approx(
            1e6 * found[name]["MB"], rel=1e-3
        )
        assert len(found[name]["kernels"]) == found[name]["launches"]
