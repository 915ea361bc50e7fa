"""The perceptron for point estimates; it lives in the package, whose name no folder of yours can take."""

from pyrobbb.models.plain_mlp import plain_mlp

__all__ = ["plain_mlp"]
