"""What of a posterior goes to ArviZ: the chosen weights, and log-likelihoods that az.loo can work on.

Run as a program, with the project and tests/support on the path, it writes the files that
`test_arviz_functions.py` reads, tests/support/files/exported_*.nc.
"""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from engine_fakes import classes, classifier, normal
from paths import FILES
from pyrobbb import Posterior, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.compression.pruning import prune
from pyrobbb.data import from_arrays, from_table
from pyrobbb.evaluation import arviz_export as export
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.evaluation.layer_summary import variational, weight_draws
from pyrobbb.inference import SGHMC
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.predictive import ValuePrediction


@pytest.fixture(scope="module")
def sure():
    """A network that is certain of nearly every datum: its log-likelihoods are 0 in single precision."""
    y = torch.arange(200) % 3
    towards = torch.stack([(y * 2 * math.pi / 3).cos(), (y * 2 * math.pi / 3).sin()], -1)
    x = 30 * towards + normal(200, 2)
    x[:20] /= 60  # between the classes
    data = from_arrays(x, y, task="classification")
    net = nn.Linear(2, 3)
    with torch.no_grad():
        net.weight.copy_(towards[:3])
        net.bias.zero_()
    model = BayesianNetwork(net, priors.Normal(sigma=30.0), likelihoods.Categorical(), 200)
    return fit(model, MeanFieldNormal(model), data, epochs=20, device="cpu", seed=0), data


def test_loo_is_finite_for_a_sure_posterior(sure):
    posterior, data = sure
    tree = export.to_arviz(posterior, data, draws=100, observations=100)
    values = tree["log_likelihood"]["y"].values
    assert (np.abs(values) < 1e-8).all(-2).any()  # else the test shows nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some Pareto k are large is not the question
        elpd = arviz_io.import_arviz().loo(tree)
    total = float(getattr(elpd, "elpd_loo", getattr(elpd, "elpd", np.nan)))
    assert np.isfinite(total)
    assert total == pytest.approx(float(values.mean((0, 1)).sum()), rel=1e-3)


def test_ties_are_broken_by_less_than_a_billionth():
    tied = np.zeros((1, 50, 3), dtype=np.float32)
    untied = export._untied(tied)
    assert len(np.unique(untied)) == untied.size
    assert np.abs(untied - tied).max() <= 1e-9


@pytest.mark.parametrize(
    ("names", "count"),
    [(5, 5), (10**6, 31), (["*.bias"], 7), ("*.bias", 7), (["0.weight[1,2]", "2.bias"], 4)],
)
def test_weights_are_chosen_by_number_or_name(names, count):
    model, _ = classifier(classes())
    chosen = export.WeightSelection(model, names)
    picked = chosen.pick(model.initial())
    assert len(chosen.labels) == len(picked) == len(set(chosen.labels)) == count
    for label, value in zip(chosen.labels, picked.tolist(), strict=True):
        site, _, index = label.rstrip("]").partition("[")
        assert model.initial()[site][tuple(int(i) for i in index.split(","))] == value


@pytest.mark.parametrize("name", ["3.weight", "0.weight[9,9]", "0.weight[a]", "nothing*"])
def test_a_name_that_fits_no_weight_is_refused(name):
    model, _ = classifier(classes())
    with pytest.raises(ValueError, match=r"not a weight|matches no weight"):
        export.WeightSelection(model, [name])


@pytest.mark.parametrize(
    ("none", "words"), [(-5, "at least 1, got -5"), (0, "at least 1"), ([], "names no weight")]
)
def test_no_weights_are_refused(none, words):
    model, _ = classifier(classes())
    with pytest.raises(ValueError, match=words):
        export.WeightSelection(model, none)


@pytest.mark.parametrize(
    ("largest", "kind"),
    [(300, np.int16), (40_000, np.int32), (-(2.0**31), np.int64), (2.0**63, np.float32)],
)
def test_whole_numbers_are_kept_whatever_their_size(largest, kind):
    column = export._columns(torch.tensor([0, largest]), 1, whole=True)
    assert column.dtype == kind
    assert column.tolist() == [0, largest]


