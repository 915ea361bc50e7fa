"""One model in several fits: each posterior stays what it was."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from pyrobbb import BayesianNetwork, MeanFieldNormal, Training, fit, likelihoods
from pyrobbb.checkup import check
from pyrobbb.data import from_arrays
from pyrobbb.inference import MAP, SGHMC, SWAG, Laplace
from pyrobbb.posterior import Posterior
from pyrobbb.priors import Learned, Normal

x = torch.linspace(-1, 1, 24)[:, None]
DATA = from_arrays(x, 2 * x + 0.3 * torch.cos(9 * x), task="regression")


def line(**options):
    return BayesianNetwork(nn.Linear(1, 1), likelihood=likelihoods.Normal(), **options)


def trained(model, guide, **options):
    return fit(model, guide, DATA, epochs=3, batch_size=24, seed=1, device="cpu", progress=None, **options)


def chain_of(model):
    return Posterior([(model, MAP().guide(model, None))])


def values(posterior):
    prediction = posterior.predict(x[:3], draws=8)
    return torch.cat([prediction.mean.flatten(), prediction.interval(0.9)[0].flatten()])


def test_a_second_fit_leaves_the_first_posterior():
    model = line()
    first = trained(model, MeanFieldNormal)
    before = values(first)
    second = trained(model, None, inference=Laplace())
    assert torch.equal(values(first), before)
    assert model is not first.model is not second.model


def test_a_learned_prior_of_the_first_stays_too():
    model = line(prior=Learned(Normal(), every=1))
    first = trained(model, MeanFieldNormal)
    before = first.model.prior_of("weight").base_dist.scale.clone()
    trained(model, MeanFieldNormal)
    assert torch.equal(first.model.prior_of("weight").base_dist.scale, before)


def test_the_same_guide_again_trains_on_and_leaves_the_first_posterior():
    model = line()
    guide = MeanFieldNormal(model)
    first = trained(model, guide)
    before, place = values(first), guide.loc.detach().clone()
    second = trained(model, guide)
    assert torch.equal(values(first), before)
    assert not torch.equal(guide.loc, place)
    assert torch.equal(second.chains[0][1].loc, guide.loc)


def test_swag_again_takes_its_snapshots_anew():
    """As a guide that was never trained does from the same place."""
    model, method = line(), SWAG(snapshots=3, rank=2, start=0.0)
    guide = method.guide(model, None)
    trained(model, guide, inference=method)
    other_model = deepcopy(model)
    other = method.guide(other_model, None)
    other.loc.data.copy_(guide.loc)
    trained(model, guide, inference=method)
    trained(other_model, other, inference=method)
    for one, two in zip(guide.buffers(), other.buffers(), strict=True):
        assert torch.equal(one, two)


def test_a_sampler_again_has_its_new_draws_alone():
    model = BayesianNetwork(nn.Linear(1, 1), likelihood=likelihoods.Normal(scale=0.3))
    method = SGHMC(cycles=1, draws=2, exploring=0.0)
    guide = method.guide(model, None)
    trained(model, guide, inference=method)
    before = guide.stored.clone()
    trained(model, guide, inference=method)
    assert int(guide.kept) == 2
    assert not bool((guide.stored == before).any())


def test_another_guide_of_the_same_model_leaves_it_too():
    model = line()
    first = trained(model, MeanFieldNormal(model))
    before = values(first)
    trained(model, MeanFieldNormal(model))
    assert torch.equal(values(first), before)


def test_the_first_posterior_keeps_its_n_where_the_second_reads_another():
    model = BayesianNetwork(nn.Linear(1, 1), likelihood=likelihoods.Normal(scale=0.3))
    first = trained(model, MeanFieldNormal)
    before = values(first)
    model.N = None
    second = fit(
        model, MeanFieldNormal, from_arrays(torch.cat([x, x]), torch.cat([2 * x, x]), task="regression"),
        epochs=1, seed=1, device="cpu", progress=None,
    )  # fmt: skip
    assert (first.model.N, second.model.N) == (24, 48)
    assert torch.equal(values(first), before)
    assert model.N == 48
    assert check(first, DATA)


def test_a_posterior_around_the_first_stays_too():
    model = line()
    around = Laplace().around(trained(model, None, inference=MAP()), DATA.train)
    before = values(around)
    trained(model, None, inference=MAP())
    assert torch.equal(values(around), before)


@pytest.mark.parametrize("given", [lambda model: model, chain_of])
def test_a_posterior_around_a_model_stays_too(given):
    model = line()
    around = Laplace().around(given(model), DATA)
    before = values(around)
    trained(model, None, inference=MAP())
    model.likelihood = likelihoods.Normal(9.0)
    assert torch.equal(values(around), before)


def test_around_several_models_n_is_read_from_the_data():
    models = [line(), line()]
    around = Laplace().around(Posterior([chain_of(model).chains[0] for model in models]), DATA)
    assert [model.N for model, _ in around.chains] == [24, 24]
    assert [model.N for model in models] == [None, None]


def test_every_fit_of_a_loop_has_its_own_model():
    model = line()
    chains = [trained(model, MeanFieldNormal).chains[0] for _ in range(3)]
    assert len({id(own) for own, _ in chains}) == 3


class Counts(nn.Linear):
    """Adds what it has seen in training."""

    def __init__(self):
        super().__init__(1, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1
        return super().forward(x) + self.seen


def test_buffers_that_training_changes_stay():
    model = BayesianNetwork(Counts(), likelihood=likelihoods.Normal(scale=0.3))
    first = trained(model, MeanFieldNormal)
    before = values(first)
    trained(model, MeanFieldNormal)
    assert torch.equal(values(first), before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 25}, "batch_size 25"),
        ({"chain": -1}, "chain must be"),
        ({"rates": {"absent": 2.0}}, "rates"),  # of which the model is asked
    ],
)
def test_a_refused_fit_leaves_n_as_it_was(wrong, message):
    model = BayesianNetwork(nn.Linear(1, 1), likelihood=likelihoods.Normal(scale=0.3))
    with pytest.raises(ValueError, match=message):
        Training(model, MeanFieldNormal(model), DATA, epochs=1, **wrong)
    assert model.N is None
