"""Every prior, guide, likelihood and KL share with every other: they train, give draws and predict.

Each pair of choices occurs together at least once (an orthogonal array: 7 x 5 runs instead of 1,225), each
run with one or two weight samples, looped or vectorised, in turn.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide
from torch import nn

from engine_fakes import classes, network, values
from pyrobbb import kl_weights as kl
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.initializers import from_network, kaiming
from pyrobbb.low_rank import LowRankNormal
from pyrobbb.matrix_normal import MatrixNormal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.convnet import convnet
from pyrobbb.models.linear import linear
from pyrobbb.models.mlp import mlp
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction, ValuePrediction
from pyrobbb.testing import GuideContract, LikelihoodContract, PriorContract
from pyrobbb.training.trainer import Training

PRIORS: dict[str, priors.Prior] = {
    "mixture": priors.ScaleMixture(),
    "normal": priors.Normal(sigma=0.5),
    "laplace": priors.Laplace(),
    "student_t": priors.StudentT(),
    "fan_in": priors.FanInNormal(),
    "other_biases": priors.PerParameter(default=priors.ScaleMixture(), where={"*.bias": priors.Normal()}),
    "point_last_layer": priors.PerParameter(default=priors.Laplace(), where={"2.*": priors.Deterministic()}),
}
GUIDES: dict[str, Callable[[Any], nn.Module]] = {
    "mean_field": MeanFieldNormal,
    "auto_normal": partial(autoguide.AutoNormal, init_loc_fn=from_network, init_scale=0.01),
    "auto_low_rank": partial(autoguide.AutoLowRankMultivariateNormal, init_loc_fn=kaiming, init_scale=0.01),
    "auto_multivariate": partial(autoguide.AutoMultivariateNormal, init_scale=0.01),
    "auto_delta": autoguide.AutoDelta,
    "auto_iaf": autoguide.AutoIAFNormal,
    "matrix_normal": MatrixNormal,
    "low_rank": partial(LowRankNormal, init_scale=0.01, rank=3),
}
LIKELIHOODS: dict[str, likelihoods.Likelihood] = {
    "categorical": likelihoods.Categorical(),
    "bernoulli": likelihoods.Bernoulli(multilabel=True),
    "normal": likelihoods.Normal(0.1),
    "learnt_normal": likelihoods.Normal(learn_scale=True),
    "heteroscedastic": likelihoods.HeteroscedasticNormal(),
    "normal_mixture": likelihoods.NormalMixture(components=3),
}
SHARES: dict[str, kl.KLWeight] = {
    "uniform": kl.Uniform(),
    "geometric": kl.Geometric(),
    "warm_up": kl.WarmUp(epochs=2),
    "tempered": kl.Tempered(temperature=0.1),
    "full": kl.Full(),
}
TABLE = [
    (
        prior,
        guide,
        list(LIKELIHOODS)[(i + j) % 5],
        list(SHARES)[(i + 2 * j) % 5],
        1 + (i + j) % 2,
        (i + 3 * j) % 3 == 0,
    )
    for i, prior in enumerate(PRIORS)
    for j, guide in enumerate(GUIDES)
]
TABLE += [  # a sixth likelihood, with every prior, guide and share
    (
        list(PRIORS)[i % len(PRIORS)],
        list(GUIDES)[i % len(GUIDES)],
        "normal_mixture",
        list(SHARES)[i % 5],
        1 + i % 2,
        i % 3 == 0,
    )
    for i in range(max(len(PRIORS), len(GUIDES)))
]


def test_the_table_holds_every_pair() -> None:
    sizes = [len(PRIORS), len(GUIDES), len(LIKELIHOODS), len(SHARES)]
    for a in range(4):
        for b in range(a):
            assert len({(row[a], row[b]) for row in TABLE}) == sizes[a] * sizes[b]


@pytest.mark.parametrize(("prior", "guide", "likelihood", "share", "samples", "vectorize"), TABLE)
def test_it_trains_draws_and_predicts(
    prior: str, guide: str, likelihood: str, share: str, samples: int, vectorize: bool
) -> None:
    chosen = LIKELIHOODS[likelihood]
    data = classes() if chosen.task == "classification" else values(binary=likelihood == "bernoulli")
    K = data.spec.outputs
    model = BayesianNetwork(network(width=chosen.width(K)), PRIORS[prior], chosen, data.spec.N)
    q = GUIDES[guide](model)
    run = Training(
        model, q, data, epochs=1, batch_size=6, kl=SHARES[share], samples=samples, vectorize=vectorize,
        device="cpu", optim=partial(torch.optim.Adam, lr=0.01),
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in run.named.items()}
    row = run.run().rows[0]
    assert math.isfinite(row.free_energy)
    unmoved = [name for name, p in run.named.items() if torch.equal(p, before[name])]
    assert not unmoved

    sites = {"0.weight", "0.bias"} | (set() if prior == "point_last_layer" else {"2.weight", "2.bias"})
    posterior = Posterior([(model, q)])
    draws = posterior.draw(3)
    assert set(draws) == set(model.sites) == sites
    for name, value in model.initial().items():
        assert draws[name].shape == (3, *value.shape)
        assert draws[name].isfinite().all()
        spread = draws[name].std(0).max()
        assert spread == 0 if guide == "auto_delta" else spread > 0
        assert posterior.mean_weights()[name].shape == value.shape

    prediction = posterior.predict(data.train.x, data.train.y, draws=3, sample=True)
    assert prediction.log_likelihood is not None
    assert prediction.log_likelihood.shape == (3, 12)
    assert prediction.log_predictive.isfinite().all()
    assert prediction.samples is not None
    assert prediction.samples.shape == (3, *data.train.y.shape)
    if isinstance(prediction, ClassPrediction):
        assert prediction.probs.shape == ((12, K, 2) if likelihood == "bernoulli" else (12, K))
    else:
        assert isinstance(prediction, ValuePrediction)
        assert prediction.mean.shape == prediction.variance.shape == (12, K)


class TestEveryPrior(PriorContract):
    @pytest.fixture(autouse=True, params=PRIORS)
    def _member(self, request: pytest.FixtureRequest) -> None:
        self.member = PRIORS[request.param]

    def make(self) -> priors.Prior:
        return self.member


class TestEveryGuide(GuideContract):
    @pytest.fixture(autouse=True, params=GUIDES)
    def _member(self, request: pytest.FixtureRequest) -> None:
        self.make = GUIDES[request.param]  # type: ignore[method-assign]
        self.point = request.param == "auto_delta"


WITH_LATENTS: dict[str, likelihoods.Likelihood] = {
    "latent_scale": likelihoods.Normal(dist.HalfNormal(1.0)),
    "latent_scales": likelihoods.StudentT(scale=dist.HalfNormal(torch.ones(2)).to_event(1)),
    "latent_concentration": likelihoods.NegativeBinomial(dist.LogNormal(0.0, 1.0)),
}


class TestEveryLikelihood(LikelihoodContract):
    @pytest.fixture(autouse=True, params=LIKELIHOODS | WITH_LATENTS)
    def _member(self, request: pytest.FixtureRequest) -> None:
        self.member = (LIKELIHOODS | WITH_LATENTS)[request.param]

    def make(self) -> likelihoods.Likelihood:
        return copy.deepcopy(self.member)


class FlatPrior(priors.Prior):
    """Forgets that a parameter is one event."""

    def distribution(self, name: str, parameter: torch.Tensor) -> dist.Normal:
        return dist.Normal(torch.zeros_like(parameter), 1.0)


class StillGuide(MeanFieldNormal):
    """Gives no weights without data."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(x, y)


