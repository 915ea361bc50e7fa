r"""Weights of a mixture of restarts, by stacking on held-out data (Yao et al. 2018, arXiv 1704.02030, eq. 4).

.. math::
    \max_{w \ge 0, \sum_c w_c = 1} \sum_i n_i \log \sum_c w_c\, p_c(y_i \mid x_i)

where :math:`p_c` is the posterior predictive of chain c and row i counts n_i times. Restarts weighted alike
are the posterior's default.
"""

import numpy as np
import scipy
import torch
from torch import Tensor

from pyrobbb.data.arrays import ArrayLike, row_weights
from pyrobbb.posterior import Posterior

LEAST = 1e-9  # weight in the search: at 0 a row that one chain alone explains would have no score


def stacking_weights(
    posterior: Posterior,
    x: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    draws: int = 100,
    seed: int = 0,
) -> tuple[float, ...]:
    """The weight of each chain, to be assigned to `posterior.chain_weights`.

    Args:
        posterior: Of several chains.
        x: Held-out inputs, as `predict` takes them.
        y: Their targets.
        weights: How often each row counts, `(M,)`; None is once.
        draws: Weight draws of each chain.
        seed: Which draws.

    Returns:
        One number for each chain; they sum to 1.

    Raises:
        ValueError: The data or `weights` do not fit, or a row has no density under any chain.
    """
    scores = [
        posterior.predict(x, y, draws=draws, chains=[chain], seed=seed).log_predictive
        for chain in range(len(posterior.chains))
    ]
    return tuple(stacked(torch.stack(scores).double().cpu(), weights).tolist())


def stacked(log_scores: Tensor, counts: ArrayLike | None = None) -> Tensor:
    """The weights that maximise the mixture's score, of log scores `(chains, rows)`, each `counts` times.

    EM stops far from them where chains nearly tie.
    """
    n = row_weights("weights", counts, log_scores[0])
    log_scores = log_scores.where(n > 0, 0.0)  # a row that does not count may have no density
    best = log_scores.max(0).values
    if not bool(best.isfinite().all()):
        row = int((~best.isfinite()).nonzero()[0])
        raise ValueError(f"row {row} of y has the density {float(best[row].exp()):g} under every chain")
    p = (log_scores - best).exp().numpy()
    often = (n / n.sum()).numpy()  # whose scale ftol, an absolute bound, would feel
    alike = np.full(len(p), 1 / len(p))

    def cost(w: np.ndarray) -> tuple[float, np.ndarray]:
        return -often @ np.log(w @ p), -(p / (w @ p)) @ often

    found = scipy.optimize.minimize(
        cost, alike, jac=True, method="SLSQP", bounds=[(LEAST, 1)] * len(p), options={"ftol": 1e-16},
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
    )  # fmt: skip
    return torch.from_numpy(found.x / found.x.sum())
