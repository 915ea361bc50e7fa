"""`pyrobbb.models.mlp` under its earlier name; a network of your own may lie beside it."""

from pyrobbb.models.mlp import mlp, perceptron

__all__ = ["mlp", "perceptron"]
