"""Whether held-out rows are as sure as the predictions say."""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor

from pyrobbb.checkup.finding import Finding
from pyrobbb.data.dataset import Split
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction

CERTAINTY = 0.1  # nats per row that other probabilities, sharper or flatter, may save
COVERAGE = 0.1  # of the central intervals, beyond its standard error times 4


def calibration(posterior: Posterior, held: Split | None, draws: int, seed: int) -> Finding:
    """Whether held-out rows are as sure as the predictions say."""
    if held is None:
        return Finding("calibration", None, 0.0, "no held-out rows, validation or test, to measure it on")
    prediction = posterior.predict(held.x, held.y, draws=draws, sample=True, seed=seed)
    if isinstance(prediction, ClassPrediction):
        return certainty(prediction.probs.reshape(-1, prediction.probs.shape[-1]), held.y.long().flatten())
    low, high = prediction.interval(0.5)
    share, expected = (
        float(((low <= y) & (y <= high)).double().mean())
        for y in (posterior.model.likelihood.encode(held.y).to(low), prediction.samples)
    )
    return inside(share, low.numel(), expected)


def inside(share: float, values: int, expected: float) -> Finding:
    """Whether 50 % intervals hold as many held-out values as expected; of counts more than half."""
    value = abs(share - expected) - 4 * 0.5 / sqrt(values)
    words = f"{100 * share:.0f} % of {values} held-out values lie in {100 * expected:.0f} % intervals"
    if value > COVERAGE:
        how, other = ("narrow", "less") if share < expected else ("wide", "more")
        words += (
            f": they are too {how}; learn the noise, choose another likelihood or a {other} sure posterior"
        )
    return Finding("calibration", max(0.0, value), COVERAGE, words)


def certainty(probs: Tensor, y: Tensor) -> Finding:
    """What the best power of the probabilities would save: the temperature of Guo et al. 2017."""
    if len(y) < 2:
        return Finding("calibration", None, CERTAINTY, "one held-out row is too few to measure it on")
    y = y.to(probs.device)
    log_probs = probs.double().clamp_min(1e-12).log()

    def losses(power: float) -> Tensor:
        return -(power * log_probs).log_softmax(-1)[torch.arange(len(y)), y]

    powers = np.exp(np.linspace(np.log(0.1), np.log(20), 107))
    best = min(powers, key=lambda power: float(losses(float(power)).mean()))
    gain = losses(1.0) - losses(float(best))
    error = float(gain.std() / sqrt(len(y)))
    value = max(float(gain.mean()) - 3 * error, 0.0)
    words = (
        f"probabilities to the power {best:.2g} would save {float(gain.mean()):.2g} ± {error:.1g} nats a row"
    )
    if value > CERTAINTY:
        how = (
            "too unsure (is softmax applied twice?)"
            if best > 1
            else "too sure; average more restarts or draws"
        )
        words += f": they are {how}"
    return Finding("calibration", value, CERTAINTY, words)
