"""The tables of docs/benchmarks.md."""

from __future__ import annotations

from experiments._runner.tables import markdown
from experiments.results.records import Record


def steps(record: Record) -> str:
    """Milliseconds and ratios of a training step."""
    blocks = []
    for size, found in record["step"].items():
        if not size.startswith("2x"):
            continue  # the versions of other libraries
        width, plain = size.replace("2x", ""), found["ms"]["plain"]
        times = [[name, f"{ms:.2f}", f"{ms / plain:.2f}"] for name, ms in found["ms"].items()]
        ratios = []
        for key in found:
            if key.startswith("ratio") and not key.endswith("quartiles"):
                low, high = found[f"{key}_quartiles"]
                ratios.append([key.replace("_", " "), f"{found[key]:.2f}", f"{low:.2f} to {high:.2f}"])
        blocks.append(f"784-{width}-{width}-10:")
        blocks.append(markdown(["step", "ms, median", "times the plain step's median"], times))
        blocks.append(markdown(["of each round", "median", "quartiles"], ratios))
    return "\n\n".join(blocks)


def aims(record: Record) -> str:
    """What is aimed at, and what was found."""
    rows = []
    for one in record["targets"]:
        met = "holds" if one["holds"] else "missed"
        rows.append([f"`{one['figure']}`", f"{one['at_most']:g}", f"{one['value']:.2f}", met])
    return markdown(["figure", "at most", "found", ""], rows)
