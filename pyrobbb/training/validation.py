"""The validation error after each epoch, shared out among the processes that train."""

import torch
from torch import nn

from pyrobbb._support.model_inputs import NonFiniteOutputError
from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.evaluation.metrics import row_mean
from pyrobbb.posterior import Posterior


def validate(
    model: BayesianNetwork,
    guide: nn.Module,
    part: Split,
    *,
    draws: int,
    seed: int,
    ranks: ProcessGroup = SINGLE,
) -> tuple[float, float]:
    """Error (percent, or root mean squared) and NLL of weighted rows; leaves the random state as it was.

    Args:
        model: The Pyro model.
        guide: Its guide.
        part: The validation set.
        draws: Weight draws; 0 takes the mean weights.
        seed: Which draws.
        ranks: Each process predicts its share of the rows, and all get the result.

    Raises:
        NonFiniteOutputError: The output for a row is NaN; in every process, whichever has the row.
    """
    every = part.counts.double()
    x, y, counts = ranks.shard(part.x), ranks.shard(part.y), ranks.shard(every)
    share = float(counts.sum() / every.sum())
    totals = torch.zeros(2, dtype=torch.float64)
    lost = None
    if share:
        posterior = Posterior([(model, guide)])
        try:
            prediction = posterior.predict(x, y, draws=max(draws, 1), mean_weights=draws == 0, seed=seed)
            means = [row_mean(each, counts) for each in (prediction.losses(y), -prediction.log_predictive)]
            totals += share * torch.tensor(means, dtype=torch.float64)
        except NonFiniteOutputError as reason:  # the others would wait for this process
            rows = f" (of rows {ranks.rank}, {ranks.rank + ranks.size} and so on)" if ranks.size > 1 else ""
            lost = NonFiniteOutputError(f"{reason}{rows}")
    if found := [each for each in ranks.gather(lost) if each]:
        raise found[0]
    ranks.sum_(totals)
    error, nll = totals.tolist()
    return model.likelihood.prediction.error_of(error), nll
