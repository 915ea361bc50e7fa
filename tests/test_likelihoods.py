"""Each likelihood against torch's or SciPy's densities, its shapes, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from scipy import stats
from torch import Tensor

from engine_fakes import normal
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork

LABELS = torch.tensor([0, 2, 1, 2, 0])


def judged(likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor | None = None) -> Any:
    """The distribution as the model takes it, and `y` if it fits; any network would do."""
    model = BayesianNetwork(torch.nn.Linear(1, 1), priors.Normal(), likelihood, 5)
    law = model.observation(output, draws=output.dim() - 2)
    if y is not None:
        model.encoded(law, y)
        model.likelihood.check_domain(law, model.likelihood.encode(y))
    return law


def softplus(x: Any) -> Any:
    return math.log1p(math.exp(x))


def test_categorical() -> None:
    likelihood, f = likelihoods.Categorical(), normal(5, 3)
    law = likelihood(f)
    assert law.batch_shape == (5,)
    expected = -torch.nn.functional.cross_entropy(f, LABELS, reduction="none")
    torch.testing.assert_close(law.log_prob(LABELS), expected)
    assert likelihood.width(10) == 10
    assert likelihood.task == "classification"


def test_bernoulli() -> None:
    likelihood, f = likelihoods.Bernoulli(), normal(5, 2)
    y = (normal(5, 2, seed=1) > 0).float()
    law = likelihood(f)
    assert (law.batch_shape, law.event_shape) == ((5,), (2,))
    expected = -torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="none").sum(-1)
    torch.testing.assert_close(law.log_prob(y), expected)
    assert (likelihood.width(2), likelihood.task) == (1, "classification")
    assert likelihoods.Bernoulli(multilabel=True).width(2) == 2
    with pytest.raises(ValueError, match="for two classes, got 3"):
        likelihood.width(3)


@pytest.mark.parametrize("learn", [True, False])
def test_normal(learn: bool) -> None:
    likelihood, f, y = likelihoods.Normal(scale=0.3, learn_scale=learn), normal(5, 2), normal(5, 2, seed=1)
    with isolated():
        law = likelihood(f)
    assert (law.batch_shape, law.event_shape) == ((5,), (2,))
    expected = torch.as_tensor(stats.norm(f.numpy(), 0.3).logpdf(y.numpy())).sum(-1).float()
    torch.testing.assert_close(law.log_prob(y).detach(), expected)
    assert likelihood.width(2) == 2
    assert len(list(likelihood.parameters())) == learn
    assert likelihood.scale.item() == pytest.approx(0.3)


def test_heteroscedastic_normal() -> None:
    likelihood, f, y = likelihoods.HeteroscedasticNormal(least_scale=0.1), normal(5, 4), normal(5, 2, seed=1)
    law = likelihood(f)
    assert (law.batch_shape, law.event_shape) == ((5,), (2,))
    for row in range(5):
        expected = sum(
            stats.norm(float(f[row, k]), softplus(float(f[row, 2 + k])) + 0.1).logpdf(float(y[row, k]))
            for k in range(2)
        )
        assert float(law.log_prob(y)[row]) == pytest.approx(expected, rel=1e-5)
    assert likelihood.width(2) == 4


@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.Categorical(),
        likelihoods.Bernoulli(),
        likelihoods.Normal(),
        likelihoods.HeteroscedasticNormal(),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_draws_of_the_weights_stay_in_front(likelihood: likelihoods.Likelihood) -> None:
    output = normal(7, 5, 4)
    law = judged(likelihood, output)
    assert law.batch_shape == (7, 5)
    assert law.sample().shape[:2] == (7, 5)
    one = likelihood(output[3])
    y = one.sample()
    judged(likelihood, output[3], y)
    torch.testing.assert_close(law.log_prob(y)[3], one.log_prob(y))


def test_the_learnt_scale_stays_positive() -> None:
    likelihood = likelihoods.Normal(scale=0.1, learn_scale=True)
    (parameter,) = likelihood.parameters()
    with torch.no_grad():
        parameter.fill_(-20.0)
    assert 0 < likelihood.scale.item() < 1e-6


def test_the_scale_follows_the_outputs_precision() -> None:
    law = likelihoods.Normal(scale=0.3)(normal(5, 2, dtype=torch.float64))
    assert law.log_prob(torch.zeros(5, 2, dtype=torch.float64)).dtype == torch.float64
    likelihood = likelihoods.Normal(scale=0.3).double()
    assert (
        likelihood(normal(5, 2, dtype=torch.float64)).log_prob(torch.zeros(5, 2).double()).dtype
        == torch.float64
    )


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (
            likelihoods.Categorical(),
            torch.zeros(5),
            r"integer labels of shape \(B,\), got torch.float32 \(5,\)",
        ),
        (likelihoods.Categorical(), torch.zeros(5, 4, dtype=torch.long), r"fits y of shape \(5,\), got \(5, 4\)"),
        (likelihoods.Categorical(), torch.zeros(4, dtype=torch.long), "gave 5 rows, y has 4"),
        (likelihoods.Bernoulli(), torch.zeros(5), r"fits y of shape \(5, 4\), got \(5, 1\)"),
        (likelihoods.Normal(), torch.zeros(5), r"fits y of shape \(5, 4\), got \(5,\)"),
        (likelihoods.Normal(), torch.zeros(5, 2), r"fits y of shape \(5, 4\), got \(5, 2\)"),
        (likelihoods.Normal(), torch.zeros(3, 4), "gave 5 rows, y has 3"),
        (likelihoods.HeteroscedasticNormal(), torch.zeros(5, 4), r"fits y of shape \(5, 2\), got \(5, 4\)"),
    ],
)
def test_targets_that_do_not_fit(likelihood: likelihoods.Likelihood, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judged(likelihood, normal(5, 4), y)


def test_outputs_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="even width"):
        judged(likelihoods.HeteroscedasticNormal(), normal(5, 3))
    with pytest.raises(ValueError, match="at least 2 classes"):
        judged(likelihoods.Categorical(), normal(5, 1))
    model = BayesianNetwork(torch.nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(), 5)
    with pytest.raises(ValueError, match=r"Normal needs a network output of shape \(B, width\), got \(5,\)"):
        model.observation(normal(5))


def test_domains() -> None:
    with pytest.raises(ValueError, match="scale must be greater than 0, got 0"):
        likelihoods.Normal(scale=0)
    with pytest.raises(ValueError, match="least_scale must be greater than 0, got -1"):
        likelihoods.HeteroscedasticNormal(least_scale=-1)


def test_a_fixed_scale_is_no_site_and_no_parameter_of_pyro() -> None:
    with isolated():
        with pyro.poutine.trace() as tracer:
            likelihoods.Normal()(normal(5, 2))
        assert list(pyro.get_param_store()) == []
    assert not tracer.trace.stochastic_nodes
