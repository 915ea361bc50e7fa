"""What a learned prior costs in a step, and local reparameterisation: its time, bias and variance."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # each with the shape of a row
    "perceptron": (lambda: nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3)), (20,)),
    "conv net": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)),
        (1, 6, 6),
    ),
}

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


def gradients(name: str, draws: int, fast: str = "compiled") -> tuple[float, float]:
    """Noise on the outputs beside noise on the weights: greatest |z| of mean gradients, ratio of variances.

    Both are of one of `NETWORKS` on made rows, with sigma 0.2 and a normal prior.
    """
    make, shape = NETWORKS[name]
    with isolated(0):
        net = make()
        rows = Split(torch.randn(BATCH, *shape), torch.randint(0, 3, (BATCH,)))
        size = 2 * sum(p.numel() for p in net.parameters())
        directions = torch.nn.functional.normalize(torch.randn(DIRECTIONS, size), dim=1).double()
    weights, local = (_moments(net, rows, how, draws, directions, fast) for how in ("weights", "local"))
    along = slice(DIRECTIONS)
    z = (weights.mean - local.mean)[along] / ((weights.variance + local.variance)[along] / draws).sqrt()
    variances = [moments.variance[DIRECTIONS:].sum() for moments in (local, weights)]
    return float(z.abs().max()), float(variances[0] / variances[1])


class _Moments(NamedTuple):
    """Of the gradient along each direction, then of each of its entries."""

    mean: Tensor
    variance: Tensor


def _moments(
    net: nn.Module, rows: Split, estimator: str, draws: int, directions: Tensor, fast: str
) -> _Moments:
    model = BayesianNetwork(net, priors.Normal(sigma=0.3), likelihoods.Categorical(), BATCH)
    guide = MeanFieldNormal(model, init_rho=-1.5)
    total = squares = torch.zeros(len(directions) + directions.shape[1], dtype=torch.float64)
    with isolated(1):
        guide()
        optimizer = torch.optim.SGD(guide.parameters(), lr=0.1)
        step: Any = dispatch.make_step(model, guide, optimizer, rows, estimator=estimator, fast=fast)
        for _ in range(draws):
            each = agreement.gradients(step, rows, torch.randn(step.noise_shape))[2:]
            gradient = torch.cat(each).double()
            seen = torch.cat([directions @ gradient, gradient])
            total, squares = total + seen, squares + seen.square()
    mean = total / draws
    return _Moments(mean, (squares - draws * mean.square()) / (draws - 1))
