"""The GPU's record as tables: milliseconds of a step in each of its ways, and where a step's time goes."""

from __future__ import annotations

from typing import Any

from benchmarks import generated
from experiments._runner.tables import markdown

WAYS = {
    "ours": "ours",
    "ours, TF32": "ours, TF32",
    "ours, not compiled": "ours, not compiled",
    "reference": "`pyro.infer.SVI` with `Trace_ELBO` (`fast=off`)",
    "pyro": "Pyro as usually written",
    "plain": "a plain network's step, without a graph",
}
PARTS = generated.PARTS | {  # what the libraries call their kernels
    "noise": ("distribution_elementwise",),
    "products": ("gemm", "cutlass", "cublas", "scal_kernel"),
}
REST = "rates, sums, the batch's copies"


def report(record: dict[str, Any]) -> str:
    """Both tables."""
    step, profile = record["step_1200"], record["profile"]
    ours = step["ms"]["ours"]
    rows = [[words, f"{step['ms'][key]:.3f}", f"{step['ms'][key] / ours:.2f}"] for key, words in WAYS.items()]
    shares = dict.fromkeys([*PARTS, REST], 0.0)
    for kernel in profile["kernels"]:
        shares[part_of(kernel["name"])] += kernel["us"]
    where = [[part, f"{us:.0f}"] for part, us in shares.items()]
    where.append(["between kernels", f"{1e3 * (profile['wall_ms'] - profile['kernels_ms']):.0f}"])
    device = record["device"]
    return "\n\n".join(
        [
            f"{device['device']}, CUDA {device['cuda']}, torch {device['torch']}:",
            markdown(["a step of 784-1200-1200-10", "ms", "times ours"], rows),
            markdown(["part of a step in float32", "us"], where),
        ]
    )


def part_of(kernel: str) -> str:
    """The part of a step that a kernel belongs to, by its name."""
    return next((part for part, marks in PARTS.items() if any(mark in kernel for mark in marks)), REST)
