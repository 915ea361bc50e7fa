"""Where the KL goes: nats, bits per weight and weights in use, by layer."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import ArrayLike

from pyrobbb.figures.style import BLUE, ORANGE, caption, columns, label, new_figure, styled


@styled
def kl_by_layer(
    layers: Sequence[str],
    nats: ArrayLike,
    mcse: ArrayLike,
    weights: ArrayLike,
    informative: ArrayLike,
    *,
    slab: ArrayLike | None = None,
    title: str = "Where the KL goes: each parameter tensor in the network's order",
) -> Figure:
    r"""The KL of each layer, per weight in bits, and the share of its weights that carry information.

    Args:
        layers: Names, `(L,)`; so are the other columns.
        nats: KL of the layer.
        mcse: Its Monte Carlo standard error, drawn as a bar.
        weights: Number of weights.
        informative: Those with :math:`|\mu| > \sigma`; NaN for latents that are not weights.
        slab: Under a scale mixture, the share of weights in the wide component; NaN elsewhere.
        title: The caption.

    Raises:
        ValueError: Columns of different lengths, or empty.
    """
    place = np.arange(len(layers))
    given = {"layers": place, "nats": nats, "mcse": mcse, "weights": weights, "informative": informative}
    data = columns(**given, **({} if slab is None else {"slab": slab}))
    bits = 1 / (np.log(2) * data["weights"])
    figure = new_figure(10.0, max(2.6, 1.4 + 0.3 * len(layers)))
    kl, each, share = figure.subplots(1, 3, sharey=True)
    look = {"color": BLUE, "height": 0.62, "alpha": 0.75}
    kl.barh(place, data["nats"], xerr=data["mcse"], **look)
    each.barh(place, data["nats"] * bits, xerr=data["mcse"] * bits, **look)
    share.barh(place, data["informative"] / data["weights"], label=r"$|\mu| > \sigma$", **look)
    if slab is not None:
        share.plot(data["slab"], place, "D", color=ORANGE, ms=6, label="from the wide component")
    share.set_xlim(0, 1.03)
    kl.xaxis.set_major_locator(MaxNLocator(4))
    kl.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    share.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    label(kl, "KL (nats)", "")
    label(each, "KL (bits per weight)", "")
    label(share, "share of the weights", "")
    kl.set_yticks(
        place, [f"{name} ({count:,.0f})" for name, count in zip(layers, data["weights"], strict=True)]
    )
    kl.invert_yaxis()
    for axes in (kl, each, share):
        axes.grid(visible=False, axis="y")
    caption(figure, title)
    return figure