@pytest.mark.parametrize(
    ("likelihood", "kind"),
    [
        (likelihoods.Poisson(), "i"),
        (likelihoods.Bernoulli(), "i"),
        (likelihoods.Bernoulli(multilabel=True), "i"),
        (likelihoods.Normal(0.5), "f"),
    ],
)
def test_counts_and_labels_are_whole_numbers(likelihood, kind):
    """ArviZ draws a density of floats, and fails where a rare event never happens in a draw."""
    x, y = normal(12, 2), torch.arange(12).reshape(12, 1) % 2
    y = y[:, 0] if likelihood.task == "classification" else y.float()
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihood, 12)
    guide = MeanFieldNormal(model)
    guide()
    data = from_arrays(x, y, task=likelihood.task, test=(x, y))
    groups, _ = export.to_groups(Posterior([(model, guide)]), data, draws=3)
    for group in ("prior_predictive", "posterior_predictive", "predictions"):
        assert groups[group]["y"].dtype.kind == kind
    for group in ("observed_data", "predictions_constant_data"):
        assert groups[group]["y"].dtype.kind == kind
        assert groups[group]["y"].tolist() == y.flatten().tolist()


def test_a_latent_site_may_be_named_like_a_stored_column() -> None:
    class OneScale(priors.Prior):
        def distribution(self, name, parameter):
            scale = pyro.sample("scale", dist.Normal(0.0, 1.0)).exp()
            return priors.elementwise(dist.Normal(0.0, priors.beside(scale, parameter)), parameter)

    data = from_arrays(normal(12, 2), normal(12, 1, seed=1), task="regression")
    model = BayesianNetwork(nn.Linear(2, 1, bias=False), OneScale(), likelihoods.Normal(0.5), 12)
    posterior = fit(model, AutoNormal(model), data, epochs=1, device="cpu", fast="off")
    tree = export.to_arviz(posterior, data, draws=3)
    assert tree["posterior"]["scale"].dims == ("chain", "draw")
    assert tree["variational"]["scale"].dims == ("parameter_sample",)


def test_draws_of_the_prior_have_noise_of_their_own() -> None:
    """They had been the posterior's, moved and scaled."""
    model = BayesianNetwork(nn.Linear(2, 1, bias=False), priors.Normal(), likelihoods.Normal(0.5), 12)
    data = from_arrays(normal(12, 2), normal(12, 1, seed=1), task="regression")
    posterior = fit(model, MeanFieldNormal(model), data, epochs=1, device="cpu", fast="off")
    tree = export.to_arviz(posterior, data, draws=400)
    before, after = (tree[group]["weight"].values.reshape(400, -1)[:, 0] for group in ("prior", "posterior"))
    assert abs(np.corrcoef(before, after)[0, 1]) < 0.3  # of independent ones: a standard deviation of 0.05


def test_the_rows_do_not_depend_on_the_seed() -> None:
    """Else posteriors of two seeds could not be compared."""
    data = classes(60)
    posterior = Posterior([classifier(data)])
    posterior.chains[0][1]()
    one, other = (export.to_groups(posterior, data, draws=2, observations=20, seed=s)[0] for s in (0, 1))
    assert np.array_equal(one["constant_data"]["training_row"], other["constant_data"]["training_row"])
    assert not np.array_equal(one["posterior"]["weight"], other["posterior"]["weight"])


def test_a_pruned_weight_has_signal_to_noise_0() -> None:
    data = classes(60)
    posterior = Posterior([classifier(data)])
    posterior.chains[0][1]()
    found = variational(prune(posterior, 1.0), 0)
    assert not found["snr_mean"].any()
    assert not found["snr_quantile"].any()


def test_the_sample_of_weights_has_values_that_the_posterior_draws() -> None:
    """They had been those of a normal with its mean and spread, of which these have two values alone."""
    model = BayesianNetwork(nn.Linear(6, 4), priors.Normal(), likelihoods.Normal(0.1), 12)
    guide = EmpiricalGuide(model, 2)
    for value in (1.0, -1.0):
        guide.keep(torch.full_like(guide.loc, value))
    found = variational(Posterior([(model, guide)]), 0)
    assert found["draw"].shape == found["loc"].shape == (28,)
    group = {name: SimpleNamespace(values=value) for name, value in found.items()}
    assert set(weight_draws(group).tolist()) == {1.0, -1.0}
    del group["draw"]  # as in files of earlier versions
    assert len(set(weight_draws(group).tolist())) == 28


