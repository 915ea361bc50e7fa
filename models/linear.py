"""`pyrobbb.models.linear` under its earlier name; a network of your own may lie beside it."""

from pyrobbb.models.linear import linear

__all__ = ["linear"]
