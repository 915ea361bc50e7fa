"""Contracts of every prior, guide and likelihood: subclass one, define `make`, run pytest.

    from pyrobbb.testing import PriorContract

    class TestMyPrior(PriorContract):
        def make(self):
            return MyPrior(scale=0.5)

Each method `test_...` of a contract is one promise that training, prediction or export relies on. They are
plain assertions, so any test runner will do. None depends on how well a short training converges.
"""

import math
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.likelihoods import Likelihood
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction
from pyrobbb.priors import Prior
from pyrobbb.training.trainer import Training

N, FEATURES, OUTPUTS = 12, 3, 2
SHAPES = {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (2, 4), "conv.weight": (2, 3, 3, 3)}


def _draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _network(width: int) -> nn.Sequential:
    with isolated(0):
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, width))


def _trained(model: BayesianNetwork, guide: nn.Module, y: Tensor, task: Any) -> Training:
    """One epoch of two minibatches, after which every parameter has moved and nothing is NaN."""
    data = from_arrays(_draw(N, FEATURES), y, task=task)
    run = Training(model, guide, data, epochs=1, batch_size=N // 2, samples=2, device="cpu")
    before = {name: p.detach().clone() for name, p in run.named.items()}
    (row,) = run.run().rows
    assert math.isfinite(row.free_energy), "the free energy is not finite after one epoch"
    still = [name for name, p in run.named.items() if torch.equal(p, before[name])]
    assert not still, f"training did not move {', '.join(still)}"
    return run


class PriorContract:
    """The contract of a prior: one event for a whole parameter, in that parameter's precision.

    The network has three inputs and four hidden units. A prior of one layer alone is made as it is used:
    `PerParameter(default=Normal(), where={"0.weight": MyPrior(inputs=3)})`, or `"2.weight"` of four inputs.
    """

    def make(self) -> Prior:
        """The prior under test."""
        raise NotImplementedError(f"{type(self).__name__} must define make(self)")

    def distributions(self, dtype: torch.dtype = torch.float32) -> list[tuple[Any, Tensor]]:
        """Each distribution of the prior, with a parameter of its shape, leaving out deterministic ones."""
        given = [(name, _draw(*shape, dtype=dtype)) for name, shape in SHAPES.items()]
        found = [(self.make().distribution(name, parameter), parameter) for name, parameter in given]
        return [pair for pair in found if pair[0] is not None]

    def test_a_distribution_is_one_event_of_the_parameter_s_shape(self) -> None:
        """Otherwise a log density of many numbers would be summed by chance, or not at all."""
        for distribution, parameter in self.distributions():
            assert distribution.event_shape == parameter.shape, (distribution.event_shape, parameter.shape)
            assert distribution.batch_shape == (), distribution.batch_shape
            assert distribution.log_prob(distribution.sample()).shape == ()

    def test_the_distribution_keeps_the_parameter_s_precision(self) -> None:
        """A double network is not rounded to single precision by its prior."""
        for dtype in (torch.float32, torch.float64):
            for distribution, _ in self.distributions(dtype):
                drawn = distribution.sample()
                assert drawn.dtype == distribution.log_prob(drawn).dtype == dtype

    def test_the_log_density_of_a_draw_has_a_gradient(self) -> None:
        """Training needs d log P(w) / dw."""
        with isolated(0):
            for distribution, _ in self.distributions():
                w = distribution.sample().requires_grad_()
                assert distribution.support.check(w).all()
                (slope,) = torch.autograd.grad(distribution.log_prob(w), w)
                assert slope.isfinite().all()

    def test_a_network_trains_and_predicts_under_it(self) -> None:
        """One epoch under a guide for any support, and draws of every weight."""
        model = BayesianNetwork(_network(OUTPUTS), self.make(), likelihoods.Normal(0.1), N)
        run = _trained(model, AutoNormal(model), _draw(N, OUTPUTS, seed=1), "regression")
        posterior = Posterior([(model, run.guide)])
        assert set(posterior.draw(1)) == set(model.sites)
        prediction = posterior.predict(_draw(5, FEATURES), draws=2)
        assert isinstance(prediction, ValuePrediction)
        assert prediction.mean.shape == (5, OUTPUTS)


class GuideContract:
    """The contract of a guide: a sample of each weight, with and without data, and parameters that move."""

    point = False  # a guide of point estimates: its draws are all the same

    def make(self, model: BayesianNetwork) -> nn.Module:
        """The guide under test, for `model`."""
        raise NotImplementedError(f"{type(self).__name__} must define make(self, model)")

    def prior(self) -> Prior:
        """The prior of the model that the guide is for."""
        return priors.Normal(sigma=0.5)

    def model(self) -> BayesianNetwork:
        """A small model of two regression targets."""
        return BayesianNetwork(_network(OUTPUTS), self.prior(), likelihoods.Normal(0.1), N)

    def test_it_samples_every_weight_with_and_without_data(self) -> None:
        """A prediction calls the guide without targets, and without inputs."""
        model, x, y = self.model(), _draw(N, FEATURES), _draw(N, OUTPUTS, seed=1)
        guide = self.make(model)
        with isolated(0):
            guide(x, y)
            for given in ((x, y), (x,), ()):
                trace = poutine.trace(guide).get_trace(*given)
                for name, value in model.initial().items():
                    assert trace.nodes[name]["value"].shape == value.shape

    def test_pyro_s_elbo_is_finite_and_differentiable(self) -> None:
        """As a user's own `pyro.infer.SVI` would call it."""
        model, x, y = self.model(), _draw(N, FEATURES), _draw(N, OUTPUTS, seed=1)
        guide = self.make(model)
        with isolated(0):
            guide(x, y)
            loss = pyro.infer.Trace_ELBO().differentiable_loss(model, guide, x, y)
            assert torch.isfinite(loss)
            slopes = torch.autograd.grad(loss, list(guide.parameters()))
        assert all(slope.isfinite().all() for slope in slopes)

    def test_training_moves_every_parameter_and_draws_differ(self) -> None:
        """And the same seed gives the same draw."""
        model = self.model()
        guide = self.make(model)
        _trained(model, guide, _draw(N, OUTPUTS, seed=1), "regression")
        posterior = Posterior([(model, guide)])
        draws, again = posterior.draw(3, seed=1), posterior.draw(3, seed=1)
        means = posterior.mean_weights()
        for name, value in model.initial().items():
            assert draws[name].shape == (3, *value.shape)
            assert means[name].shape == value.shape
            assert draws[name].isfinite().all()
            assert torch.equal(draws[name], again[name])
            assert (draws[name].std(0).max() == 0) == self.point


class LikelihoodContract:
    """The contract of a likelihood: one distribution per row, a density to train on, misfits refused."""

    def make(self) -> Likelihood:
        """The likelihood under test."""
        raise NotImplementedError(f"{type(self).__name__} must define make(self)")

    def model(self) -> BayesianNetwork:
        """A small network under the likelihood, whose latents it samples."""
        likelihood = self.make()
        return BayesianNetwork(_network(likelihood.width(OUTPUTS)), priors.Normal(), likelihood, N)

    def output(self, *draws: int) -> Tensor:
        """What a network gives for `N` rows, under `draws` draws of its weights."""
        return _draw(*draws, N, self.make().width(OUTPUTS))

    def latents(self, seed: int = 0) -> dict[str, Tensor]:
        """A draw of the likelihood's latents from their priors; none if it has no `PyroSample`."""
        model = self.model()
        with isolated(seed):
            drawn = model.prior_draw()
        return {name: drawn[name] for name in model.likelihood_sites}

    def observation(self, output: Tensor) -> Any:
        """The distribution of targets given a network's output."""
        return self.model().observation(output, self.latents())

    def targets(self) -> Tensor:
        """`N` targets that the likelihood can have produced: a draw from it."""
        with isolated(1):
            return self.observation(self.output()).sample()

    def test_a_row_has_one_log_likelihood_and_draws_stay_in_front(self) -> None:
        """Without `.to_event(1)` over the outputs the plate would count each row several times."""
        model, output, y = self.model(), self.output(5), self.targets()
        latents = [self.latents(seed) for seed in range(5)]
        together = {name: torch.stack([own[name] for own in latents]) for name in model.likelihood_sites}
        each = model.observation(output, together, draws=1).log_prob(y)
        assert each.shape == (5, N)
        for s in range(5):
            torch.testing.assert_close(model.observation(output[s], latents[s]).log_prob(y), each[s])

    def test_its_own_draws_are_targets_that_it_takes(self) -> None:
        """`check_domain` refuses nothing that the likelihood gives itself."""
        y = self.targets()
        assert len(y) == N
        self.make().check_domain(self.observation(self.output()), y)

    def test_too_few_targets_are_refused(self) -> None:
        """In a ValueError, before training."""
        model = self.model()
        try:
            model.log_likelihood(model.prior_draw(), _draw(N, FEATURES), self.targets()[:-1])
        except ValueError:
            return
        raise AssertionError("fewer targets than network rows were accepted")

    def test_targets_that_are_not_finite_are_refused(self) -> None:
        """Even where the density would silently be NaN."""
        y = self.targets()
        if not y.is_floating_point():
            return
        y.flatten()[0] = math.nan
        try:
            self.make().check_domain(self.observation(self.output()), y)
        except ValueError:
            return
        raise AssertionError("check_domain accepted a target that is not a number")

    def test_the_log_likelihood_has_a_gradient(self) -> None:
        """In the network's output."""
        output = self.output().requires_grad_()
        (slope,) = torch.autograd.grad(self.observation(output).log_prob(self.targets()).sum(), output)
        assert slope.isfinite().all()

    def test_a_network_trains_and_predicts_with_it(self) -> None:
        """One epoch, log-likelihoods of each draw and row, and draws of y like y."""
        model, y = self.model(), self.targets()
        run = _trained(model, AutoNormal(model), y, model.likelihood.task)
        prediction = Posterior([(model, run.guide)]).predict(_draw(N, FEATURES), y, draws=3, sample=True)
        assert prediction.log_likelihood is not None
        assert prediction.log_likelihood.shape == (3, N)
        assert prediction.log_predictive.isfinite().all()
        assert prediction.samples is not None
        assert prediction.samples.shape == (3, *y.shape)

    def test_its_quantiles_are_those_of_its_draws(self) -> None:
        """A class derived from torch's, such as a censored normal, has a `cdf` and `icdf` of its own, too."""
        model, draws = self.model(), 2000
        with isolated(2):
            prediction = Posterior([(model, model)]).predict(_draw(N, FEATURES), draws=1)
            if not isinstance(prediction, ValuePrediction):
                return
            drawn = prediction.components[0].sample((draws,))[:, 0]
        levels, error = (0.1, 0.5, 0.9), 6 * (0.25 / draws) ** 0.5
        for level, quantile in zip(levels, prediction.predictive_quantiles(levels), strict=True):
            near = 1e-6 * quantile.abs() + 1e-30  # a value with a probability of its own is rounded there
            assert (drawn < quantile - near).float().mean(0).max() <= level + error
            assert (drawn <= quantile + near).float().mean(0).min() >= level - error


__all__ = ["GuideContract", "LikelihoodContract", "PriorContract"]
