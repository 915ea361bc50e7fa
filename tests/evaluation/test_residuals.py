"""The warning of noise unlike the residuals: once on a planted mistake, never after a good fit."""

from functools import partial
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from engine_fakes import Undefined, classes, classifier, normal
from pyrobbb import BayesianNetwork, fit, likelihoods, priors
from pyrobbb._support.model_inputs import NonFiniteOutputError
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.draws import NoWeights
from pyrobbb.evaluation.residuals import warn_of_noise
from pyrobbb.mean_field import MeanFieldNormal
from seeds import FIXED

ADAM = partial(torch.optim.Adam, lr=0.03)


def line() -> Dataset:
    x = normal(100, 1)
    return from_arrays(x, x + 0.5 * normal(100, 1, seed=1), task="regression")


def warned(
    caplog: Any,
    likelihood: likelihoods.Likelihood,
    data: Dataset,
    epochs: int = 60,  # of four steps
    guide: Any = partial(MeanFieldNormal, init_rho=-3.0),
) -> list[str]:
    """The messages of a fit of a line from zero."""
    net = nn.Linear(1, likelihood.width(data.spec.outputs))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    model = BayesianNetwork(net, priors.Normal(), likelihood)
    B = len(data.train) // 4
    fit(model, guide, data, epochs=epochs, batch_size=B, optim=ADAM, device="cpu", progress=None, seed=0)
    return [record.getMessage() for record in caplog.records if record.name.startswith("pyrobbb")]


@pytest.mark.parametrize("scale", [0.25, 1.5])
def test_noise_far_from_the_residuals(scale: float, caplog: Any) -> None:
    (message,) = warned(caplog, likelihoods.Normal(scale=scale), line())
    assert f"output 0 has noise of standard deviation {scale:.3g}, but the training rows have" in message
    assert "learn the noise (learn_scale=True)" in message


@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.HeteroscedasticNormal(least_scale=9.0),
        likelihoods.Rescaled(likelihoods.HeteroscedasticNormal(), [0.0], [9.0]),
    ],
)
def test_noise_that_the_network_gives_has_no_option(likelihood: Any, caplog: Any) -> None:
    (message,) = warned(caplog, likelihood, line(), epochs=1)
    assert message.startswith("output 0 has noise")
    assert message.endswith(": train longer")


@pytest.mark.parametrize("unit", [1e-25, 1e25])  # whose square is beyond single precision
@pytest.mark.parametrize(("noise", "told"), [(0.5, False), (3.0, True)])
def test_noise_is_compared_in_any_unit(unit: float, noise: float, told: bool, caplog: Any) -> None:
    likelihood = likelihoods.Rescaled(likelihoods.Normal(scale=noise), [0.0], [unit])
    data = line()
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    model = BayesianNetwork(net, priors.Normal(), likelihood, N=100)
    guide = MeanFieldNormal(model)
    guide()
    warn_of_noise(model, guide, Split(data.train.x, data.train.y * unit))
    messages = [record.getMessage() for record in caplog.records]
    assert [f"noise of standard deviation {noise * unit:.3g}" in each for each in messages] == [True] * told


class OneNumber(likelihoods.Likelihood):
    """A distribution over numbers, not over rows of one number."""

    def forward(self, output: torch.Tensor) -> Any:
        return dist.Normal(output[..., 0], 0.25)

    def encode(self, y: torch.Tensor) -> torch.Tensor:
        return y[..., 0]


def test_a_number_for_each_row_is_one_output(caplog: Any) -> None:
    net, rows = nn.Linear(1, 1), line().train
    for likelihood in (OneNumber(), likelihoods.Normal(0.25)):
        warn_of_noise(BayesianNetwork(net, priors.Deterministic(), likelihood, 100), NoWeights(), rows)
    one, other = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert one == other


def test_the_worst_output_is_named(caplog: Any) -> None:
    x = normal(100, 1)
    y = torch.cat([x + 0.5 * normal(100, 1, seed=1), x + 0.1 * normal(100, 1, seed=2)], 1)
    (message,) = warned(caplog, likelihoods.Normal(scale=0.5), from_arrays(x, y, task="regression"))
    assert message.startswith("output 1 has noise")
    assert "give each output its own (a list as scale)" in message


