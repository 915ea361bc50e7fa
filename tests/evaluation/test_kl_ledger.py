"""The KL by layer against closed forms, for guides with a density for each site and for all together."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from engine_fakes import classes, classifier, network, nothing_changes
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.draws import NoWeights, has_density
from pyrobbb.evaluation.code_length import code_length
from pyrobbb.evaluation.kl_ledger import JOINT, kl_ledger
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.svi import terms_of


def made(guide, prior=None):
    """A posterior of 31 weights under N(0, 0.5^2), at the guide's start."""
    model = BayesianNetwork(network(), prior or priors.Normal(sigma=0.5), likelihoods.Categorical(), 12)
    q = guide(model)
    with isolated(0):
        q()
    return Posterior([(model, q)])


@pytest.mark.parametrize("guide", [lambda m: MeanFieldNormal(m, init_rho=-1.0), AutoNormal])
def test_each_layer_agrees_with_the_closed_form(guide):
    posterior = made(guide)
    model, q = posterior.chains[0]
    ledger = kl_ledger(posterior, draws=400)
    assert list(ledger) == list(model.sites)
    for name, entry in ledger.items():
        if isinstance(q, AutoNormal):
            loc, scale = (part.detach() for part in q._get_loc_and_scale(name))
        else:
            loc, scale = (part[name] for part in q.loc_and_scale())
        exact = float(kl_divergence(Normal(loc, scale), Normal(0.0, 0.5)).sum())
        assert abs(entry.nats - exact) < 5 * entry.mcse
        assert 0 < entry.mcse < 0.2 * exact
        assert entry.weights == loc.numel()
        assert entry.bits_per_weight == pytest.approx(entry.nats / math.log(2) / loc.numel())
        assert entry.informative == int((loc.abs() > scale).sum())
        assert entry.slab is None


def test_a_guide_over_all_weights_has_one_entry():
    posterior = made(AutoMultivariateNormal)
    model, q = posterior.chains[0]
    ledger = kl_ledger(posterior, draws=400)
    assert list(ledger) == [JOINT]
    prior = MultivariateNormal(torch.zeros(31), 0.25 * torch.eye(31))
    fitted = MultivariateNormal(q.loc.detach(), scale_tril=(q.scale_tril * q.scale[:, None]).detach())
    exact = float(kl_divergence(fitted, prior))
    assert abs(ledger[JOINT].nats - exact) < 5 * ledger[JOINT].mcse
    assert ledger[JOINT].weights == model.num_weights


def test_the_rows_add_up_to_the_kl_that_the_free_energy_counts():
    likelihood = likelihoods.Normal(scale=dist.LogNormal(0.0, 1.0))
    model = BayesianNetwork(network(width=1), priors.ScaleMixture(), likelihood, 12)
    guide = AutoNormal(model)
    with isolated():
        guide()
    ledger = kl_ledger(Posterior([(model, guide)]), draws=2, seed=3)
    assert "likelihood.scale" in ledger
    assert ledger["likelihood.scale"].informative is None
    assert ledger["0.weight"].slab is not None
    totals = []
    with isolated(3), torch.no_grad():
        for _ in range(2):
            q = poutine.trace(guide).get_trace()
            p = poutine.trace(poutine.replay(model, trace=q)).get_trace()
            q.compute_log_prob()
            p.compute_log_prob()
            totals.append(float(terms_of(p, q).kl))
    assert sum(entry.nats for entry in ledger.values()) == pytest.approx(sum(totals) / 2, rel=1e-4)


def test_weights_beyond_the_spike_belong_to_the_slab():
    posterior = made(lambda m: MeanFieldNormal(m, init_rho=-9.0), priors.ScaleMixture())
    guide = posterior.chains[0][1]
    with torch.no_grad():
        guide.loc[:6] = 0.5  # of 0.weight's 12
        guide.loc[6:12] = 0.0
    entry = kl_ledger(posterior)["0.weight"]
    # at w = 0 the spike is sigma1 / sigma2 = 403 times as likely
    assert entry.slab == pytest.approx((6 + 6 / 404) / 12, abs=1e-3)
    assert entry.informative == 6


