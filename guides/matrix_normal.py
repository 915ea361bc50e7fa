"""The guide whose weights covary within a layer; it lives in the package, so that an installation has it."""

from pyrobbb.matrix_normal import MatrixNormal

__all__ = ["MatrixNormal"]
