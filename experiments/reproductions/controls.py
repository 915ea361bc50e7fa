"""Negative controls and odd choices of published code, by name, so that their effect can be shown.

None of them gives a good network; `docs/errata.md` says where each was found.
"""

import math
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb.bandits import Mushroom
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.compression.pruning import PrunedGuide
from pyrobbb.distributions import ScaleMixtureNormal
from pyrobbb.draws import sample_points
from pyrobbb.likelihoods import Categorical
from pyrobbb.posterior import Posterior
from pyrobbb.priors import ScaleMixture


class DoubleSoftmax(Categorical):
    r"""The softmax taken twice: p(y = c | f) = softmax(softmax(f))_c, from a softmax layer before the loss.

    The inner softmax lies in [0, 1], so no example's loss falls below :math:`\log(1 + 9 / e) = 1.4612`
    for ten classes, and no probability rises above e / (e + 9) = 0.232.
    """

    def forward(self, output: Tensor) -> TorchDistribution:
        return super().forward(output.softmax(-1))


class LogSizeNormal:
    """Starting means from N(0, s^2) with s = scale * (the sum of ln(size) over the dimensions).

    For a weight of n inputs and m outputs s = scale (ln n + ln m), about three times Kaiming's; for a
    bias s = scale ln m.
    """

    def __init__(self, scale: float = 0.01) -> None:
        self.scale = checks.positive("scale", scale)

    def __call__(self, site: dict[str, Any]) -> Tensor:
        shape = site["fn"].event_shape
        return torch.randn_like(site["infer"]["init"]) * self.scale * sum(math.log(n) for n in shape)


class MeanLogits(Categorical):
    r"""The likelihood of the mean logits of a step's S draws: p(y = c) = softmax(mean_s f_s)_c.

    Neither the expected log-likelihood of eq. 1 nor the log of the mean likelihood. Log-sum-exp is convex, so
    that -log p is at most its mean over the draws: what the noise of the weights costs is understated.
    Draws see one another only where they are one batch: `samples=5 vectorize=true fast=off`.
    """

    draws_together = True

    def forward(self, output: Tensor) -> TorchDistribution:
        together = output
        if self.training and output.dim() > 2:  # what is fitted; a prediction averages probabilities
            together = output.mean(0, keepdim=True).expand_as(output)
        return super().forward(together)


class RhoZero(nn.Module):
    r"""A pruned guide with :math:`\rho`, not :math:`\sigma`, set to 0 where it prunes: w ~ N(0, log(2)^2).

    Its mean weights are those of proper pruning; its draws are noise.
    """

    def __init__(self, pruned: PrunedGuide) -> None:
        super().__init__()
        self.pruned = pruned

    def forward(self, *args: object, **kwargs: object) -> Weights:
        """Sample every latent site."""
        with poutine.block():
            values = self.pruned(*args, **kwargs)
        for name, mask in self.pruned.masks.items():
            values[name] = torch.where(mask, values[name], math.log(2) * torch.randn_like(values[name]))
        return sample_points(values)


def with_rho_zero(pruned: Posterior) -> Posterior:
    """What `prune` gave, with rho = 0 at the weights that are gone."""
    chains: list[tuple[BayesianNetwork, nn.Module]] = []
    for model, guide in pruned.chains:
        assert isinstance(guide, PrunedGuide)
        chains.append((model, RhoZero(guide)))
    return pruned.with_chains(chains)


class SwappedMushroom(Mushroom):
    """The mushrooms with edible and poisonous taken for one another, as in a reproduction.

    Leaving all costs 2.4101 a round there, in truth 2.5899.
    """

    def __init__(self) -> None:
        super().__init__()
        self.edible = ~self.edible


def clamped(realised: Tensor) -> Tensor:
    """Realised regret of each round without its negative values, as in a reproduction.

    A poisonous mushroom that was eaten then costs 17.5 on average, 35 or 0, and not 15, 35 or -5.
    """
    return realised.clamp_min(0)


Scalar = Tensor | float


def log_of_sum(value: Tensor, pi: Scalar, sigma1: Scalar, sigma2: Scalar) -> Tensor:
    """The mixture's log-density as the log of a sum of densities, which underflows: -inf far from 0."""
    wide, narrow = (dist.Normal(0.0, sigma).log_prob(value).exp() for sigma in (sigma1, sigma2))
    return (pi * wide + (1 - pi) * narrow).log()


class LogOfSumNormal(ScaleMixtureNormal):
    """The mixture with `log_of_sum` for its log-density."""

    def log_prob(self, value: Tensor) -> Tensor:
        return log_of_sum(value, self.pi, self.sigma1, self.sigma2)


class LogOfSum(ScaleMixture):
    """The paper's prior with a log-density that underflows."""

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        mixture = super().base_distribution(parameter)
        return LogOfSumNormal(mixture.pi, mixture.sigma1, mixture.sigma2)


def shares_of_powers(M: int) -> Tensor:
    """The shares 2^(M-i) / (2^M - 1), i = 1, ..., M, with powers in float32, which overflows at 2^128."""
    two = torch.tensor(2.0)
    return two ** (M - torch.arange(1, M + 1)) / (two**M - 1)
