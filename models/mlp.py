"""The perceptron; it lives in the package, whose name no folder of yours can take."""

from pyrobbb.models.mlp import mlp, perceptron

__all__ = ["mlp", "perceptron"]