def test_the_error_of_the_slabs_share_is_that_of_its_mean() -> None:
    posterior = made(lambda m: MeanFieldNormal(m, init_rho=-5.0), priors.ScaleMixture())
    with torch.no_grad():
        posterior.chains[0][1].loc.zero_()  # three times as wide as the spike: either may have drawn a weight
    few = [kl_ledger(posterior, draws=10, seed=seed)["0.weight"] for seed in range(60)]
    spread = float(torch.tensor([entry.slab for entry in few]).std())
    assert spread == pytest.approx(sum(entry.slab_mcse for entry in few) / 60, rel=0.6)
    assert spread > 0
    assert kl_ledger(made(MeanFieldNormal))["0.weight"].slab_mcse is None


def test_the_slab_is_the_wider_component_also_where_learning_changed_their_order():
    shares = []
    for first, second in ((0.5, 0.1), (0.1, 0.5)):
        prior = priors.Learned(priors.ScaleMixture(pi=0.5, sigma1=0.5, sigma2=0.1))
        posterior = made(lambda m: MeanFieldNormal(m, init_rho=-9.0), prior)
        for group in posterior.model.learned[0].groups.values():
            group.sigma1.fill_(first)
            group.sigma2.fill_(second)
        shares.append(kl_ledger(posterior)["0.weight"].slab)
    assert shares[0] == pytest.approx(shares[1], abs=1e-6)


def in_two_parts(first, second):
    """A guide of the first layer beside one of the others."""

    def make(model):
        guide, inner = AutoGuideList(model), ["0.weight", "0.bias"]
        guide.append(first(poutine.block(model, expose=inner)))
        guide.append(second(poutine.block(model, hide=inner)))
        return guide

    return make


@pytest.mark.parametrize(
    ("guide", "dense"),
    [
        (AutoNormal, True),
        (AutoIAFNormal, True),
        (in_two_parts(AutoMultivariateNormal, AutoNormal), True),
        (in_two_parts(AutoMultivariateNormal, AutoDelta), False),
        (in_two_parts(AutoNormal, AutoDelta), False),
        (AutoLaplaceApproximation, False),  # a point until its curvature is known
        (AutoDelta, False),
    ],
)
def test_a_guide_that_is_partly_a_point_has_no_finite_kl(guide, dense):
    posterior = made(guide)
    assert has_density(posterior.chains[0]) == dense
    assert (kl_ledger(posterior, draws=2) is not None) == dense


def test_neither_a_set_of_draws_nor_no_weights_have_a_density():
    model, _ = classifier(classes())
    guide = EmpiricalGuide(model, 50)
    for value in range(50):
        guide.keep(torch.full_like(guide.loc, value))
    assert not has_density((model, guide))
    plain = BayesianNetwork(network(), priors.Deterministic(), likelihoods.Categorical(), 12)
    assert not has_density((plain, NoWeights()))


def test_a_point_estimate_has_none_and_nothing_is_left_behind():
    assert kl_ledger(made(AutoDelta)) is None
    posterior = Posterior([classifier(classes())])
    with isolated():
        posterior.chains[0][1]()
    with nothing_changes():
        kl_ledger(posterior)


def test_bits_are_those_of_blier_and_ollivier():
    """Their variational code of MNIST's 60,000 labels: 22.2 kb at 0.256 nats each."""
    code = code_length(0.2565, 60_000, 10)
    assert code["bits"] == pytest.approx(22_200, rel=1e-3)
    assert code["plain_bits"] == pytest.approx(60_000 * math.log2(10))
    assert code["compression"] == pytest.approx(199_316 / 22_203, rel=1e-3)
    assert code_length(0.1, 10, 4, labels=9)["plain_bits"] == 180


def test_many_weights_in_half_precision_have_a_sum() -> None:
    """Beyond the 65,504 that half precision can hold."""
    model = BayesianNetwork(
        torch.nn.Linear(200, 100).half(), priors.Normal(), likelihoods.Categorical(), N=10
    )
    guide = MeanFieldNormal(model)
    guide()
    found = kl_ledger(Posterior([(model, guide)]))
    assert found is not None
    q = Normal(guide.loc.double(), guide.sigma.double())
    exact = kl_divergence(q, Normal(0.0, 1.0)).sum().detach()
    assert sum(entry.nats for entry in found.values()) == pytest.approx(float(exact), rel=0.01)
