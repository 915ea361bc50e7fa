"""Models of which the posterior, or its curvature, is known exactly; a step and a fit of Laplace on them."""

from typing import Any

import torch
from torch import Tensor, nn

from engine_fakes import classes, network, normal
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference import Laplace
from pyrobbb.inference.laplace import LaplaceGuide

N, D, NOISE, SIGMA = 50, 3, 0.5, 1.0


def linear() -> tuple[BayesianNetwork, Split, Tensor, Tensor]:
    """A linear-Gaussian model, its data, and the exact posterior's precision and mean."""
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    x = normal(N, D) @ mix
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + NOISE * normal(N, 1, seed=1)
    model = BayesianNetwork(
        nn.Linear(D, 1, bias=False), priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE), N
    )
    precision = x.T @ x / NOISE**2 + torch.eye(D) / SIGMA**2
    return model, Split(x, y), precision, torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0]


def made_step(
    method: Any, model: BayesianNetwork, data: Split, steps: int, fast: str = "eager", factor: float = 1.0
) -> tuple[Any, Any]:
    guide = method.guide(model, None)
    guide()
    optimizer = torch.optim.SGD([*guide.parameters(), *model.parameters()], lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: factor)
    return guide, method.step(model, guide, optimizer, data, steps=steps, fast=fast, log=print)


def laplace(model: BayesianNetwork, data: Split, mode: Tensor | None = None, **options: Any) -> LaplaceGuide:
    guide = LaplaceGuide(Laplace(**options), model)
    if mode is not None:
        guide.loc.data.copy_(mode)
    guide.fit(model, data)
    return guide


def softmax() -> tuple[BayesianNetwork, Split]:
    data = classes()
    return BayesianNetwork(network(), priors.Normal(sigma=0.8), likelihoods.Categorical(), 12), data.train
