"""`pyrobbb.non_centred` under its earlier name; a guide of your own may lie beside it."""

from pyrobbb.non_centred import NonCentredNormal

__all__ = ["NonCentredNormal"]
