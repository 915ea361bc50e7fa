"""ArviZ's own plots of a posterior, as pictures: the same three in both of its generations.

ArviZ draws through pyplot; here no figure, setting, warning or seed of a plot outlives the call.
"""

import io
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from pyrobbb._support.text import reason
from pyrobbb.evaluation import arviz_io

WEIGHTS = 15  # in one forest
CURVES = 50  # draws of the posterior predictive
SIZE = (7.2, 4.2)  # inches
Picture = bytes


def pictures(data: Any, left_out: Any = None) -> dict[str, Picture | str]:
    """`plot_forest` of some weights, `plot_ppc` and `plot_khat` as PNG, each where what it needs is there.

    Where ArviZ fails there is what it said in place of the picture, as for a density of values all alike.

    Args:
        data: An `InferenceData` or `DataTree`, as `posterior.nc` holds.
        left_out: What `leave_one_out.loo` found, for `plot_khat`.
    """
    groups = arviz_io.group_names(data)
    wanted: dict[str, tuple[bool, Callable[[Any], Figure]]] = {
        "forest": ("posterior" in groups, _forest),
        "ppc": ({"posterior_predictive", "observed_data"} <= groups, _ppc),
        "khat": (left_out is not None, lambda _: _drawn("plot_khat", left_out)),
    }
    drawn: dict[str, Picture | str] = {}
    for name, (possible, draw) in wanted.items():
        if possible:
            state = np.random.get_state()  # noqa: NPY002, the one that ArviZ seeds
            with (
                matplotlib.rc_context({"figure.dpi": 110}),
                warnings.catch_warnings(),
                np.errstate(all="ignore"),
            ):
                warnings.simplefilter("ignore")  # of numbers that the plot itself shows
                try:
                    drawn[name] = _png(draw(data))
                except Exception as error:  # of whatever kind: the others are drawn all the same
                    drawn[name] = reason(error)
                finally:
                    np.random.set_state(state)  # noqa: NPY002
    return drawn


def _forest(data: Any) -> Figure:
    weights = list(data["posterior"]["parameter"].values)
    shown = weights[:: -(-len(weights) // WEIGHTS)]
    options: dict[str, Any] = {"var_names": ["weight"], "coords": {"parameter": shown}, "combined": True}
    if arviz_io.ARVIZ_GENERATION > 0:
        options["labels"] = ["parameter"]
    return _drawn("plot_forest", data, **options)


def _ppc(data: Any) -> Figure:
    chains, draws = data["posterior_predictive"]["y"].shape[:2]
    curves = min(CURVES, chains * draws)
    if arviz_io.ARVIZ_GENERATION > 0:
        return _drawn("plot_ppc_dist", data, num_samples=curves)
    return _drawn("plot_ppc", data, num_pp_samples=curves, random_seed=0)


def _drawn(plot: str, data: Any, **options: Any) -> Figure:
    """The figure of an ArviZ function: 1.x returns a collection, 0.x draws on axes that it is given."""
    function = getattr(arviz_io.import_arviz(), plot)
    if arviz_io.ARVIZ_GENERATION > 0:
        figure: Figure = function(data, backend="matplotlib", **options).viz["figure"].item()
        pyplot.close(figure)
        return figure
    figure = Figure(figsize=SIZE, layout="constrained")
    function(data, ax=figure.subplots(), **options)
    return figure


def _png(figure: Figure) -> Picture:
    figure.set_size_inches(*SIZE)
    written = io.BytesIO()
    figure.savefig(written, format="png", facecolor="white")
    return written.getvalue()
