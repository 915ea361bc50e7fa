"""PSIS-LOO by ArviZ: the log density of each row, had the others alone been seen, in both generations.

It takes the draws for those of the exact posterior: of a mean field it leans towards the fit of the training
rows, even where k is low.
"""

import warnings
from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np

from pyrobbb.evaluation import arviz_io

LEAST_DRAWS = 25  # whose largest fifth is the tail that PSIS fits


def has_loo(data: Any) -> bool:
    """Whether `az.loo` has what it needs: enough draws, between which the log-likelihood varies.

    Of fewer than `LEAST_DRAWS` there is no tail to fit: ArviZ 0.x then warns of k = inf, 1.x raises an error.
    Of a point estimate it would take the fit of the training rows for the prediction of new ones.
    """
    if not {"posterior", "log_likelihood"} <= arviz_io.group_names(data):
        return False
    values = data["log_likelihood"]["y"].values
    chains, draws = values.shape[:2]
    if chains * draws < LEAST_DRAWS:
        return False
    return bool(np.ptp(values, axis=1).max() > 10 * arviz_io.UNTIED)  # beyond rounding


def loo(data: Any) -> Any:
    """`az.loo` with each row's k; None where there is none to be had (`has_loo`)."""
    return psis(data) if has_loo(data) else None


def psis(data: Any, **options: Any) -> Any:
    """`az.loo` with each row's k, and without its warnings of high ones."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return arviz_io.import_arviz().loo(data, pointwise=True, **options)


def k_limit(draws: int) -> float:
    r"""The Pareto k above which that many draws are too few, :math:`\min(1 - 1 / \log_{10} S, 0.7)`.

    Vehtari et al. 2024, arXiv 1507.02646, eq. 13.
    """
    return float(min(1 - 1 / np.log10(draws), 0.7))


def numbers(left_out: Any) -> dict[str, float]:
    """Of what `loo` found: `elpd`, its standard error `se`, `p`, `k_limit` and `k_bad`, the share above."""
    elpd, p = ("elpd_loo", "p_loo") if arviz_io.ARVIZ_GENERATION == 0 else ("elpd", "p")
    found = {"elpd": getattr(left_out, elpd), "se": left_out.se, "p": getattr(left_out, p)}
    found |= {"k_limit": k_limit(left_out.n_samples), "k_bad": _k_bad(left_out)}
    return {name: float(value) for name, value in found.items()}


def compare(posteriors: Mapping[str, Any]) -> Any:
    """`az.compare` with the same columns, unrounded, in both generations, best model first.

    A pandas table with one row for each of `posteriors` (ArviZ containers with `log_likelihood` and
    `observed_data` groups of the same rows): elpd and its se, p (effective parameters), elpd_diff and dse
    (difference from the best, with its standard error), weight (stacking), and k_bad, the share of data
    whose Pareto k is above `k_limit`, for which the estimate cannot be trusted.

    Raises:
        ValueError: There is none; one has no LOO (`has_loo`), such as a point estimate; two are of different
            rows, whose log densities cannot be subtracted: their targets differ, or the numbers of the rows.
    """
    without = [name for name, data in posteriors.items() if not has_loo(data)]
    if without or not posteriors:
        raise ValueError(
            f"posteriors must be one or more, each with the log-likelihood of at least {LEAST_DRAWS} draws "
            f"that differ; {f'not so: {without}' if without else 'got none'}"
        )
    first, *others = posteriors
    for name in others:
        if not _same_rows(posteriors[first], posteriors[name]):
            raise ValueError(
                f"posteriors must be of the same rows, but the observed data of {first!r} and {name!r} "
                f"differ, or their row numbers: export both with the same data and number of observations"
            )
    az = arviz_io.import_arviz()
    exact = {"round_to": "none"} if "round_to" in signature(az.compare).parameters else {}  # ArviZ 1.x rounds
    loos = {name: psis(data) for name, data in posteriors.items()}
    with warnings.catch_warnings():  # of high Pareto k, which the table counts, and of pandas' future
        warnings.simplefilter("ignore")
        table = az.compare(dict(loos), **exact)
    table = table.rename(columns={"elpd_loo": "elpd", "p_loo": "p"})
    table["elpd_diff"] = table["elpd_diff"].abs()  # the generations differ in its sign
    table["k_bad"] = [_k_bad(loos[name]) for name in table.index]
    return table[["elpd", "se", "p", "elpd_diff", "dse", "weight", "k_bad"]].astype(float)


def _same_rows(one: Any, other: Any) -> bool:
    y, other_y = (data["observed_data"]["y"].values for data in (one, other))
    here, there = (arviz_io.group(data, "constant_data") for data in (one, other))
    numbered = "training_row" in here and "training_row" in there
    same = not numbered or np.array_equal(here["training_row"].values, there["training_row"].values)
    return same and np.array_equal(y, other_y)


def _k_bad(left_out: Any) -> float:
    return float((np.asarray(left_out.pareto_k) > k_limit(left_out.n_samples)).mean())
