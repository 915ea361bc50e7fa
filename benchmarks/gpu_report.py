"""The GPU's record as tables: a step in each of its ways, where its time goes, and chains side by side."""

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
WIDTHS = (400, 1200)
REST = "rates, sums, the batch's copies"


def report(record: dict[str, Any]) -> str:
    """The three tables."""
    ms = [record[f"step_{width}"]["ms"] for width in WIDTHS]
    rows = [
        [words, *(text for each in ms for text in (f"{each[key]:.3f}", f"{each[key] / each['ours']:.1f}"))]
        for key, words in WAYS.items()
    ]
    profiles = [shares(record[name]) for name in ("profile", "profile_tf32")]
    where = [[part, *(f"{us[part]:.0f}" for us in profiles)] for part in profiles[0]]
    seconds = [record[f"chains_{width}"]["seconds_per_epoch"] for width in WIDTHS]
    chains = [
        [f"2x{width}", *(f"{each[way]:.3f}" for way in ("alone", "together"))]
        for width, each in zip(WIDTHS, seconds, strict=True)
    ]
    device, count = record["device"], record["chains_400"]["chains"]
    head = [f"2x{width}, {what}" for width in WIDTHS for what in ("ms", "times ours")]
    return "\n\n".join(
        [
            f"{device['device']}, CUDA {device['cuda']}, torch {device['torch']}:",
            markdown(["a step", *head], rows),
            markdown(["part of a step of 2x1200, in us", "float32", "TF32"], where),
            markdown(
                [f"{count} chains, seconds an epoch of each", "one after the other", "side by side"], chains
            ),
        ]
    )


def shares(profile: dict[str, Any]) -> dict[str, float]:
    """Microseconds of a step by its parts, and in all."""
    us = dict.fromkeys([*PARTS, REST], 0.0)
    for kernel in profile["kernels"]:
        us[part_of(kernel["name"])] += kernel["us"]
    us["between kernels"] = 1e3 * (profile["wall_ms"] - profile["kernels_ms"])
    return us | {"all": 1e3 * profile["wall_ms"]}


def part_of(kernel: str) -> str:
    """The part of a step that a kernel belongs to, by its name."""
    return next((part for part, marks in PARTS.items() if any(mark in kernel for mark in marks)), REST)
