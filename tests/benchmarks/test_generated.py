"""What a step on CUDA launches and moves, from generated code: no device is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.generated import CASES, step_kernels, table

DOCS = Path(__file__).parents[2] / "docs"
RECORD = DOCS / "records" / "cuda_kernels.json"


@pytest.mark.parametrize(("case", "most"), [("Adam", 17), ("Adam, TF32", 15)])
def test_a_step_is_few_launches_and_210_megabytes(case: str, most: int) -> None:
    """784-1200-1200-10, batch 128, Adam; and as docs/benchmarks.md has it.

    In float32, two launches more for biases and activations save products that take half as long again.
    """
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    if torch.__version__.partition("+")[0] != found["torch"]:
        pytest.skip(f"the code generator that is mocked here is that of torch {found['torch']}")
    kernels = step_kernels(case=case)
    assert len(kernels) == found[case]["launches"] == most
    megabytes = sum(kernel.large for kernel in kernels) / 1e6
    assert megabytes == pytest.approx(found[case]["MB"], abs=0.1)
    assert megabytes <= 210


def test_the_page_has_the_records_table() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    assert table(found) in (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for name in CASES:
        assert sum(large for _, large, _ in found[name]["kernels"]) == pytest.approx(
            1e6 * found[name]["MB"], rel=1e-3
        )
        assert len(found[name]["kernels"]) == found[name]["launches"]
