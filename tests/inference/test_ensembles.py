"""Mixtures of chains: weights by stacking, and predictions that follow them."""

import pytest
import torch
from torch import nn

from engine_fakes import classes, network, normal, values
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.inference import MAP, stacking_weights
from pyrobbb.inference.ensemble import stacked
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import fit


def test_stacking_finds_the_maximum_of_the_mixture_score():
    scores = normal(2, 40, dtype=torch.float64)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)[1:-1]
    mixed = torch.logaddexp(grid.log()[:, None] + scores[0], (1 - grid).log()[:, None] + scores[1])
    w = stacked(scores)
    assert abs(float(w[0] - grid[mixed.sum(1).argmax()])) < 2e-4
    assert float(w.sum()) == pytest.approx(1.0)


def test_stacking_leaves_out_what_is_always_worse_and_is_symmetric():
    good = normal(1, 30, dtype=torch.float64)
    assert stacked(torch.cat([good, good - 1])).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert stacked(torch.cat([good, good])).tolist() == pytest.approx([0.5, 0.5])


def test_stacking_counts_rows_by_their_weights():
    scores = normal(2, 12, dtype=torch.float64)
    counts = torch.arange(12) % 4
    scores[:, 0] = -torch.inf  # which counts 0 times
    expected = stacked(scores.repeat_interleave(counts, 1))
    torch.testing.assert_close(stacked(scores, counts), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="row 0 of y has the density 0"):
        stacked(scores, counts + 1)


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_stacking_does_not_depend_on_the_scale_of_row_weights(scale: float) -> None:
    scores = normal(3, 500, dtype=torch.float64) + torch.tensor([[0.5], [0.0], [0.0]])
    expected = stacked(scores)
    assert float(expected[0]) > 0.4  # over 20 seeds: mean 0.73, sd 0.06
    torch.testing.assert_close(stacked(scores, [scale] * 500), expected, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def ensemble():
    data = classes(validation=20)
    make = lambda: BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical())  # noqa: E731
    return fit(make, None, data, inference=MAP(), chains=3, epochs=2, progress=None), data


def test_a_weighted_posterior_averages_its_chains_by_their_weights(ensemble):
    posterior, data = ensemble
    x, y = data.validation.x, data.validation.y
    each = torch.stack([posterior.predict(x, chains=[c], draws=1).probs for c in range(3)])
    weighted = Posterior(posterior.chains, chain_weights=(2.0, 1.0, 1.0))
    assert weighted.chain_weights == (0.5, 0.25, 0.25)
    expected = (torch.tensor([0.5, 0.25, 0.25])[:, None, None] * each).sum(0)
    torch.testing.assert_close(weighted.predict(x, draws=4).probs, expected)
    torch.testing.assert_close(weighted.predict(x, draws=4, mean_weights=True).probs, expected)
    torch.testing.assert_close(posterior.predict(x, mean_weights=True).probs, each.mean(0))
    best = stacking_weights(posterior, x, y, draws=1)
    assert stacking_weights(posterior, x, y, weights=[1] * len(y), draws=1) == best
    with pytest.raises(ValueError, match=r"weights must have the shape \(20,\), got \(2,\)"):
        stacking_weights(posterior, x, y, weights=[1, 2], draws=1)
    held = Posterior(posterior.chains, chain_weights=best).predict(x, y, draws=1000).log_predictive.sum()
    assert float(held) >= float(posterior.predict(x, y).log_predictive.sum()) - 1e-3


def test_stacking_takes_the_draws_of_its_seed() -> None:
    data = classes(N=12, validation=20)
    model = BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical(), 12)
    guides = [MeanFieldNormal(model, init_rho=rho) for rho in (-1.0, 0.0)]
    for guide in guides:
        guide()
    posterior = Posterior([(model, guide) for guide in guides])
    x, y = data.validation.x, data.validation.y
    found = [stacking_weights(posterior, x, y, draws=3, seed=seed) for seed in (0, 7)]
    for seed, weights in zip((0, 7), found, strict=True):
        each = [posterior.predict(x, y, draws=3, chains=[c], seed=seed).log_predictive for c in range(2)]
        assert weights == tuple(stacked(torch.stack(each).double()).tolist())
    assert found[0] != found[1]


