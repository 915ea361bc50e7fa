"""Do restarts agree? Compared by function, not by weight, because hidden units can be permuted."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support.distribution_parts import unmasked
from pyrobbb._support.network_state import evaluating
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.draws import distinct, order
from pyrobbb.evaluation import arviz_io
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction


def function_values(model: BayesianNetwork, weights: Weights, x: Tensor) -> Tensor:
    """What the network says at `x` `(G, *features)`, `(*draws, G, *grid, width)`: its outputs.

    Of classes their log-probabilities, as a constant that is added to all logits changes nothing.
    """
    output, kind = model.apply_network(weights, x), model.likelihood.prediction
    if not issubclass(kind, ClassPrediction):
        return output
    return kind.log_probs(unmasked(model.observation(output, weights, draws=len(model.draws_of(weights)))))


def function_draws(posterior: Posterior, x: Tensor, *, draws: int = 500, seed: int = 0) -> np.ndarray:
    """`function_values` at `x` by restart and draw, `(chains, draws, G, *grid, width)`.

    Of samplers no more draws than each kept. All of them are held in memory at once, so `x` should be a few
    hundred chosen inputs.
    """
    each, draws = [], distinct(posterior.chains, draws)
    for c, (model, guide) in enumerate(posterior.chains):
        weights = posterior.draw(draws, chain=c, seed=seed)
        with torch.no_grad(), evaluating(model):
            network = posterior.predicting_model(c)
            values = function_values(network, weights, x.to(model.device)).cpu()
        values = values if model.sites else values.expand(draws, *values.shape)  # a point
        places = order((model, guide), draws, seed)  # a sampler's chain, which R-hat is about
        each.append(values if places is None else values[places])
    return torch.stack(each).numpy()


def functions_to_arviz(values: np.ndarray) -> Any:
    """Function values `(chains, draws, G, *grid, width)` as variable `f` of an ArviZ `posterior` group."""
    flat = values.reshape(*values.shape[:3], -1)  # a grid's values are outputs of their input
    return arviz_io.to_arviz({"posterior": {"f": flat}}, dims={"f": ("point", "output")})


def r_hat(values: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat between restarts at each input, `(G, *grid, width)`; 1 is agreement.

    A guide's draws are independent, so a value above 1 means that the restarts found different posteriors. A
    sampler's are not: there it may also mean that a chain has not settled. NaN with a single restart.
    """
    return arviz_io.r_hat(functions_to_arviz(values), "f").reshape(values.shape[2:])
