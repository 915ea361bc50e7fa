"""Tables in plain text and in Markdown, and numbers over seeds with their spread."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import scipy

Writer = Callable[[Sequence[str], Iterable[Sequence[object]]], str]  # `table` or `markdown`


def mean_sd(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation (n - 1) over seeds, `1.83 ± 0.05`; one shows no spread, none is `-`."""
    if not values:
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and 95 % interval of it by Student's t over seeds (at least two)."""
    mean = float(np.mean(values))
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - half, mean + half


def estimate(values: Sequence[float], digits: int, sign: bool = False) -> str:
    """`1.83 (1.71 to 1.95)`: mean and 95 % interval over seeds; a single value stands alone."""
    kind = f"{'+' if sign else 'z'}.{digits}f"  # a difference of -0.00 is below 0; a value of -0 is 0
    if len(values) == 1:
        return f"{values[0]:{kind}}"
    mean, low, high = (f"{value:{kind}}" for value in interval(values))
    return f"{mean} ({low} to {high})"


def seeds(count: int) -> str:
    """`one seed`, `3 seeds`."""
    return "one seed" if count == 1 else f"{count} seeds"


def verdict(differences: Sequence[float]) -> str:
    """Whether differences over seeds are above 0: by their 95 % interval."""
    if len(differences) < 2:
        return seeds(1)
    _, low, high = interval(differences)
    return "holds" if low > 0 else "does not hold" if high < 0 else "undecided"


def of_seeds(seeds: Iterable[int]) -> str:
    """The line under a table made with `mean_sd`, naming its seeds."""
    chosen = list(seeds)
    return seeds_by_name(chosen) + ("; mean ± standard deviation over them" if len(chosen) > 1 else "")


def seeds_by_name(seeds: Sequence[int]) -> str:
    """`seed 1`, `seeds 1, 2, 3`."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns of text, the first to the left; numbers are shown as given, so round them first."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if i else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