class LooseLikelihood(likelihoods.Normal):
    """Leaves each output an event of its own."""

    def forward(self, output: torch.Tensor) -> Any:
        return dist.Normal(output, 0.5)


class Censored(dist.Normal):  # type: ignore[misc]
    """A normal cut off at 0, with the quantiles of one that is not."""

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return super().sample(sample_shape).clamp(min=0.0)


class CensoredNoise(likelihoods.Likelihood):
    def forward(self, output: torch.Tensor) -> Any:
        return Censored(output, 0.5).to_event(1)


class Cut(Censored):
    """The same with its own quantiles, and a probability of its own at a number that binary digits round."""

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return dist.Normal.sample(self, sample_shape).clamp(min=0.3)

    def cdf(self, value: torch.Tensor) -> torch.Tensor:
        return torch.where(value < 0.3, torch.zeros(()), super().cdf(value))

    def icdf(self, value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError  # so says a distribution whose cdf is to be inverted


class CutNoise(likelihoods.Likelihood):
    def forward(self, output: torch.Tensor) -> Any:
        return Cut(output, 0.5).to_event(1)


def test_a_value_with_a_probability_of_its_own_keeps_the_promise_of_quantiles() -> None:
    given = LikelihoodContract()
    given.make = CutNoise
    given.test_its_quantiles_are_those_of_its_draws()


@pytest.mark.parametrize(
    ("contract", "make", "broken"),
    [
        (PriorContract, FlatPrior, "test_a_distribution_is_one_event_of_the_parameter_s_shape"),
        (GuideContract, StillGuide, "test_it_samples_every_weight_with_and_without_data"),
        (LikelihoodContract, LooseLikelihood, "test_a_row_has_one_log_likelihood_and_draws_stay_in_front"),
        (LikelihoodContract, CensoredNoise, "test_its_quantiles_are_those_of_its_draws"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_contract_names_the_promise_that_is_broken(contract: Any, make: Any, broken: str) -> None:
    given = contract()
    given.make = make
    wrong = AssertionError if make is CensoredNoise else (AssertionError, TypeError, ValueError)
    with pytest.raises(wrong):
        getattr(given, broken)()


IMAGES = Split(torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3)


@pytest.mark.parametrize(
    "make", [partial(convnet, channels=(2,), hidden=4), partial(mlp, hidden=(4,)), linear]
)
@pytest.mark.parametrize("vectorize", [False, True])
def test_every_architecture_trains_on_images(make: Callable[..., BayesianNetwork], vectorize: bool) -> None:
    data = Dataset("images", IMAGES, Spec(6, (1, 8, 8), 3, "classification"))
    model = make(data.spec, priors.ScaleMixture(), likelihoods.Categorical())
    guide = MeanFieldNormal(model)
    run = Training(model, guide, data, epochs=1, batch_size=3, samples=2, vectorize=vectorize, device="cpu")
    assert math.isfinite(run.run().rows[0].free_energy)
    prediction = Posterior([(model, guide)]).predict(data.train.x, draws=2)
    assert isinstance(prediction, ClassPrediction)
    assert prediction.probs.shape == (6, 3)
