r"""The continuous ranked probability score of a posterior predictive.

.. math::
    CRPS(F, y) = \int (F(z) - [z \ge y])^2 dz

in the units of y; smaller is better, and a point prediction has its absolute error.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Normal

from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.quantiles import samples
from pyrobbb.distributions import Affine
from pyrobbb.predictive import ValuePrediction


def crps(prediction: ValuePrediction, y: Tensor, *, megabytes: float = 64.0) -> Tensor:
    r"""The score of each target `(M, *K)` under the mixture that a posterior predicts.

    With normal noise, :math:`A(\mu, \sigma^2) = E|N(\mu, \sigma^2)|` and S draws (Grimit et al. 2006, eq. 4):

    .. math::
        \frac1S \sum_s A(y - \mu_s, \sigma_s^2)
            - \frac1{2S^2} \sum_{s,t} A(\mu_s - \mu_t, \sigma_s^2 + \sigma_t^2)

    Draws that are alike, as those of a point estimate, are taken once, with their number as weight.

    With other noise :math:`E|Z - y| - E|Z - Z'| / 2` of some ten thousand samples of y, always the same ones:
    one target's score has an error of 1 to 3 %, the mean over many a far smaller one. Of noise without a
    mean, such as Student's t with 1 degree of freedom or fewer, the samples tell little.

    Args:
        prediction: Of values.
        y: Targets, of the shape of the prediction's mean.
        megabytes: Memory for the pairs of draws of normal noise taken at a time.

    Raises:
        ValueError: Targets of another shape, or a prediction of class labels.
    """
    if not isinstance(prediction, ValuePrediction):
        raise ValueError("crps scores values, and the prediction is of class labels: see its metrics(y)")
    y = prediction.targets(y)
    in_network_units = [
        univariate(part.base_dist) if isinstance(part, Affine) else part for part in prediction.components
    ]
    if not all(isinstance(part, Normal) for part in in_network_units):
        return _of_samples(samples(prediction.components, y.device).double(), y.double())
    means = torch.cat([part.mean for part in prediction.components]).double()
    variances = torch.cat([part.stddev for part in prediction.components]).double().square()
    draws, counts = (
        torch.stack([means, variances], 1).flatten(1).unique_consecutive(dim=0, return_counts=True)
    )
    means, variances = (part.T for part in draws.chunk(2, 1))
    shares, flat = counts.double() / counts.sum(), y.double().flatten()
    rows = max(1, int(megabytes * 2**20 / (8 * len(draws) ** 2)))
    found = [
        _scores(m, v, shares, at)
        for m, v, at in zip(means.split(rows), variances.split(rows), flat.split(rows), strict=True)
    ]
    return torch.cat(found).reshape(y.shape)


def _scores(means: Tensor, variances: Tensor, shares: Tensor, y: Tensor) -> Tensor:
    """Of targets `(M,)` and components `(M, S)` with these shares of the mixture."""
    apart = _absolute(y[:, None] - means, variances) @ shares
    s, t = torch.triu_indices(len(shares), len(shares), 1, device=means.device)  # t, s is the same pair
    pairs = _absolute(means[:, s] - means[:, t], variances[:, s] + variances[:, t]) @ (shares[s] * shares[t])
    return apart - pairs - 0.5 * (_absolute(torch.zeros_like(means), 2 * variances) @ shares**2)


def _of_samples(drawn: Tensor, y: Tensor) -> Tensor:
    """Of samples `(n, S, M, *K)`, n from each draw, without the bias of few.

    A pair from one draw says nothing of a sample beside itself: there are n (n - 1) of these, and n^2 of a
    pair of draws. With a single sample from each, all pairs count alike; one draw of it has none.
    """
    n, S = drawn.shape[:2]
    every, own = _distances(drawn.flatten(0, 1)), _distances(drawn).sum(0)
    apart = (drawn - y).abs().mean((0, 1))
    if n == 1:
        return apart - 0.5 * every / max(1, S * (S - 1))
    return apart - 0.5 * ((every - own) / n**2 + own / (n * (n - 1))) / S**2


def _distances(drawn: Tensor) -> Tensor:
    """The sum of |a - b| over all ordered pairs along the first axis."""
    n = len(drawn)
    ranks = torch.arange(1 - n, n, 2, dtype=drawn.dtype, device=drawn.device)  # 2 i - n - 1
    return 2 * torch.einsum("n,n...->...", ranks, drawn.sort(0).values)


def _absolute(mean: Tensor, variance: Tensor) -> Tensor:
    r"""E|X| of a normal: :math:`2 \sigma \phi(\mu / \sigma) + \mu (2 \Phi(\mu / \sigma) - 1)`."""
    sigma = variance.sqrt()
    z = mean / sigma
    return sigma * (math.sqrt(2 / math.pi) * (-0.5 * z * z).exp()) + mean * torch.erf(z / math.sqrt(2))
