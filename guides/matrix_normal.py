"""Weights that covary within a layer; the guide lives in the package, so that an installed package has it."""

from pyrobbb.matrix_normal import MatrixNormal

__all__ = ["MatrixNormal"]
