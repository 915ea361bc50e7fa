"""The defaults of the priors, and the choice by parameter name; their densities are in test_properties.py."""

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyrobbb import BayesianNetwork, likelihoods, priors


def test_defaults_are_the_papers() -> None:
    prior = priors.ScaleMixture()
    assert (prior.pi, prior.sigma1) == (0.5, 1.0)
    assert prior.sigma2 == pytest.approx(math.exp(-6), rel=1e-15)


def test_deterministic_parameters_have_no_distribution() -> None:
    assert priors.Deterministic().distribution("0.weight", torch.zeros(2)) is None


def test_priors_take_names_only() -> None:
    with pytest.raises(TypeError):
        priors.Normal(1.0)  # type: ignore[misc]


def test_the_first_pattern_that_fits_decides() -> None:
    prior = priors.PerParameter(
        default=priors.Normal(sigma=1.0),
        where={"2.bias": priors.Normal(sigma=2.0), "*.bias": priors.Laplace(), "4.*": priors.Deterministic()},
    )
    names = ["0.weight", "0.bias", "2.bias", "4.weight", "4.bias"]
    distributions = {name: prior.distribution(name, torch.zeros(3)) for name in names}
    prior.check({name: [name] for name in names})
    assert float(distributions["0.weight"].variance[0]) == 1.0  # type: ignore[union-attr]
    assert float(distributions["2.bias"].variance[0]) == 4.0  # type: ignore[union-attr]
    assert type(distributions["0.bias"].base_dist).__name__ == "Laplace"  # type: ignore[union-attr]
    assert distributions["4.weight"] is None
    assert type(distributions["4.bias"].base_dist).__name__ == "Laplace"  # type: ignore[union-attr]


def test_a_pattern_within_a_pattern_is_checked_too() -> None:
    inner = priors.PerParameter(default=priors.Normal(), where={"*.bais": priors.Laplace()})
    for prior in (
        priors.PerParameter(default=inner),
        priors.PerParameter(default=priors.Normal(), where={"0.*": inner}),
    ):
        with pytest.raises(ValueError, match="bais"):
            prior.check({"0.weight": ["0.weight"], "0.bias": ["0.bias"]})


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        (dist.VonMises(0.0, 1.0), "on a circle"),
        (dist.Delta(torch.tensor(0.0)), "no width"),
        (dist.ImproperUniform(dist.constraints.real, (), ()), "drawn from"),
    ],
)
def test_laws_that_are_no_prior_of_a_weight(law: dist.TorchDistribution, reason: str) -> None:
    class Own(priors.Prior):
        def distribution(self, name: str, parameter: torch.Tensor) -> dist.TorchDistribution:
            return priors.elementwise(law, parameter)

    for prior in (Own(), priors.IID(law)):
        with pytest.raises(ValueError, match=f"cannot be the prior of 'weight': it .*{reason}"):
            BayesianNetwork(torch.nn.Linear(2, 1), prior, likelihoods.Normal(0.1), 3)


@pytest.mark.parametrize("prior", [priors.StudentT(), priors.IID(dist.Gamma(2.0, 1.0)), priors.ARD()])
def test_a_prior_that_torch_does_not_draw_in_half_precision(prior: priors.Prior) -> None:
    network = torch.nn.Linear(2, 1).bfloat16()
    with pytest.raises(
        ValueError, match=r"prior of 'weight' cannot be drawn in torch\.bfloat16 \(.*\): fit in float32"
    ):
        BayesianNetwork(network, prior, likelihoods.Normal(0.1), 3)
    BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.1), 3)


class OneScale(priors.Prior, PyroModule):
    """The example of `Prior`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroSample(dist.HalfCauchy(1.0))

    def distribution(self, name: str, parameter: torch.Tensor) -> dist.TorchDistribution:
        return priors.elementwise(dist.Normal(0.0, priors.beside(self.scale, parameter)), parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hyperparameter_takes_the_weights_precision(dtype: torch.dtype) -> None:
    net = torch.nn.Linear(2, 1).to(dtype)
    model = BayesianNetwork(net, OneScale(), likelihoods.Normal(0.1), 3)
    trace = poutine.trace(model).get_trace()
    assert trace.nodes["weight"]["value"].dtype == dtype


class Flat(dist.StudentT):
    """A law of one's own that derives from Student's t."""

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return torch.full_like(value, -7.0)


def test_a_law_that_derives_from_students_t_is_its_own() -> None:
    prior = priors.IID(Flat(3.0, 0.0, 1.0)).distribution("weight", torch.zeros(2))
    assert float(prior.log_prob(torch.zeros(2))) == -14.0


def test_a_prior_without_a_distribution_is_named() -> None:
    class Own(priors.Prior):
        def for_module(self, name: str, parameter: Tensor, module: nn.Module) -> Any:
            return super().for_module(name, parameter, module)

    with pytest.raises(NotImplementedError, match="Own must define distribution"):
        BayesianNetwork(nn.Linear(2, 1), Own(), likelihoods.Normal(1.0))