class Pixels(nn.Module):
    """x itself, `(B, *grid, 1)`."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.gain.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain(x)


@pytest.mark.parametrize(("noise", "told"), [(1.0, False), (2.0, True)])
def test_all_places_of_a_grid_are_one_output(noise: float, told: bool, caplog: Any) -> None:
    """One place has a fifth of the noise of the others, which a noise that all share cannot follow."""
    x, scale = normal(400, 4, 4, 1), torch.ones(4, 4, 1)
    scale[0, 0] = 0.2
    model = BayesianNetwork(Pixels(), priors.Normal(), likelihoods.Normal([noise], learn_scale=True), N=400)
    guide = MeanFieldNormal(model, init_rho=-9.0)
    guide()
    warn_of_noise(model, guide, Split(x, x + scale * normal(400, 4, 4, 1, seed=1)))
    messages = [record.getMessage() for record in caplog.records]
    assert [message.startswith("output 0 has noise") for message in messages] == [True] * told
    assert not any("list as scale" in message for message in messages)


def test_noise_with_a_prior_is_learned_already(caplog: Any) -> None:
    """Under a prior that is sure of 7, ten times too much."""
    likelihood = likelihoods.Normal(scale=dist.LogNormal(2.0, 0.01))
    messages = warned(caplog, likelihood, line(), guide=AutoNormal)
    assert any("start it nearer" in message for message in messages)
    assert not any("learn the noise" in message for message in messages)


@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.Normal(scale=0.5),
        likelihoods.Normal(scale=1.0, learn_scale=True),
        likelihoods.HeteroscedasticNormal(),
        likelihoods.StudentT(df=1.0, scale=5.0),  # it has no variance
        likelihoods.StudentT(df=30.0, scale=0.5),
        likelihoods.NormalMixture(scale=0.5),
        likelihoods.Rescaled(likelihoods.Normal(scale=0.5), [0.0], [1.0]),
    ],
    ids=["given", "learned", "heteroscedastic", "no variance", "tails", "mixture", "in units"],
)
def test_noise_like_the_residuals(likelihood: likelihoods.Likelihood, caplog: Any) -> None:
    assert warned(caplog, likelihood, line()) == []


def test_tails_heavier_than_the_noise_has_are_no_mistake_of_its_scale(caplog: Any) -> None:
    """A twentieth of the rows has ten times the noise; Student's t, once learned, has that of most."""
    x = normal(2000, 1)
    wide = torch.arange(2000)[:, None] % 20 == 0
    data = from_arrays(x, x + torch.where(wide, 3.0, 0.3) * normal(2000, 1, seed=1), task="regression")
    assert warned(caplog, likelihoods.StudentT(df=4.0, learn_scale=True), data) == []
    (message,) = warned(caplog, likelihoods.StudentT(df=4.0, scale=1.5), data)
    assert "learn the noise" in message


def test_a_mixture_whose_values_lie_far_from_the_targets(caplog: Any) -> None:
    """At -3 and 3, where all targets lie near 0; the other output, whose noise is right, does not hide it."""
    net = nn.Linear(1, 8)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([0.0, 0.0, -3.0, 3.0, 0.0, 0.0, 0.0, 0.0]))
    model = BayesianNetwork(net, priors.Normal(sigma=10.0), likelihoods.NormalMixture(2, [0.3, 0.3]), N=100)
    rows = Split(normal(100, 1), 0.3 * normal(100, 2, seed=1))
    guide = MeanFieldNormal(model, init_rho=-9.0)
    guide()
    warn_of_noise(model, guide, rows)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("output 0 has noise of standard deviation 3.0")  # sqrt(3^2 + 0.3^2)


def test_residuals_are_said_as_they_are(caplog: Any) -> None:
    """Of noise with heavy tails, whose likelihood hardly feels how far off a target lies."""
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.StudentT(4.0, scale=1.0), N=100)
    guide = MeanFieldNormal(model, init_rho=-9.0)
    guide()
    y = 1000 * normal(100, 1, seed=1)
    warn_of_noise(model, guide, Split(normal(100, 1), y))
    (message,) = [record.getMessage() for record in caplog.records]
    said = float(message.partition("residuals of ")[2].partition(":")[0])
    assert said == pytest.approx(float(y.square().mean().sqrt()), rel=0.01)


def test_residuals_are_weighted_as_their_rows(caplog: Any) -> None:
    """Rows of other noise that do not count are not looked at."""
    x = normal(100, 1)
    y = x + torch.where(torch.arange(100)[:, None] < 50, 0.5, 5.0) * normal(100, 1, seed=1)
    weights = np.where(np.arange(100) < 50, 2.0, 0.0)
    data = from_arrays(x, y, task="regression", weights=weights)
    assert warned(caplog, likelihoods.Normal(scale=0.5), data) == []


