r"""Variational simulation-based calibration: is q centred where the truth is, on data drawn from the model?

For m = 1, ..., M draw weights from the prior and targets from the likelihood, fit q to them, and note

.. math::
    p_{mg} = q\bigl(f_w(x_g) < f_{w_m}(x_g)\bigr)

at a few inputs. If q's centre is right, p and 1 - p have one distribution (Yao et al. 2018, arXiv
1802.02538, section 3.2 and algorithm 2); here p is of the network's outputs, as hidden units can be permuted,
and of classes of their log-probabilities. If its width is right too, p is uniform. Each m costs a whole fit:
for small models.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy
import torch

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import draw_from
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated, mixed_seed
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, evenly_spaced
from pyrobbb.draws import is_point
from pyrobbb.evaluation.diagnostics import function_draws, function_values
from pyrobbb.posterior import Posterior

Fit = Callable[[Dataset, int], Posterior]


@dataclass(frozen=True)
class Calibration:
    """`p` of shape `(M, G, width)`, each from so many draws of q, and what follows from it."""

    p: np.ndarray
    draws: int

    @property
    def asymmetry(self) -> float:
        """The p-value of Wilcoxon's signed-rank test of p around 1/2 at the input where it is lowest.

        It is multiplied by the number of inputs and outputs; it is small if q is biased.

        (The paper compares p with 1 - p as if they were two samples, which rejects a sound q too often.)
        """
        least = min((scipy.stats.wilcoxon(c - 0.5).pvalue for c in self._moved), default=1.0)
        return float(min(1.0, least * self.p[0].size))

    @property
    def covered(self) -> float:
        """The share of truths in q's central half, below 0.5 if q is too narrow and above if too wide.

        With k of S draws below it, a truth's place in an exact q is anywhere from k / (S + 1) to
        (k + 1) / (S + 1). The part of this between 1/4 and 3/4 counts, so that 0.5 is right for any S.
        NaN of a single draw, such as a point: it would be 0.5 whatever the truth is. Values that are the same
        in all draws and in truth are left out; NaN if all are.
        """
        if self.draws == 1 or not len(self._moved):
            return float("nan")
        low, high = (np.clip(end * (self.draws + 1) - self._moved * self.draws, 0, 1) for end in (0.25, 0.75))
        return float((high - low).mean())

    @property
    def _moved(self) -> np.ndarray:
        """`p` of each value of the function, `(values, M)`, but of those that are the same in all draws."""
        columns = self.p.reshape(len(self.p), -1).T
        return columns[(columns != 0.5).any(axis=1)]

    def __str__(self) -> str:
        error = 0.5 / len(self.p) ** 0.5
        width = (
            "the posterior is a single point, which has no width"
            if np.isnan(self.covered)
            else f"{100 * self.covered:.0f} % of true function values lie in the central half of the "
            f"posterior, 50 ± {100 * error:.0f} % where its width is right"
        )
        return (
            f"on {len(self.p)} data sets drawn from the model, {width}; "
            f"p-value for a centre without bias {self.asymmetry:.2g}"
        )


def simulation_based_calibration(
    model: BayesianNetwork,
    data: Dataset,
    fit: Fit,
    *,
    repeats: int = 50,
    points: int = 5,
    draws: int = 200,
    seed: int = 0,
) -> Calibration:
    """Fit to `repeats` data sets drawn from the model at the training inputs.

    Args:
        model: Prior, network and likelihood; what it has learned, such as a noise scale, counts as it stands.
        data: Its training inputs are used, and its task.
        fit: Gives the posterior of a data set, with a seed: `lambda data, seed: fit(model(), ...)`.
        repeats: M.
        points: G, inputs at which functions are compared, spread over the training rows.
        draws: Of each chain; fewer where a sampler kept fewer, or all draws are alike.
        seed: Decides the simulated data; fit m gets `seed + m`.

    Raises:
        ValueError: Rows with weights: data drawn from the model count once each.
    """
    if data.train.weights is not None:
        raise ValueError("data drawn from the model count once each: leave out the rows' weights")
    M = checks.count("repeats", repeats, minimum=2)
    x = data.train.whole().x.to(model.device)
    where = x[evenly_spaced(len(x), checks.count("points", points)).to(x.device)]
    every = []
    for m in range(M):
        # not a seed that a fit has: a sampler that draws its start first would start at the truth
        own = isolated(mixed_seed(seed, m, -1), device=model.device)
        with torch.no_grad(), own, evaluating(model), model._pyro_context:
            true = model.sample_weights()
            y = draw_from(model.observation(model.apply_network(true, x), true)).cpu()
            truth = function_values(model, true, where)
        simulated = replace(data, train=replace(data.train, y=y), validation=None, test=None)
        posterior = fit(simulated, seed + m)
        points_alone = all(is_point(guide) for _, guide in posterior.chains)
        # seeds in common would look biased, and draws that are repeated would count as new
        drawn = function_draws(posterior, where, draws=1 if points_alone else draws, seed=seed + m)
        known = truth.cpu().numpy()
        below = ((drawn < known) + 0.5 * (drawn == known)).mean(1)  # a tie counts half
        every.append(np.average(below, axis=0, weights=posterior.chain_weights))
    return Calibration(np.stack(every), drawn.shape[0] * drawn.shape[1])
