"""What ArviZ makes of a posterior: a table of its functions in both generations, for values and for classes.

What makes no sense is in the table too, with the reason: independent draws of a guide have no sampler's
statistics (energy, divergences, trajectories), and class numbers have no regression line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from engine_fakes import normal
from pyrobbb import BayesianNetwork, Posterior, fit, likelihoods, priors
from pyrobbb.data import from_arrays
from pyrobbb.evaluation import arviz_export, arviz_io
from pyrobbb.mean_field import MeanFieldNormal

az = arviz_io.import_arviz()
Call = Callable[[Any], Any]
BOTH, VALUES, CLASSES = ("values", "classes"), ("values",), ("classes",)


def draws_of(tree: Any) -> np.ndarray:
    """Posterior predictive draws, `(draws, rows)`."""
    y = tree["posterior_predictive"]["y"].values
    return y.reshape(-1, y.shape[-1])


EVERY: dict[str, tuple[tuple[str, ...], Call]] = {
    "summary": (BOTH, lambda t: az.summary(t)),
    "ess": (BOTH, lambda t: az.ess(t)),
    "rhat": (BOTH, lambda t: az.rhat(t)),
    "mcse": (BOTH, lambda t: az.mcse(t)),
    "hdi": (BOTH, lambda t: az.hdi(t)),
    "extract": (BOTH, lambda t: az.extract(t)),
    "loo": (BOTH, lambda t: az.loo(t, pointwise=True)),
    "compare": (BOTH, lambda t: az.compare({"one": t, "two": t})),
    "plot_trace": (BOTH, lambda t: az.plot_trace(t)),
    "plot_forest": (BOTH, lambda t: az.plot_forest(t)),
    "plot_autocorr": (BOTH, lambda t: az.plot_autocorr(t)),
    "plot_ess": (BOTH, lambda t: az.plot_ess(t)),
    "plot_mcse": (BOTH, lambda t: az.plot_mcse(t)),
    "plot_rank": (BOTH, lambda t: az.plot_rank(t)),
    "plot_pair": (BOTH, lambda t: az.plot_pair(t)),
    "plot_khat": (BOTH, lambda t: az.plot_khat(az.loo(t, pointwise=True))),
    "plot_compare": (BOTH, lambda t: az.plot_compare(az.compare({"one": t, "two": t}))),
}
FIRST: dict[str, tuple[tuple[str, ...], Call]] = {
    "waic": (BOTH, lambda t: az.waic(t)),
    "loo_pit": (BOTH, lambda t: az.loo_pit(t, y="y")),
    "psens": (BOTH, lambda t: az.psens(t, component="prior")),
    "r2_score": (VALUES, lambda t: az.r2_score(t["observed_data"]["y"].values, draws_of(t))),
    "plot_posterior": (BOTH, lambda t: az.plot_posterior(t)),
    "plot_density": (BOTH, lambda t: az.plot_density(t)),
    "plot_violin": (BOTH, lambda t: az.plot_violin(t)),
    "plot_ppc": (BOTH, lambda t: az.plot_ppc(t)),
    "plot_ppc of the prior": (BOTH, lambda t: az.plot_ppc(t, group="prior")),
    "plot_bpv": (BOTH, lambda t: az.plot_bpv(t)),
    "plot_loo_pit": (BOTH, lambda t: az.plot_loo_pit(t, y="y")),
    "plot_elpd": (BOTH, lambda t: az.plot_elpd({"one": t, "two": t})),
    "plot_dist_comparison": (BOTH, lambda t: az.plot_dist_comparison(t, var_names=["weight"])),
    "plot_separation": (CLASSES, lambda t: az.plot_separation(t, y="y")),
    "plot_lm": (VALUES, lambda t: az.plot_lm("y", t, x=t["constant_data"]["x"][:, 0])),
    "plot_ts": (VALUES, lambda t: az.plot_ts(t, "y")),
    "plot_hdi": (
        VALUES,
        lambda t: az.plot_hdi(t["constant_data"]["x"][:, 0], t["posterior_predictive"]["y"]),
    ),
}
SECOND: dict[str, tuple[tuple[str, ...], Call]] = {
    "metrics": (VALUES, lambda t: az.metrics(t)),
    "loo_metrics": (VALUES, lambda t: az.loo_metrics(t)),
    "plot_dist": (BOTH, lambda t: az.plot_dist(t)),
    "plot_ppc_dist": (BOTH, lambda t: az.plot_ppc_dist(t)),
    "plot_ppc_pit": (VALUES, lambda t: az.plot_ppc_pit(t)),
    "plot_ppc_pava": (CLASSES, lambda t: az.plot_ppc_pava(t)),
    "plot_ppc_interval": (VALUES, lambda t: az.plot_ppc_interval(t)),
    "plot_loo_pit": (VALUES, lambda t: az.plot_loo_pit(t)),
    "plot_loo_interval": (VALUES, lambda t: az.plot_loo_interval(t)),
}
SENSELESS = {"bfmi": "energy", "plot_energy": "energy", "plot_parallel": "divergences"}
TABLE = EVERY | (FIRST if arviz_io.ARVIZ_GENERATION == 0 else SECOND)


@pytest.fixture(scope="module")
def trees() -> dict[str, Any]:
    """Two restarts of a small linear model each."""
    x = normal(40, 2)
    y = x.sum(1) + 0.1 * normal(40, seed=1)
    made = {}
    for kind, task, targets, likelihood, width in (
        ("values", "regression", y, likelihoods.Normal(scale=0.3), 1),
        ("classes", "classification", (y > 0).long(), likelihoods.Categorical(), 2),
    ):
        data: Any = from_arrays(x, targets, task=task, test=(x, targets))
        chains = []
        for seed in (0, 1):
            model = BayesianNetwork(nn.Linear(2, width), priors.Normal(), likelihood, 40)
            guide = MeanFieldNormal(model)
            chains += fit(model, guide, data, epochs=40, batch_size=20, seed=seed, device="cpu").chains
        made[kind] = arviz_export.to_arviz(Posterior(chains), data, draws=100, weights=4)
    return made


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("kind", BOTH)
def test_it_works(trees: dict[str, Any], name: str, kind: str) -> None:
    kinds, call = TABLE[name]
    if kind not in kinds:
        pytest.skip(f"{name} is for {kinds[0]}")
    with warnings.catch_warnings():  # high Pareto k, and ArviZ's own of its dependencies
        warnings.simplefilter("ignore")
        assert call(trees[kind]) is not None
    plt.close("all")


@pytest.mark.parametrize("name", [name for name in SENSELESS if hasattr(az, name)])
def test_what_needs_a_sampler_says_so(trees: dict[str, Any], name: str) -> None:
    with pytest.raises((ValueError, KeyError, AttributeError), match="sample_stats"):
        getattr(az, name)(trees["values"])


def test_one_target_has_no_axis_and_several_have_one() -> None:
    for outputs, dims in ((1, ()), (3, ("target",))):
        x, y = normal(12, 2), normal(12, outputs, seed=1)
        model = BayesianNetwork(nn.Linear(2, outputs), priors.Normal(), likelihoods.Normal(), 12)
        guide = MeanFieldNormal(model)
        data = from_arrays(x, y, task="regression", test=(x, y))
        tree = arviz_export.to_arviz(
            fit(model, guide, data, epochs=1, batch_size=6, device="cpu"), data, draws=5
        )
        for group in ("posterior_predictive", "prior_predictive"):
            assert tree[group]["y"].dims == ("chain", "draw", "row", *dims)
        assert tree["observed_data"]["y"].dims == ("row", *dims)
        assert tree["predictions"]["mean"].dims == ("chain", "draw", "test_row", *dims)
        np.testing.assert_allclose(tree["constant_data"]["x"].values, x.numpy())


def test_the_log_prior_is_the_priors_density_of_each_draw() -> None:
    x, y = normal(12, 2), normal(12, 1, seed=1)
    noise = likelihoods.Normal(scale=dist.HalfNormal(2.0))
    model = BayesianNetwork(nn.Linear(2, 1), priors.Laplace(scale=0.5), noise, 12)
    data = from_arrays(x, y, task="regression")
    posterior = fit(model, AutoNormal(model), data, epochs=1, batch_size=6, device="cpu")
    groups, _ = arviz_export.to_groups(posterior, data, draws=6, weights=3)
    for name, distribution in (
        ("weight", dist.Laplace(0.0, 0.5)),
        ("likelihood.scale", dist.HalfNormal(2.0)),
    ):
        expected = distribution.log_prob(torch.from_numpy(groups["posterior"][name])).numpy()
        np.testing.assert_allclose(groups["log_prior"][name], expected, rtol=1e-5)