def test_one_target_has_no_axis_and_several_have_one() -> None:
    for outputs, dims in ((1, ()), (3, ("target",))):
        x, y = normal(12, 2), normal(12, outputs, seed=1)
        model = BayesianNetwork(nn.Linear(2, outputs), priors.Normal(), likelihoods.Normal(0.1), 12)
        guide = MeanFieldNormal(model)
        data = from_arrays(x, y, task="regression", test=(x, y))
        tree = export.to_arviz(fit(model, guide, data, epochs=1, batch_size=6, device="cpu"), data, draws=5)
        for group in ("posterior_predictive", "prior_predictive"):
            assert tree[group]["y"].dims == ("chain", "draw", "row", *dims)
        assert tree["observed_data"]["y"].dims == ("row", *dims)
        assert tree["predictions"]["mean"].dims == ("chain", "draw", "test_row", *dims)
        test = tree["predictions_constant_data"]
        assert test["predictive_mean"].dims == test["predictive_sd"].dims == ("test_row", *dims)
        assert ("predictive_quantile" in test) == (outputs == 1)
        np.testing.assert_allclose(tree["constant_data"]["x"].values, x.numpy())


def test_the_log_prior_is_the_priors_density_of_each_draw() -> None:
    x, y = normal(12, 2), normal(12, 1, seed=1)
    noise = likelihoods.Normal(scale=dist.HalfNormal(2.0))
    model = BayesianNetwork(nn.Linear(2, 1), priors.Laplace(scale=0.5), noise, 12)
    data = from_arrays(x, y, task="regression")
    posterior = fit(model, AutoNormal(model), data, epochs=1, batch_size=6, device="cpu")
    groups, _ = export.to_groups(posterior, data, draws=6, weights=3)
    for name, distribution in (
        ("weight", dist.Laplace(0.0, 0.5)),
        ("likelihood.scale", dist.HalfNormal(2.0)),
    ):
        expected = distribution.log_prob(torch.from_numpy(groups["posterior"][name])).numpy()
        np.testing.assert_allclose(groups["log_prior"][name], expected, rtol=1e-5)


class Joint(priors.Prior):
    """Correlated biases."""

    def distribution(self, name, parameter):
        d = len(parameter)
        return dist.MultivariateNormal(torch.zeros(d), torch.eye(d) + 1.0)


def test_a_joint_prior_has_no_density_of_each_weight(caplog: pytest.LogCaptureFixture) -> None:
    own = priors.PerParameter(default=priors.Normal(), where={"*bias": Joint()})
    noise = likelihoods.Normal(scale=dist.HalfNormal(2.0))
    model = BayesianNetwork(nn.Linear(2, 2), own, noise, 12)
    data = from_arrays(normal(12, 2), normal(12, 2, seed=1), task="regression")
    posterior = fit(model, AutoNormal, data, epochs=1, fast="eager", progress=None)
    groups, _ = export.to_groups(posterior, data, draws=4)
    assert list(groups["log_prior"]) == ["likelihood.scale"]
    assert groups["posterior"]["weight"].shape == (1, 4, 6)
    assert sum("no log_prior of weights: some have a joint prior" in said for said in caplog.messages) == 1


def test_weights_of_chains_are_told_and_a_point_is_refused(caplog):
    data = classes(validation=4)
    points = BayesianNetwork(nn.Linear(3, 3), priors.Deterministic(), likelihoods.Categorical())
    with pytest.raises(ValueError, match="no Bayesian weights"):
        export.to_groups(fit(points, None, data, epochs=1, progress=None), data)
    chains = [classifier(data) for _ in range(2)]
    for _, guide in chains:
        guide()
    for weights, told in ((None, False), ((1, 1), False), ((3, 1), True)):
        caplog.clear()
        export.to_groups(Posterior(chains, chain_weights=weights), data, draws=2)
        assert ("(0.75, 0.25), but ArviZ" in caplog.text) is told


def lines(*slopes):
    """A chain for each slope: y = slope * x, certainly, and noise of scale 0.5."""
    chains = []
    for slope in slopes:
        model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.Normal(0.5), 12)
        guide = MeanFieldNormal(model, init_rho=-30.0)
        guide()
        with torch.no_grad():
            guide.loc.fill_(slope)
        chains.append((model, guide))
    return chains


def test_moments_and_quantiles_of_test_rows_are_exact_and_of_the_weighted_mixture() -> None:
    x = torch.linspace(-2, 2, 5)[:, None]
    posterior = Posterior(lines(1.0, -1.0), chain_weights=(0.25, 0.75))
    data = from_arrays(x, x, task="regression", test=(x, x))
    test = export.to_arviz(posterior, data, draws=4)["predictions_constant_data"]
    at = x[:, 0].double().numpy()
    np.testing.assert_allclose(test["predictive_mean"], -0.5 * at, rtol=1e-6)
    np.testing.assert_allclose(test["predictive_sd"], np.sqrt(0.25 + 0.75 * at**2), rtol=1e-6)
    y = torch.from_numpy(test["predictive_quantile"].values).double()
    up, down = (dist.Normal(sign * x[:, 0].double(), 0.5).cdf(y) for sign in (1, -1))
    levels = test["level"].values[:, None].repeat(5, axis=1)
    np.testing.assert_allclose(0.25 * up + 0.75 * down, levels, atol=1e-6)


