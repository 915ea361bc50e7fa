"""What a posterior predicts: probabilities averaged over weight draws, entropies, means and quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.chunking import Block, outputs
from pyrobbb.bnn import BayesianNetwork, Weights

Batches = Iterator[tuple[BayesianNetwork, Weights]]


@dataclass(frozen=True)
class Prediction:
    """What the posterior says of M inputs, from S weight draws.

    `log_likelihood` is log p(y | x, w_s), shape `(S, M)`, if y was given; `samples` are draws from
    p(y | x, w_s), shape `(S, M)` or `(S, M, K)`, if they were asked for.
    """

    log_likelihood: Tensor | None
    samples: Tensor | None

    @property
    def log_predictive(self) -> Tensor:
        """Log p(y | x) = log mean_s p(y | x, w_s), in nats, shape `(M,)`."""
        if self.log_likelihood is None:
            raise ValueError("give y to predict() to have its log-likelihood")
        return self.log_likelihood.logsumexp(0) - log(self.log_likelihood.shape[0])


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """p(c | x) = mean_s p(c | x, w_s), shape `(M, C)`, and its entropies, in nats.

    `predictive_entropy` is H(mean_s p_s), `expected_entropy` mean_s H(p_s), both of shape `(M,)`.
    """

    probs: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor

    @property
    def mutual_information(self) -> Tensor:
        """I(y; w | x) = predictive minus expected entropy: what the draws disagree about, in nats."""
        return (self.predictive_entropy - self.expected_entropy).clamp_min(0)


@dataclass(frozen=True)
class ValuePrediction(Prediction):
    """Mean and variance of y for real-valued targets.

    `means` are E[y | x, w_s], shape `(S, M, K)`; `noise` is mean_s Var[y | x, w_s], shape `(M, K)`.
    """

    means: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:
        """E[y | x], shape `(M, K)`."""
        return self.means.mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y | x]: spread of the means over draws, plus the mean noise variance."""
        return self.means.var(0, unbiased=False) + self.noise

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles of the function value E[y | x, w] over draws, shape `(len(levels), M, K)`."""
        levels = [checks.between("levels", level, 0, 1) for level in levels]
        if not levels:
            raise ValueError("levels must name at least one quantile")
        return self.means.quantile(
            torch.tensor(levels, dtype=self.means.dtype, device=self.means.device), dim=0
        )


def predict_classes(
    batches: Batches,
    x: Tensor,
    y: Tensor | None,
    block: Block,
    sample: bool,
) -> ClassPrediction:
    """Class probabilities of `x` under the likelihood, averaged over the draws of `batches`."""
    probs: Any = 0.0
    entropy: Any = 0.0
    log_likelihood, samples, total = [], [], 0
    for model, weights in batches:
        logits = outputs(model, weights, x, block)
        law: Any = model.likelihood(logits)
        log_probs = law.logits.log_softmax(-1)
        if y is not None:
            model.likelihood.check(logits, y)
            index = y.long().expand(log_probs.shape[0], -1)[..., None]
            log_likelihood.append(log_probs.gather(-1, index)[..., 0])
        if sample:
            samples.append(law.sample())
        p = log_probs.exp()
        probs = probs + p.sum(0)
        entropy = entropy - (p * log_probs).sum((0, -1))
        total += logits.shape[0]
    probs, entropy = probs / total, entropy / total
    predictive = -torch.special.xlogy(probs, probs).sum(-1)
    return ClassPrediction(_cat(log_likelihood), _cat(samples), probs, predictive, entropy)


def predict_values(
    batches: Batches,
    x: Tensor,
    y: Tensor | None,
    block: Block,
    sample: bool,
) -> ValuePrediction:
    """Mean and variance of y at `x` over the draws of `batches`."""
    log_likelihood, samples, means, noise, total = [], [], [], 0.0, 0
    for model, weights in batches:
        output = outputs(model, weights, x, block)
        law = model.likelihood(output)
        if y is not None:
            model.likelihood.check(output, y)
            log_likelihood.append(law.log_prob(y))
        if sample:
            samples.append(law.sample())
        means.append(law.mean)
        noise = noise + law.variance.sum(0)
        total += law.mean.shape[0]
    return ValuePrediction(
        _cat(log_likelihood), _cat(samples), torch.cat(means), torch.as_tensor(noise) / total
    )


def _cat(parts: Sequence[Tensor]) -> Tensor | None:
    return torch.cat(list(parts)) if parts else None
