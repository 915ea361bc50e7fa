"""Whether held-out rows are as sure as the predictions say."""

from math import inf, sqrt

import numpy as np
import torch
from torch import Tensor

from pyrobbb.checkup.finding import Finding
from pyrobbb.data.dataset import Split
from pyrobbb.evaluation.metrics import row_mean
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction

CERTAINTY = 0.1  # nats per label that other probabilities, sharper or flatter, may save
COVERAGE = 0.1  # of the central intervals, beyond its standard error times 4
FEW = 26  # held-out values: of fewer even all or none within 50 % intervals may be chance


def calibration(posterior: Posterior, held: Split | None, draws: int, seed: int) -> Finding:
    """Whether held-out rows are as sure as the predictions say."""
    if held is None:
        return Finding("calibration", None, 0.0, "no held-out rows, validation or test, to measure it on")
    prediction = posterior.predict(held.x, held.y, draws=draws, sample=True, seed=seed)
    if isinstance(prediction, ClassPrediction):
        probs = prediction.probs.reshape(-1, prediction.probs.shape[-1])
        return certainty(probs, held.y.long().flatten(), held.counts)
    low, high = prediction.interval(0.5)
    there, drawn = (
        ((low <= y) & (y <= high)).double()
        for y in (posterior.model.likelihood.encode(held.y).to(low), prediction.samples)
    )
    there, drawn = there.reshape(len(held), -1), drawn.mean(0).reshape(len(held), -1)
    found = [inside(there, drawn, held.counts)]
    # one output may be as far below as another is above
    if there.shape[1] > 1 and effective(held.counts) >= FEW:
        found += [
            inside(there[:, k : k + 1], drawn[:, k : k + 1], held.counts, of=f" of output {k}")
            for k in range(there.shape[1])
        ]
    return max(found, key=lambda finding: -1.0 if finding.value is None else finding.value)


def effective(counts: Tensor) -> int:
    """How many rows that count alike have a mean as certain: (sum c)^2 / sum c^2 (Kish 1965)."""
    counts = counts.double()
    return round(float(counts.sum() ** 2 / counts.square().sum()))


def standard_error(values: Tensor, counts: Tensor) -> float:
    """Of `row_mean` over independent rows; of a single one it is not known."""
    rows, mean = effective(counts), row_mean(values, counts)
    return sqrt(row_mean((values - mean).square(), counts) / (rows - 1)) if rows > 1 else inf


def inside(there: Tensor, drawn: Tensor, counts: Tensor, of: str = "") -> Finding:
    """Whether 50 % intervals hold as many held-out values as expected; of counts more than half.

    The values of a row may depend on one another: the standard error over rows is taken where it is larger
    than that of as many independent values.

    Args:
        there: Whether its interval holds each value, 0 or 1, `(rows, outputs)`.
        drawn: The share of its draws that the interval holds, of the same shape.
        counts: How often each row counts, `(rows,)`.
        of: Which values these are, where not all.
    """
    share, expected = (row_mean(each.mean(1), counts) for each in (there, drawn))
    values = effective(counts) * there.shape[1]
    value = abs(share - expected) - 4 * max(0.5 / sqrt(values), standard_error(there.mean(1), counts))
    words = f"{100 * share:.0f} % of {values} held-out values{of} lie in {100 * expected:.0f} % intervals"
    if values < FEW:
        return Finding("calibration", None, COVERAGE, f"{words}: too few to tell")
    if value > COVERAGE:
        how, other = ("narrow", "less") if share < expected else ("wide", "more")
        words += (
            f": they are too {how}; learn the noise, choose another likelihood or a {other} sure posterior"
        )
    return Finding("calibration", max(0.0, value), COVERAGE, words)


def certainty(probs: Tensor, y: Tensor, counts: Tensor) -> Finding:
    """What the best power of the probabilities would save: the temperature of Guo et al. 2017.

    Args:
        probs: Of each label, `(M, C)`.
        y: The labels, `(M,)`.
        counts: How often each row counts, `(rows,)`, of which each has as many labels, which may depend on
            one another.
    """
    if (rows := effective(counts)) < FEW:
        return Finding("calibration", None, CERTAINTY, f"{rows} held-out rows are too few to tell")
    y = y.to(probs.device)
    log_probs = probs.double().clamp_min(1e-12).log()

    def losses(power: float) -> Tensor:
        each = -(power * log_probs).log_softmax(-1)[torch.arange(len(y)), y]
        return each.reshape(len(counts), -1).mean(1)

    powers = np.exp(np.linspace(np.log(0.1), np.log(20), 107))
    best = min(powers, key=lambda power: row_mean(losses(float(power)), counts))
    gain = losses(1.0) - losses(float(best))
    mean, error = row_mean(gain, counts), standard_error(gain, counts)
    value = max(mean - 3 * error, 0.0)
    words = f"probabilities to the power {best:.2g} would save {mean:.2g} ± {error:.1g} nats a label"
    if value > CERTAINTY:
        how = (
            "too unsure (is softmax applied twice?)"
            if best > 1
            else "too sure; average more restarts or draws"
        )
        words += f": they are {how}"
    return Finding("calibration", value, CERTAINTY, words)
