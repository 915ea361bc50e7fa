"""Bayes by Backprop's variational family; it lives in the package, for those who install that alone."""

from pyrobbb.mean_field import MeanFieldNormal

__all__ = ["MeanFieldNormal"]
