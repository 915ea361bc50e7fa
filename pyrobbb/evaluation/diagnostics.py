"""Do restarts agree? Compared by function, not by weight, because hidden units can be permuted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support.network_checks import evaluating
from pyrobbb.draws import order
from pyrobbb.evaluation import arviz_io
from pyrobbb.posterior import Posterior


def function_draws(posterior: Posterior, x: Tensor, *, draws: int = 500, seed: int = 0) -> np.ndarray:
    """Network outputs at `x` `(G, *features)` by restart and draw, `(chains, draws, G, *grid, width)`.

    All of them are held in memory at once, so `x` should be a few hundred chosen inputs.
    """
    each = []
    for c, (model, guide) in enumerate(posterior.chains):
        weights = posterior.draw(draws, chain=c, seed=seed)
        with torch.no_grad(), evaluating(model):
            network = posterior.network(c)
            values = network.apply_network(weights, x.to(model.device)).cpu()
        values = values if model.sites else values.expand(draws, *values.shape)  # a point
        places = order((model, guide), draws)  # a sampler's chain, which R-hat is about
        each.append(values if places is None else values[places])
    return torch.stack(each).numpy()


def functions_to_arviz(values: np.ndarray) -> Any:
    """Function values `(chains, draws, G, *grid, width)` as variable `f` of an ArviZ `posterior` group."""
    flat = values.reshape(*values.shape[:3], -1)  # a grid's values are outputs of their input
    return arviz_io.to_arviz({"posterior": {"f": flat}}, dims={"f": ("point", "output")})


def r_hat(values: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat between restarts at each input, `(G, *grid, width)`; 1 is agreement.

    A restart's draws are independent, so what is above 1 is disagreement between the restarts: they
    found different posteriors.
    """
    table = arviz_io.summary(functions_to_arviz(values), ["f"])
    return table["r_hat"].to_numpy().reshape(values.shape[2:])


def compare(posteriors: Mapping[str, Any]) -> Any:
    """`az.compare` by PSIS-LOO with the same columns in both ArviZ generations, best model first.

    A pandas table with one row for each of `posteriors` (ArviZ containers with a `log_likelihood` group
    of the same data): elpd and its se, p (effective parameters), elpd_diff and dse (difference from the
    best, with its standard error), weight (stacking), and k_bad, the share of data whose Pareto k is
    above 0.7, for which the estimate cannot be trusted. The draws are the guide's, not the exact
    posterior's: the comparison is of the two approximate posteriors.
    """
    az = arviz_io.import_arviz()
    with warnings.catch_warnings():  # of high Pareto k, which the table counts, and of pandas' future
        warnings.simplefilter("ignore")
        loos = {name: az.loo(data, pointwise=True) for name, data in posteriors.items()}
        exact = {"round_to": "none"} if "round_to" in signature(az.compare).parameters else {}
        table = az.compare(dict(loos), **exact)  # ArviZ 1.x rounds to what the standard errors warrant
    table = table.rename(columns={"elpd_loo": "elpd", "p_loo": "p"})
    table["elpd_diff"] = table["elpd_diff"].abs()  # the generations differ in its sign
    table["k_bad"] = [float((np.asarray(loos[name].pareto_k) > 0.7).mean()) for name in table.index]
    return table[["elpd", "se", "p", "elpd_diff", "dse", "weight", "k_bad"]].astype(float)
