"""What ArviZ makes of a posterior: a table of its functions in both generations, for values and for classes.

What makes no sense is in the table too, with the reason: independent draws of a guide have no sampler's
statistics (energy, divergences, trajectories), and class numbers have no regression line. Runs on both
generations and needs no torch: the posteriors are files, which `test_arviz_export.py` writes and checks.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from paths import FILES
from pyrobbb.evaluation import arviz_io

az = arviz_io.import_arviz()
Table = dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]]  # what for, and a call
BOTH, VALUES, CLASSES = ("values", "classes"), ("values",), ("classes",)


def draws_of(tree: Any) -> np.ndarray:
    """Posterior predictive draws, `(draws, rows)`."""
    y = tree["posterior_predictive"]["y"].values
    return y.reshape(-1, y.shape[-1])


def weight_of(tree: Any) -> np.ndarray:
    """Draws of the first weight, end to end."""
    weight = tree["posterior"]["weight"].values
    return weight.reshape(*weight.shape[:2], -1)[..., 0].flatten()


def weights_of(tree: Any) -> tuple[Any, Any]:
    """Draws of the first two weights, `(chain, draw)` each."""
    weight = tree["posterior"]["weight"]
    return weight[..., 0], weight[..., 1]


def approximate_loo(tree: Any) -> Any:
    """PSIS-LOO of draws of an approximation, here as if it were the prior."""
    log_q = tree["log_prior"]["weight"].sum("parameter")
    return az.loo_approximate_posterior(tree, log_q + tree["log_likelihood"]["y"].sum("row"), log_q)


def log_likelihood_of(tree: Any) -> np.ndarray:
    """`(rows, draws)`."""
    return draws_of({"posterior_predictive": tree["log_likelihood"]}).T


def alone(kinds: tuple[str, ...], names: str) -> Table:
    """Functions that take a posterior and nothing else."""
    return {name: (kinds, getattr(az, name, None)) for name in names.split()}


EVERY: Table = {
    **alone(
        BOTH,
        "summary ess rhat mcse hdi extract plot_trace plot_forest plot_autocorr plot_ess plot_mcse plot_rank "
        "plot_pair",
    ),
    "loo": (BOTH, lambda t: az.loo(t, pointwise=True)),
    "compare": (BOTH, lambda t: az.compare({"one": t, "two": t})),
    "weight_predictions": (BOTH, lambda t: az.weight_predictions([t, t], weights=[0.5, 0.5])),
    "plot_khat": (BOTH, lambda t: az.plot_khat(az.loo(t, pointwise=True))),
    "plot_compare": (BOTH, lambda t: az.plot_compare(az.compare({"one": t, "two": t}))),
}
FIRST: Table = {
    **alone(BOTH, "waic plot_posterior plot_density plot_violin plot_ppc plot_bpv"),
    "loo_pit": (BOTH, lambda t: az.loo_pit(t, y="y")),
    "psens": (BOTH, lambda t: az.psens(t, component="prior")),
    "r2_score": (VALUES, lambda t: az.r2_score(t["observed_data"]["y"].values, draws_of(t))),
    "plot_ppc of the prior": (BOTH, lambda t: az.plot_ppc(t, group="prior")),
    "plot_loo_pit": (BOTH, lambda t: az.plot_loo_pit(t, y="y")),
    "plot_elpd": (BOTH, lambda t: az.plot_elpd({"one": t, "two": t})),
    "plot_dist_comparison": (BOTH, lambda t: az.plot_dist_comparison(t, var_names=["weight"])),
    "plot_separation": (CLASSES, lambda t: az.plot_separation(t, y="y")),
    "plot_lm": (VALUES, lambda t: az.plot_lm("y", t, x=t["constant_data"]["x"][:, 0])),
    "plot_ts": (VALUES, lambda t: az.plot_ts(t, "y")),
    "plot_dist": (BOTH, lambda t: az.plot_dist(t["posterior"]["weight"])),
    "plot_kde": (BOTH, lambda t: az.plot_kde(weight_of(t))),
    "plot_ecdf": (BOTH, lambda t: az.plot_ecdf(weight_of(t))),
    "plot_dot": (BOTH, lambda t: az.plot_dot(weight_of(t))),
    "plot_bf": (BOTH, lambda t: az.plot_bf(t, var_name="weight")),
    "bayes_factor": (BOTH, lambda t: az.bayes_factor(t, var_name="weight")),
    "kde": (BOTH, lambda t: az.kde(weight_of(t))),
    "autocorr": (BOTH, lambda t: az.autocorr(weight_of(t))),
    "autocov": (BOTH, lambda t: az.autocov(weight_of(t))),
    "psislw": (BOTH, lambda t: az.psislw(-log_likelihood_of(t))),
    "r2_samples": (VALUES, lambda t: az.r2_samples(t["observed_data"]["y"].values, draws_of(t))),
    "plot_hdi": (
        VALUES,
        lambda t: az.plot_hdi(t["constant_data"]["x"][:, 0], t["posterior_predictive"]["y"]),
    ),
}
SECOND: Table = {
    **alone(
        BOTH,
        "plot_dist plot_ppc_dist plot_parallel diagnose eti histogram iqr kde loo_expectations loo_influence "
        "loo_pit mad mean median mode std var plot_convergence_dist plot_dgof plot_dgof_dist "
        "plot_ess_evolution plot_ppc_dist_pit plot_ppc_tstat plot_prior_posterior plot_rank_dist plot_ridge "
        "plot_trace_dist psense psense_summary qds thin",
    ),
    **alone(
        VALUES,
        "metrics loo_metrics plot_ppc_pit plot_ppc_interval plot_loo_pit plot_loo_interval loo_score",
    ),
    **alone(CLASSES, "plot_ppc_pava plot_loo_pava plot_ppc_rootogram"),
    "bayes_factor": (BOTH, lambda t: az.bayes_factor(t, var_names="weight")),
    "ci_in_rope": (BOTH, lambda t: az.ci_in_rope(t, rope=(-1, 1))),
    "ecdf": (BOTH, lambda t: az.ecdf(t["posterior"].dataset)),
    "hexbin": (BOTH, lambda t: az.hexbin(*weights_of(t))),
    "histogram2d": (BOTH, lambda t: az.histogram2d(*weights_of(t))),
    "kde2d": (BOTH, lambda t: az.kde2d(*weights_of(t))),
    "kl_divergence": (BOTH, lambda t: az.kl_divergence(t, t, num_samples=50)),
    "loo_approximate_posterior": (BOTH, approximate_loo),
    "loo_i": (BOTH, lambda t: az.loo_i(0, t)),
    "loo_r2": (VALUES, lambda t: az.loo_r2(t, "y")),
    "loo_subsample": (BOTH, lambda t: az.loo_subsample(t, observations=5)),
    "update_subsample": (
        BOTH,
        lambda t: az.update_subsample(az.loo_subsample(t, observations=5, pointwise=True), t, observations=3),
    ),
    "plot_bf": (BOTH, lambda t: az.plot_bf(t, var_names="weight")),
    "plot_lm": (VALUES, lambda t: az.plot_lm(t, x="training_row", y="y")),
    "plot_pair_focus": (
        VALUES,
        lambda t: az.plot_pair_focus(t, "weight", focus_var_coords={"parameter": "bias[0]"}),
    ),
    "plot_ppc_pava_residuals": (CLASSES, lambda t: az.plot_ppc_pava_residuals(t, x_var="training_row")),
    "residual_r2": (
        VALUES,
        lambda t: az.residual_r2(t, pred_mean="y", obs_name="y", group="posterior_predictive"),
    ),
    "rhat_nested": (BOTH, lambda t: az.rhat_nested(t, superchain_ids=[0, 1])),
    "wasserstein": (BOTH, lambda t: az.wasserstein(t, t, num_samples=50)),
}
SENSELESS = {"bfmi": "energy", "plot_energy": "energy"}
OTHER = {
    "reloo",  # fits again for each row, by a wrapper around your own fit
    "loo_kfold",  # the same for folds
    "lfo_cv",  # the same for time series
    "loo_moment_match",  # asks for two functions of your own model
    "apply_test_function",  # fails in ArviZ itself where the posterior is one array
    "plot_psense_dist",  # the same
    "plot_psense_quantities",  # the same
    "bayesian_r2",  # the mean and the noise of each draw are no variables of the posterior
    "plot_ecdf_pit",  # of simulation-based calibration, which has a group of its own
    "kaplan_meier",  # of censored times, as the next two
    "generate_survival_curves",
    "plot_ppc_censored",
    "ColumnDataSource",  # bokeh's
}
FILES_AND_FORMS = (  # what reads, writes, converts or lays out, and has nothing to say of a posterior
    "from_", "to_", "convert_to", "dict_to", "pytree_to", "numpy_to", "create_", "show_", "output_", "load_",
    "list_", "clear_", "make_", "wrap_", "concat", "smooth_", "extract_", "add_", "citations", "combine_",
    "dataset_to", "ndarray_to", "references_to", "explode_", "generate_dims", "get_", "xarray_",
)  # fmt: skip
if arviz_io.ARVIZ_GENERATION == 0:
    SENSELESS["plot_parallel"] = "divergences"  # the second generation's does without
TABLE = EVERY | (FIRST if arviz_io.ARVIZ_GENERATION == 0 else SECOND)


@pytest.fixture(scope="module")
def trees() -> dict[str, Any]:
    """Two restarts of a small linear model each."""
    plt.switch_backend("agg")
    return {kind: arviz_io.load(FILES / f"exported_{kind}.nc") for kind in BOTH}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in TABLE for kind in TABLE[name][0]])
def test_it_works(trees: dict[str, Any], name: str, kind: str) -> None:
    with warnings.catch_warnings():  # high Pareto k, and ArviZ's own of its dependencies
        warnings.simplefilter("ignore")
        assert TABLE[name][1](trees[kind]) is not None
    plt.close("all")


@pytest.mark.parametrize("name", [name for name in SENSELESS if hasattr(az, name)])
def test_what_needs_a_sampler_says_so(trees: dict[str, Any], name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((ValueError, KeyError, AttributeError), match=r"sample_stats|energy"):
            getattr(az, name)(trees["values"])


def test_every_function_has_its_place() -> None:
    functions = [name for name in dir(az) if inspect.isfunction(getattr(az, name)) and name[0] != "_"]
    known = {name.partition(" ")[0] for name in TABLE} | set(SENSELESS) | OTHER
    assert [n for n in functions if n not in known and not n.startswith(FILES_AND_FORMS)] == []
