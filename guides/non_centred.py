"""The guide for hierarchical priors; it lives in the package, so that an installed package has it."""

from pyrobbb.non_centred import NonCentredNormal

__all__ = ["NonCentredNormal"]
