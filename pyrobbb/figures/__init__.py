"""Figures of a run: each function turns arrays into a matplotlib Figure, and `save` writes it.

No pyplot: a figure belongs to its caller, and no setting of matplotlib outlives a call.
"""

from pyrobbb.figures.kl_by_layer import kl_by_layer
from pyrobbb.figures.learning_curves import learning_curves
from pyrobbb.figures.regression_band import regression_band
from pyrobbb.figures.reliability import reliability
from pyrobbb.figures.signal_to_noise import signal_to_noise
from pyrobbb.figures.style import save
from pyrobbb.figures.uncertain_examples import uncertain_examples
from pyrobbb.figures.weight_histogram import weight_histogram

__all__ = [
    "kl_by_layer",
    "learning_curves",
    "regression_band",
    "reliability",
    "save",
    "signal_to_noise",
    "uncertain_examples",
    "weight_histogram",
]
