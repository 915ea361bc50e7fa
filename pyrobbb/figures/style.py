"""One look for all figures: colours that colour-blind readers can tell apart, thin axes, no clutter."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from pyrobbb._support.files import replacing

# Okabe and Ito's palette
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, BLACK = "#CC79A7", "#56B4E9", "#7F7F7F", "#222222"
CHAINS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, BLACK)

STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelcolor": BLACK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.dpi": 100,
    "figure.titlesize": 11,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same figure on every machine
    "font.size": 9.5,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "mathtext.fontset": "dejavusans",
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
    "text.color": BLACK,
    "xtick.color": "#444444",
    "xtick.labelsize": 9,
    "ytick.color": "#444444",
    "ytick.labelsize": 9,
}


# a decorator: on top of matplotlib's defaults, whatever the user's own settings, which are put back
styled = style.context(STYLE, after_reset=True)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, which keeps its parts from overlapping."""
    return Figure(
        figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.05, wspace=0.02)
    )


def caption(figure: Figure, title: str) -> None:
    """The figure's title, a sentence that says what it shows, at its upper left, wrapped to fit."""
    width = int(9.5 * figure.get_size_inches()[0])
    lines = [textwrap.fill(line, width) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontweight="bold")


def label(axes: Axes, x: str, y: str) -> None:
    """Name both axes, units included."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def verbatim(name: str) -> str:
    """A name from the data as matplotlib is to show it: between two dollar signs it would read a formula."""
    return name.replace("$", r"\$")


def data_points(axes: Axes, x: np.ndarray, y: np.ndarray, name: str) -> None:
    """Observations as dots; many of them small, translucent and behind the curves."""
    many = len(x) > 200
    size, edge, alpha, order = (2.0, 0.0, 0.5, 1.5) if many else (4.5, 0.6, 1.0, 3.0)
    axes.plot(x, y, "o", ms=size, mew=edge, mec="white", color=ORANGE, alpha=alpha, zorder=order, label=name)


def as_array(values: object) -> np.ndarray:
    """`values` as an array: a tensor may lie on any device."""
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def column(name: str, values: object, *, ndim: int = 1) -> np.ndarray:
    """`values` as a float array with `ndim` axes and at least one entry, or a ValueError with its name."""
    array = as_array(values).astype(float)
    if array.ndim != ndim or not array.size:
        raise ValueError(f"{name} must have {ndim} axes and at least one entry, got shape {array.shape}")
    return array


def columns(**given: object) -> dict[str, np.ndarray]:
    """Each as `column` gives it, or a ValueError unless all are equally long."""
    arrays = {name: column(name, values) for name, values in given.items()}
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all columns must be equally long, got {lengths}")
    return arrays


@styled
def save(figure: Figure, path: Path | str) -> None:
    """Write `figure` to `path`, whole or not at all; the ending says the format (.png, .pdf, .svg).

    Raises:
        ValueError: An ending that matplotlib cannot write.
    """
    path = Path(path)
    kinds = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in kinds:
        raise ValueError(f"path must end in one of {', '.join('.' + k for k in kinds)}, got {path.name!r}")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind)
