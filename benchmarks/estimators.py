"""What a learned prior costs in a step, and local reparameterisation: its time, bias and variance."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.steps import BATCH, N, training
from benchmarks.timing import Work
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import agreement, dispatch
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal

EVERY = 20  # steps between two updates of a learned prior
DIRECTIONS = 20  # in which mean gradients are compared

CASES: dict[str, tuple[Callable[[], priors.Prior], str]] = {
    "normal": (lambda: priors.Normal(sigma=0.1), "weights"),
    "learned": (lambda: priors.Learned(priors.Normal(sigma=0.1), every=EVERY), "weights"),
    "learned per input": (lambda: priors.Learned(priors.Normal(sigma=0.1), per="input"), "weights"),
    "mixture": (priors.ScaleMixture, "weights"),
    "normal, local": (lambda: priors.Normal(sigma=0.1), "local"),
    "mixture, local": (priors.ScaleMixture, "local"),
}


def works(width: int) -> dict[str, Work]:
    """A step under each prior and estimator, with the updates of the priors that learn."""
    return {name: _step(width, prior(), estimator) for name, (prior, estimator) in CASES.items()}


def _step(width: int, prior: priors.Prior, estimator: str) -> Work:
    made, x, y = training(width, "compiled", prior=prior, estimator=estimator)
    done = 0

    def step() -> None:
        nonlocal done
        made.step(x, y, BATCH / N, BATCH / N)
        made.learn_prior(done)
        done += 1

    return step


def gradients(draws: int) -> tuple[float, float]:
    """Local noise beside weight noise: the greatest |z| of mean gradients, and the ratio of variances.

    Both are of the same network, 20-50-3 on made rows, with sigma 0.2 and a normal prior.
    """
    with isolated(0):
        net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
        rows = Split(torch.randn(BATCH, 20), torch.randint(0, 3, (BATCH,)))
        directions = torch.nn.functional.normalize(torch.randn(DIRECTIONS, 2 * (21 * 50 + 51 * 3)), dim=1)
    moments = [_moments(net, rows, estimator, draws, directions) for estimator in ("weights", "local")]
    (mean, variance, total), (other, lesser, less) = moments
    z = (mean - other).abs() / ((variance + lesser) / draws).sqrt()
    return float(z.max()), float(total / less)


def _moments(
    net: nn.Module, rows: Split, estimator: str, draws: int, directions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the gradient along each direction, and its variance in all."""
    model = BayesianNetwork(net, priors.Normal(sigma=0.3), likelihoods.Categorical(), BATCH)
    guide = MeanFieldNormal(model, init_rho=-1.5)
    with isolated(1):
        guide()
        optimizer = torch.optim.SGD(guide.parameters(), lr=0.1)
        step: Any = dispatch.make_step(model, guide, optimizer, rows, estimator=estimator, fast="eager")
        noise = (torch.randn(step.noise_shape) for _ in range(draws))
        every = torch.stack([torch.cat(agreement.gradients(step, rows, one)[2:]) for one in noise])
    along = every @ directions.T
    return along.mean(0), along.var(0), every.var(0).sum()
