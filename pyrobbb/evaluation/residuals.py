"""Whether the noise of a fit is that of its residuals."""

import logging
from math import log, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import MixtureSameFamily

from pyrobbb._support.distribution_parts import in_double, moment, on_real_line
from pyrobbb._support.model_inputs import NonFiniteOutputError, masks_values
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import scattered
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction

ROWS, DRAWS = 1000, 5  # the root mean square of normal residuals is then known within 3 %
LEAST_NOISE, MOST_NOISE = 0.7, 1.4  # times the residuals; 1 where the noise was learned to its optimum

logger = logging.getLogger(__name__)


def warn_of_noise(model: BayesianNetwork, guide: nn.Module, train: Any, instead: str = "") -> None:
    """Log a warning if the noise of a real y is far from what the residuals of the training rows ask for.

    Noise c times as wide has its highest likelihood at c = 1 where the mean of -(y - E[y]) d log p(y) / dy
    is 1. Of normal noise that is the mean of (y - E[y])^2 / sigma^2; its root says how far off the noise is.
    The warning is of the output for which that is furthest beyond what chance explains; it ends with what to
    do `instead`, by default in another fit.

    Raises:
        NonFiniteOutputError: The output for a training row is NaN, or its log-likelihood infinite or NaN.
    """
    if model.likelihood.prediction is not ValuePrediction:
        return
    rows = train.take(scattered(len(train), ROWS))
    if masks_values(model, rows.x):  # residuals are of every place, the noise of some
        return
    try:
        prediction = Posterior([(model, guide)]).predict(rows.x, rows.y, draws=DRAWS)
        noise = prediction.noise_std.double().square()
    except NonFiniteOutputError:
        raise
    except (ValueError, NotImplementedError):  # a guide that gives no draws yet, a y without variance
        return
    scalar = all(on_real_line(part) and not part.event_shape for part in prediction.components)
    if not scalar or not bool(noise.isfinite().all()):
        return
    if not bool(prediction.log_predictive[rows.counts > 0].isfinite().all()):
        raise NonFiniteOutputError("the log-likelihood of a training row is not finite")
    y = model.likelihood.encode(rows.y).double()
    apart = (y - prediction.means).square().mean(0)
    asked = _squares_in_noises(prediction, y)
    width = noise.shape[-1] if noise.dim() > 1 else 1
    noise, apart, asked = (  # of each row and output, a mean over the grid, whose values share the noise
        part.reshape(len(part), -1, width).mean(1) for part in (noise, apart, asked)
    )
    shares = rows.counts.double() / rows.counts.double().sum()
    scales, residuals = (torch.einsum("n,nk->k", shares, part).sqrt() for part in (noise, apart))
    squares = torch.einsum("n,nk->k", shares, asked)
    least = squares.clamp(min=torch.finfo(squares.dtype).tiny)
    error = (shares[:, None] * (asked - squares)).square().sum(0).sqrt() / least / 2  # of the root's log
    off = -least.log() / 2  # log of the noise, as a multiple of what is asked
    chance = sqrt(9 + 2 * log(len(off)))  # errors, to which the worst of as many outputs comes by chance
    beyond = torch.maximum(log(LEAST_NOISE) - off, off - log(MOST_NOISE)) - chance * error
    worst = int(beyond.argmax())
    if float(beyond[worst]) > 0:
        logger.warning(
            "output %d has noise of standard deviation %.3g, but the training rows have residuals of %.3g: "
            "%s",
            worst, float(scales[worst]), float(residuals[worst]), instead or _advice(model, noise, scales),
        )  # fmt: skip


def _advice(model: BayesianNetwork, noise: Tensor, scales: Tensor) -> str:
    """What to do about noise of the wrong size, given its variance in each row and its scale over all."""
    advice = ["start it nearer to them, or train longer"]
    if len(scales) > 1 and torch.allclose(scales, scales[0]):
        advice.insert(0, "give each output its own (a list as scale)")
    if not model.likelihood_sites and not list(model.likelihood.parameters()):
        given = any(name.endswith("scale") for name, _ in model.likelihood.named_buffers())
        by_network = not given and bool((noise != noise[0]).any())
        advice = ["train longer"] if by_network else ["learn the noise (learn_scale=True)", *advice]
    return ", ".join(advice)


def _squares_in_noises(prediction: ValuePrediction, y: Tensor) -> Tensor:
    """-(y - E[y]) d log p(y) / dy of each target, a mean over draws; (y - E[y])^2 / Var[y] of mixtures.

    Between the parts of a mixture the slope of its density points away from its mean.
    """
    found = []
    for part in map(in_double, prediction.components):
        at = y.expand(part.batch_shape).clone().requires_grad_()
        apart = moment(part, "mean") - at.detach()
        if isinstance(getattr(part, "base_dist", part), MixtureSameFamily):
            found.append((apart / moment(part, "stddev")).square())
            continue
        with torch.enable_grad():
            (score,) = torch.autograd.grad(part.log_prob(at).sum(), at)
        found.append(apart * score)
    return torch.cat(found).mean(0)
