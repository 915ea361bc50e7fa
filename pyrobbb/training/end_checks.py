"""What a finished fit shows of a likely mistake: it was still falling, or its warm-up was not over, say."""

import logging
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, variance

from pyrobbb.kl_weights import KLWeight, WarmUp, within
from pyrobbb.priors import Learned
from pyrobbb.training.history import History

FALL = 0.1  # nats per row from one eighth of the epochs to the next

logger = logging.getLogger(__name__)


def warn_of_warm_up(kl: KLWeight, epochs: int) -> None:
    """Log a warning if the KL's warm-up was not over when the training ended, in epoch `epochs`."""
    for part in within(kl):
        if isinstance(part, WarmUp) and part.epochs > epochs:
            logger.warning(
                "the KL had reached only %.2g of its full weight at the end: the warm-up takes %d epochs and "
                "the fit had %d; train longer, or shorten the warm-up",
                epochs / part.epochs, part.epochs, epochs,
            )  # fmt: skip


def warn_of_no_update(learned: Sequence[Learned], steps: int) -> None:
    """Log a warning for each prior learned in closed form for whose first update a fit had too few steps."""
    for prior in learned:
        if steps < prior.every:
            logger.warning(
                "the prior was not learned: it is updated every %d steps, and the fit had %d; train longer, "
                "or give priors.Learned a smaller every",
                prior.every, steps,
            )  # fmt: skip


def warn_of_falling(history: History) -> None:
    """Log a warning if the training rows were still predicted better and better when the epochs ran out.

    It looks at the negative log-likelihood alone: of a large network the KL falls for much longer, with
    little effect on predictions. A fall must exceed three standard errors as well, from epoch to epoch.
    """
    n = len(history.rows) // 8
    if n == 0 or history.stopped is not None:
        return
    nll = [row.nll for row in history.rows]
    fall = fmean(nll[-2 * n : -n]) - fmean(nll[-n:])
    changes = [b - a for a, b in pairwise(nll[-2 * n :])]  # twice an epoch's variance, whatever the trend
    noise = sqrt(variance(changes) / n) if n > 1 else 0.0
    if fall > FALL + 3 * noise:
        logger.warning(
            "the fit was still falling when it ended, by %.2g nats per row in the last eighth of its epochs: "
            "give it more epochs or a higher learning rate",
            fall,
        )
