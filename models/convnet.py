"""`pyrobbb.models.convnet` under its earlier name; a network of your own may lie beside it."""

from pyrobbb.models.convnet import convnet

__all__ = ["convnet"]
