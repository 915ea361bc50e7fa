"""The convolutional network; it lives in the package, whose name no folder of yours can take."""

from pyrobbb.models.convnet import convnet

__all__ = ["convnet"]
