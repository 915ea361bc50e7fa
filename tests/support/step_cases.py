"""Small models with every prior, likelihood and guide, to compare one way to step with another."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch import nn

from pyrobbb import kl_weights as kl
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.agreement import gradients
from pyrobbb.accelerated.dispatch import make_step
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.initializers import Uniform
from pyrobbb.low_rank import LowRankNormal
from pyrobbb.matrix_normal import MatrixNormal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep

N, B = 30, 6

PRIORS = {
    "mixture": priors.ScaleMixture(),
    "mixture_wide_spike": priors.ScaleMixture(pi=0.25, sigma1=0.75, sigma2=0.1),
    "normal": priors.Normal(sigma=0.3),
    "laplace": priors.Laplace(scale=0.2),
    "student_t": priors.StudentT(df=4.0, scale=0.5),
    "fan_in": priors.FanInNormal(),
    "per_parameter": priors.PerParameter(
        default=priors.ScaleMixture(), where={"*.bias": priors.Normal(), "2.weight": priors.Laplace()}
    ),
    "partly_deterministic": priors.PerParameter(
        default=priors.Normal(), where={"0.bias": priors.Deterministic()}
    ),
}
LIKELIHOODS: dict[str, Callable[[], likelihoods.Likelihood]] = {
    "categorical": likelihoods.Categorical,
    "bernoulli": partial(likelihoods.Bernoulli, multilabel=True),
    "normal": partial(likelihoods.Normal, scale=0.5),
    "normal_learnt": partial(likelihoods.Normal, scale=0.5, learn_scale=True),
    "heteroscedastic": likelihoods.HeteroscedasticNormal,
    "normal_mixture": partial(likelihoods.NormalMixture, components=3, scale=0.5),
}
SHARES = {
    "uniform": kl.Uniform(),
    "geometric": kl.Geometric(),
    "warm_up": kl.WarmUp(epochs=4),
    "tempered": kl.Tempered(temperature=0.1),
    "full": kl.Full(),
}
AUTOGUIDES = {
    "auto_normal": AutoNormal,
    "auto_diagonal_normal": AutoDiagonalNormal,
    "auto_low_rank": partial(AutoLowRankMultivariateNormal, rank=2),
    "auto_multivariate_normal": AutoMultivariateNormal,
    "auto_delta": AutoDelta,
    "mean_field": MeanFieldNormal,
    "matrix_normal": MatrixNormal,
    "low_rank": partial(LowRankNormal, rank=2),
}


def flat_guide(model: BayesianNetwork) -> MeanFieldNormal:
    return MeanFieldNormal(model, init_rho=Uniform(-4.0, 1.0))


class Looking(nn.Module):
    """A layer whose path depends on the data, and its output on the row alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.detach().sum()) > 0 else x.clone()


class Synchronises(nn.Module):
    """A layer that synchronises without looking at a value in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.detach().flatten().nonzero().sum().clamp(1, 1)


class Case:
    """A small model, its guide and an optimiser over both."""

    def __init__(
        self,
        prior: priors.Prior,
        likelihood: str = "categorical",
        make_guide: Callable[[Any], nn.Module] = flat_guide,
        dtype: torch.dtype = torch.float32,
        network: nn.Module | None = None,
    ) -> None:
        with isolated(1):
            made = LIKELIHOODS[likelihood]()
            net = network or nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, made.width(3)))
            net = net.to(dtype)
            self.model = BayesianNetwork(net, prior, made, N)
            self.guide = make_guide(self.model)
            x, y = torch.randn(B, 4, dtype=dtype), torch.rand(B, 3, dtype=dtype)
            if likelihood == "categorical":
                y = torch.arange(B) % 3
            elif likelihood == "bernoulli":
                y = y.round()
            self.data = Split(x, y)
            self.guide(x, y)
        both = [*self.guide.parameters(), *self.model.parameters()]
        self.optimizer = torch.optim.Adam(both, lr=1e-2, fused=True)
        self.said: list[str] = []

    def step(self, **options: Any) -> Any:
        with isolated(3):
            return make_step(
                self.model, self.guide, self.optimizer, self.data, log=self.said.append, **options
            )

    def reference(self, samples: int = 1, vectorize: bool = False) -> ReferenceStep:
        return ReferenceStep(self.model, self.guide, self.optimizer, samples=samples, vectorize=vectorize)

    def assert_close(
        self, step: Any, *, samples: int = 1, share: kl.KLWeight | None = None, rtol: float = 1e-5
    ) -> None:
        pi = (share or kl.Geometric()).weight(2, N // B, 1, B / N)
        with isolated(5):
            noise = torch.randn(step.noise_shape, dtype=self.data.x.dtype)
            ours = gradients(step, self.data, noise, share=pi)
            reference = self.reference(samples, vectorize=len(step.noise_shape) == 1)
            theirs = gradients(reference, self.data, noise, share=pi, N=N)
        for a, b in zip(ours, theirs, strict=True):
            assert float((a - b).norm()) <= rtol * float(b.norm())
