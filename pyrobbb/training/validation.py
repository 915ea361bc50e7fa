"""The validation error after each epoch, shared out among the processes that train."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction


def validate(
    model: BayesianNetwork,
    guide: nn.Module,
    part: Split,
    *,
    draws: int,
    seed: int,
    ranks: ProcessGroup = SINGLE,
) -> tuple[float, float]:
    """Error (percent, or root mean squared) and NLL on `part`; leaves the random state as it was.

    Args:
        model: The Pyro model.
        guide: Its guide.
        part: The validation set.
        draws: Weight draws; 0 takes the mean weights.
        seed: Which draws.
        ranks: Each process predicts its share of the rows, and all get the result.
    """
    x, y = ranks.shard(part.x), ranks.shard(part.y)
    totals = torch.zeros(2, dtype=torch.float64)
    if len(y):
        totals += len(y) / len(part) * _means(model, guide, x, y, draws, seed)
    ranks.sum_(totals)
    error, nll = totals.tolist()
    if model.likelihood.task == "classification":
        return error, nll
    return math.sqrt(error), nll


def _means(model: BayesianNetwork, guide: nn.Module, x: Tensor, y: Tensor, draws: int, seed: int) -> Tensor:
    """Error (percent, or mean squared) and NLL of some rows."""
    posterior = Posterior([(model, guide)])
    prediction = posterior.predict(x, y, draws=max(draws, 1), mean_weights=draws == 0, seed=seed)
    if isinstance(prediction, ClassPrediction):
        error = 100 * float((prediction.probs.argmax(-1) != y).double().mean())
    else:
        error = float((prediction.mean - y).square().mean())
    return torch.tensor([error, -float(prediction.log_predictive.mean())], dtype=torch.float64)
