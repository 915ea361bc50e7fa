"""Each negative control shows the fault it is named after."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from experiments._runner.build import build
from experiments._runner.compose import compose
from experiments.reproductions import controls
from experiments.reproductions.controls import DoubleSoftmax
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bandits.mushroom import EAT, LEAVE
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.compression import pruning
from pyrobbb.data import Spec
from pyrobbb.distributions import ScaleMixtureNormal
from pyrobbb.initializers import kaiming
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp
from pyrobbb.posterior import Posterior
from pyrobbb.svi import ReferenceStep
from study_points import BLOBS

SPEC = Spec(N=20, features=(3,), outputs=4, task="classification")


def trained(likelihood):
    """A network with a guide of wide, random means, and its twenty rows."""
    with isolated(0):
        x, y = torch.randn(20, 3), torch.randint(4, (20,))
        model = mlp(SPEC, priors.Normal(), likelihood, hidden=[50])
        guide = MeanFieldNormal(model, init_loc=kaiming, init_rho=-0.5)
        guide(x, y)
        guide.loc.data.normal_()
    return model, guide, x, y


def test_mean_logits_are_those_of_all_draws():
    logits = 3 * torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(1))
    distribution = controls.MeanLogits()(logits)
    assert distribution.batch_shape == (5, 7)
    for s in range(5):
        torch.testing.assert_close(distribution.probs[s], logits.mean(0).softmax(-1))
    y = torch.arange(7) % 4
    each = likelihoods.Categorical()(logits).log_prob(y)
    assert bool((distribution.log_prob(y)[0] >= each.mean(0)).all())  # log-sum-exp is convex
    one = controls.MeanLogits()(logits[0])
    torch.testing.assert_close(one.probs, logits[0].softmax(-1))


def test_a_training_step_of_mean_logits_understates_the_cost_of_noise():
    def nll(likelihood):
        model, guide, x, y = trained(likelihood)
        optimizer = torch.optim.SGD(guide.parameters(), lr=0.0)
        step = ReferenceStep(model, guide, optimizer, samples=5, vectorize=True)
        with isolated(1):
            return float(step.evaluate(x, y, 1.0, 1.0).nll)

    assert nll(controls.MeanLogits()) < nll(likelihoods.Categorical())  # on the same draws, by Jensen


def test_rho_zero_leaves_noise_where_a_weight_was_removed():
    model, guide, *_ = trained(likelihoods.Categorical())
    pruned = pruning.prune(Posterior([(model, guide)]), 0.9)
    kept = pruned.chains[0][1].masks
    right, wrong = pruned.draw(200), controls.with_rho_zero(pruned).draw(200)
    gone = torch.cat([wrong[name][:, ~mask].flatten() for name, mask in kept.items()])
    assert float(gone.std()) == pytest.approx(math.log(2), rel=0.02)  # softplus(0)
    assert float(gone.mean()) == pytest.approx(0, abs=0.01)
    for name, mask in kept.items():
        assert not bool(right[name][:, ~mask].any())
        torch.testing.assert_close(  # what stays has its distribution, under other noise
            wrong[name][:, mask].mean(0), right[name][:, mask].mean(0), atol=0.25, rtol=0
        )


def test_rho_zero_leaves_a_latent_noise_as_it_was():
    model = BayesianNetwork(
        nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(dist.LogNormal(0.0, 1.0)), N=4
    )
    guide = AutoNormal(model)
    guide(torch.randn(4, 3), torch.randn(4, 1))
    pruned = pruning.prune(Posterior([(model, guide)]), 0.5)
    wrong = controls.with_rho_zero(pruned).draw(3)
    assert bool((wrong["likelihood.scale"] > 0).all())
    assert pruned.draw(3).keys() == wrong.keys()


def test_swapped_labels_and_clamped_regret_are_other_problems():
    truth, swapped = controls.Mushroom(), controls.SwappedMushroom()
    assert 5 * float(truth.edible.double().mean()) == pytest.approx(2.5899, abs=1e-4)
    assert 5 * float(swapped.edible.double().mean()) == pytest.approx(2.4101, abs=1e-4)
    assert bool((truth.edible != swapped.edible).all())
    assert int(truth.edible.sum()) == 4208  # the table itself is unchanged
    random, costs = torch.Generator().manual_seed(0), []
    while len(costs) < 4000:
        given = truth.draw(random)
        if given.expected[EAT] < 0:
            costs.append(float(given.expected[LEAVE] - given.rewards[EAT]))
    realised = torch.tensor(costs)
    error = 20 / math.sqrt(len(costs))  # one standard error: -5 or 35
    assert float(realised.mean()) == pytest.approx(15, abs=5 * error)
    assert float(controls.clamped(realised).mean()) == pytest.approx(17.5, abs=5 * error)


def test_the_log_of_a_sum_underflows_where_the_mixture_does_not():
    parameters = (0.5, math.exp(-2), math.exp(-6))
    near, far = torch.tensor(0.01), torch.tensor(5.0)
    distribution = ScaleMixtureNormal(*parameters)
    assert float(controls.log_of_sum(near, *parameters)) == pytest.approx(
        float(distribution.log_prob(near)), abs=1e-5
    )
    assert float(controls.log_of_sum(far, *parameters)) == -math.inf
    assert float(distribution.log_prob(far)) == pytest.approx(-682.0889611281, rel=1e-5)


def test_double_softmax_is_what_it_says():
    output = torch.tensor([[30.0] + [0.0] * 9])
    distribution = DoubleSoftmax()(output)
    assert float(distribution.log_prob(torch.tensor([0]))) == pytest.approx(-1.4612, abs=1e-4)
    torch.testing.assert_close(distribution.probs, output.softmax(-1).softmax(-1))


def test_a_prediction_is_that_of_the_likelihood(tmp_path):
    """No example's NLL under the double softmax is below 1.4612, trained or predicted."""
    words = [*BLOBS, "data.N=100", "epochs=30", "optim.lr=0.05", "model.hidden=[50]", "+data.validation=0"]
    config = compose("training_choices", [*words, "likelihood=double_softmax"], folder=tmp_path)
    result = build(config).execute()
    prediction = result.posterior.predict(result.data.train.x, result.data.train.y, draws=3)
    assert float(-prediction.log_likelihood.max()) >= math.log(math.e + 9) - 1 - 1e-5
    assert float(prediction.probs.max()) <= math.e / (math.e + 9) + 1e-5