def test_what_has_no_mean_has_its_quantiles() -> None:
    components = (dist.Cauchy(torch.zeros(2, 3), torch.ones(2, 3)),)
    found = export._exact(ValuePrediction(None, None, components=components))
    assert list(found) == ["predictive_quantile"]
    np.testing.assert_allclose(found["predictive_quantile"][:, 0], [-6.3138, -1, 0, 1, 6.3138], atol=1e-4)


def test_the_statistics_of_weights_are_of_the_chain_of_the_largest_weight() -> None:
    for weights, chain in (((0.25, 0.75), 1), ((0.5, 0.5), 0), (None, 0)):
        posterior = Posterior(lines(1.0, -1.0), chain_weights=weights)
        found = variational(posterior, 0)
        assert found["chain"] == chain
        assert found["loc"] == [(1.0, -1.0)[chain]]
        assert found["kl"] == [kl_ledger(posterior, chain=chain)["weight"].nats]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"size": [1.0, 3.0], "price": [4.0, 5.0]}, {"x_name": "size", "x_mean": 2.0, "x_sd": 1.0}),
        (
            {"size": [1.0, 3.0], "same": [7.0, 7.0], "price": [4.0, 5.0]},
            {"x_name": "size", "x_mean": 2.0, "x_sd": 1.0},
        ),
        ({"size": [1.0, 3.0], "rooms": [1.0, 2.0], "price": [4.0, 5.0]}, {}),
        ({"size": [1.0, 3.0, None], "price": [4.0, 5.0, 6.0]}, {}),
    ],
)
def test_the_one_input_of_a_table_keeps_its_name_and_units(table, found):
    data = from_table(table, task="regression")
    assert export._names(data.columns) == {"y_name": "price", **found}


def exported(kind, draws=50):
    """The posterior of a small linear model, two restarts, for "values" or "classes"."""
    x = normal(40, 2)
    y = x.sum(1) + 0.1 * normal(40, seed=1)
    if kind == "values":
        task, targets, likelihood, width = "regression", y, likelihoods.Normal(scale=0.3), 1
    else:
        task, targets, likelihood, width = "classification", (y > 0).long(), likelihoods.Categorical(), 2
    data = from_arrays(x, targets, task=task, test=(x, targets))
    chains = []
    for seed in (0, 1):
        with isolated(seed):
            model = BayesianNetwork(nn.Linear(2, width), priors.Normal(), likelihood, 40)
        guide = MeanFieldNormal(model, init_rho=-1.0)  # around 0, for Bayes factors
        chains += fit(
            model, guide, data, epochs=40, batch_size=20, seed=seed, device="cpu", progress=None
        ).chains
    return export.to_arviz(Posterior(chains), data, draws=draws, weights=4)


@pytest.mark.parametrize("kind", ["values", "classes"])
def test_the_stored_files_are_what_is_exported(kind):
    """Else the table of ArviZ's functions would be about another layout."""
    stored, made = arviz_io.load(FILES / f"exported_{kind}.nc"), exported(kind)
    groups = arviz_io._datasets(made)
    assert set(arviz_io._datasets(stored)) == set(groups)
    for group, dataset in groups.items():
        assert {n: (v.dims, v.shape, v.dtype) for n, v in dataset.variables.items()} == {
            n: (v.dims, v.shape, v.dtype) for n, v in stored[group].variables.items()
        }


if __name__ == "__main__":
    for kind in ("values", "classes"):
        arviz_io.save(exported(kind), FILES / f"exported_{kind}.nc")


def test_a_sampler_exports_no_more_draws_than_it_kept(caplog: pytest.LogCaptureFixture) -> None:
    """More would repeat some, which R-hat and the effective sample size take for new."""
    x = normal(20, 2)
    data = from_arrays(x, x[:, :1], task="regression")
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal(0.3))
    method = SGHMC(draws=7, cycles=1)
    posterior = fit(model, None, data, inference=method, epochs=60, batch_size=10, progress=None, seed=1)
    with caplog.at_level("INFO"):
        groups, _ = export.to_groups(posterior, data, draws=30)
    weights = groups["posterior"]["weight"]
    assert weights.shape[:2] == (1, 7)
    assert len(np.unique(weights[0], axis=0)) == 7
    assert groups["log_likelihood"]["y"].shape[:2] == (1, 7)
    assert "kept 7 draws, which are exported, not 30" in caplog.text
