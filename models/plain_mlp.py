"""`pyrobbb.models.plain_mlp` under its earlier name; a network of your own may lie beside it."""

from pyrobbb.models.plain_mlp import plain_mlp

__all__ = ["plain_mlp"]
