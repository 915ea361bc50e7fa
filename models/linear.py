"""The linear map; it lives in the package, whose name no folder of yours can take."""

from pyrobbb.models.linear import linear

__all__ = ["linear"]