@FIXED  # which rows are looked at
def test_a_few_large_residuals_are_too_few_to_speak_of(caplog: Any) -> None:
    """Of 2000 rows 2 hold three quarters of the squares: the rows that are looked at had missed one."""
    x, noise = normal(2000, 1), 0.5 * normal(2000, 1, seed=1)
    noise[[7, 8]] = 25.0
    data = from_arrays(x, x + noise, task="regression")
    assert warned(caplog, likelihoods.Normal(scale=float(noise.square().mean().sqrt())), data) == []


def test_one_large_residual_says_little_of_the_noise(caplog: Any) -> None:
    """It alone makes the root mean square of the residuals twice that of the others."""
    x, noise = normal(2000, 1), 0.5 * normal(2000, 1, seed=1)
    noise[8] = 25.0
    data = from_arrays(x, x + noise, task="regression")
    assert warned(caplog, likelihoods.Normal(scale=0.5), data) == []


def test_a_large_residual_that_does_not_count_hides_nothing(caplog: Any) -> None:
    x, noise = normal(100, 1), 0.5 * normal(100, 1, seed=1)
    noise[8] = 1000.0
    weights = np.where(np.arange(100) == 8, 0.0, 2.0)
    data = from_arrays(x, x + noise, task="regression", weights=weights)
    messages = warned(caplog, likelihoods.Normal(scale=2.0), data)
    assert any(message.startswith("output 0 has noise of standard deviation 2") for message in messages)


@pytest.mark.parametrize(("outputs", "told"), [(1, True), (300, False)])
def test_one_of_many_outputs_is_off_by_chance(outputs: int, told: bool, caplog: Any) -> None:
    """Its squares are 5 noises, and 3.6 standard errors beyond what is spoken of; all others are 1."""
    line = nn.Linear(1, outputs)
    nn.init.zeros_(line.weight)
    nn.init.zeros_(line.bias)
    y = torch.ones(4, outputs)
    y[:, 0] = torch.tensor([2.51, 7.53, 2.51, 7.53]).sqrt()
    model = BayesianNetwork(line, priors.Deterministic(), likelihoods.Normal(scale=1.0), 4)
    warn_of_noise(model, NoWeights(), Split(torch.ones(4, 1), y))
    assert ("output 0 has noise of standard deviation 1" in caplog.text) == told


@pytest.mark.parametrize(("y", "told"), [(1.2, False), (20.0, True)])
def test_a_single_row_has_a_residual_too(y: float, told: bool, caplog: Any, recwarn: Any) -> None:
    line = nn.Linear(1, 1)
    nn.init.zeros_(line.weight)
    nn.init.zeros_(line.bias)
    model = BayesianNetwork(line, priors.Deterministic(), likelihoods.Normal(scale=1.0), 1)
    warn_of_noise(model, NoWeights(), Split(torch.ones(1, 1), torch.tensor([[y]])))
    assert ("has noise of standard deviation" in caplog.text) == told
    assert not len(recwarn)


def test_an_output_that_is_nan_is_no_reason_for_silence() -> None:
    model = BayesianNetwork(Undefined(1, 1), priors.Deterministic(), likelihoods.Normal(scale=1.0), 2)
    rows = Split(torch.tensor([[1.0], [10.0]]), torch.zeros(2, 1))
    with pytest.raises(NonFiniteOutputError, match="NaN for row 1 of x"):
        warn_of_noise(model, NoWeights(), rows)


def test_classes_and_counts_have_no_such_noise(caplog: Any) -> None:
    data = classes(24)
    fit(*classifier(data), data, epochs=1, device="cpu", progress=None)
    counts = from_arrays(normal(50, 1), np.full(50, 9), task="regression")
    assert warned(caplog, likelihoods.Poisson(), counts, epochs=1) == []


def test_one_training_row_without_a_likelihood_is_enough() -> None:
    data = line().train
    data.y[7] = 1e30  # whose square is beyond single precision
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(scale=0.5), 100)
    guide = MeanFieldNormal(model)
    guide()
    with pytest.raises(NonFiniteOutputError, match="the log-likelihood of a training row is not finite"):
        warn_of_noise(model, guide, data)
