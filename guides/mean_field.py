"""`pyrobbb.mean_field` under its earlier name; a guide of your own may lie beside it."""

from pyrobbb.mean_field import MeanFieldNormal

__all__ = ["MeanFieldNormal"]