def test_stacking_does_not_depend_on_the_units_of_y() -> None:
    """In others all densities of a row are larger by one factor, here up to e^1000."""
    scores = normal(3, 40).double()
    far = scores + torch.linspace(-1000, 1000, 40)
    torch.testing.assert_close(stacked(far), stacked(scores), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spread", [1e-4, 1e-2, 1.0])
def test_stacking_finds_the_best_weights_of_chains_that_nearly_tie(spread: float) -> None:
    """No chain's weight could be raised with gain: its mean ratio to the mixture is 1 at most."""
    scores = spread * torch.randn(3, 300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores[2] = scores[1] - 1e-3 * spread
    w = stacked(scores)
    p = scores.exp()
    assert float((p / (w @ p)).mean(1).max()) < 1 + 1e-7
    assert float(w.sum()) == pytest.approx(1)
    assert w[2] < 1e-2


def test_weights_are_saved_and_loaded(ensemble, tmp_path):
    posterior, _ = ensemble
    Posterior(posterior.chains, chain_weights=(1, 2, 1)).save(tmp_path)
    model = BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical())
    assert Posterior.load(tmp_path, model, MAP().guide(model, None)).chain_weights == (0.25, 0.5, 0.25)


@pytest.mark.parametrize(
    "weights", [(1.0,), (1.0, -1.0, 1.0), (0.0, 0.0, 0.0), ("a", 1, 1), (float("nan"), 1, 1)]
)
def test_weights_that_are_no_mixture_are_refused(ensemble, weights):
    with pytest.raises(ValueError, match="weights must be"):
        Posterior(ensemble[0].chains, chain_weights=weights)


def test_counts_follow_the_weights_by_largest_remainders():
    data = values()
    make = lambda: BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.1))  # noqa: E731
    posterior = fit(make, None, data, inference=MAP(), chains=2, epochs=1, progress=None)
    posterior.chain_weights = (0.9, 0.1)
    prediction = posterior.predict(data.train.x, draws=5)
    assert [len(part.mean) for part in prediction.components] == [9, 1]
    posterior.chain_weights = (1.0, 0.0)
    assert len(posterior.predict(data.train.x, draws=5).means) == 10


def test_some_chains_of_a_mixture_keep_their_proportions(ensemble):
    weighted = Posterior(ensemble[0].chains, chain_weights=(0.32, 0.5, 0.18))
    assert weighted.shares(10, [0, 1, 2]) == {0: 10, 1: 15, 2: 5}  # 9.6, 15 and 5.4
    assert weighted.shares(10, [0, 2]) == {0: 13, 2: 7}  # 12.8 and 7.2
    assert weighted.main_chain == 1


def test_points_without_priors_are_averaged_by_their_weights_too():
    make = lambda: BayesianNetwork(nn.Linear(3, 3), priors.Deterministic(), likelihoods.Categorical())  # noqa: E731
    data = classes()
    posterior = fit(make, None, data, chains=2, epochs=1, progress=None)
    one, other = (posterior.predict(data.train.x, chains=[c]).probs for c in range(2))
    posterior.chain_weights = (0.9, 0.1)
    torch.testing.assert_close(posterior.predict(data.train.x).probs, 0.9 * one + 0.1 * other)


def test_mean_weights_are_averaged_by_the_chains_weights_whatever_the_draws(ensemble):
    posterior, x = ensemble[0], ensemble[1].validation.x
    each = torch.stack([posterior.predict(x, chains=[c], draws=1).probs for c in range(3)])
    weighted = Posterior(posterior.chains, chain_weights=(0.6, 0.3, 0.1))
    expected = (torch.tensor([0.6, 0.3, 0.1])[:, None, None] * each).sum(0)
    torch.testing.assert_close(weighted.predict(x, draws=1, mean_weights=True).probs, expected)


@pytest.mark.parametrize("first", [0, 1])
def test_a_chain_without_latent_weights_takes_no_draw_from_the_others(first):
    data = values()
    options = {"epochs": 1, "progress": None}
    plain = BayesianNetwork(network(width=2), priors.Deterministic(), likelihoods.Normal(0.1))
    latent = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.1))
    fits = [fit(plain, None, data, **options), fit(latent, MeanFieldNormal, data, **options)]
    posterior = Posterior(fits[first].chains + fits[1 - first].chains)
    x, alone = data.train.x, fits[1].predict(data.train.x, draws=20)
    mine = posterior.predict(x, draws=20, chains=[1 - first])
    assert mine.means.shape == alone.means.shape
    assert (mine.means.std(0) > 0.3 * alone.means.std(0)).all()
    assert len(posterior.predict(x, draws=20).means) == 40
    assert len(posterior.predict(x, draws=20, chains=[first]).means) == 1


def test_chains_of_two_precisions_are_refused():
    models = [BayesianNetwork(network(width=2).to(dtype), likelihood=likelihoods.Normal()) for dtype in
              (torch.float32, torch.float64)]  # fmt: skip
    with pytest.raises(ValueError, match=r"weights of one precision, got torch\.float32, torch\.float64"):
        Posterior([(model, MeanFieldNormal(model)) for model in models])


def test_chains_that_are_not_in_the_mixture_are_refused(ensemble):
    posterior = Posterior(ensemble[0].chains, chain_weights=(1, 0, 0))
    x = ensemble[1].validation.x
    for chains, reason in (([1, 2], "weight 0"), ([0, 5], "less than 3"), ([0, -1], "at least 0")):
        with pytest.raises(ValueError, match=reason):
            posterior.predict(x, chains=chains)
    torch.testing.assert_close(posterior.predict(x, chains=[0, 0]).probs, posterior.predict(x).probs)
