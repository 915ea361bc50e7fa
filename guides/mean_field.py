"""Bayes by Backprop's variational family; it lives in the package, so that an installed package has it."""

from pyrobbb.mean_field import MeanFieldNormal

__all__ = ["MeanFieldNormal"]
