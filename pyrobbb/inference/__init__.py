"""How a posterior is found: one method a file, all with one seam (`method.py`) and one `Posterior`."""

from pyrobbb.inference.dropout import MCDropout
from pyrobbb.inference.ensemble import stacking_weights
from pyrobbb.inference.laplace import Laplace
from pyrobbb.inference.method import Inference
from pyrobbb.inference.natural_gradient import NaturalGradient
from pyrobbb.inference.nuts import NUTS
from pyrobbb.inference.point import MAP
from pyrobbb.inference.sghmc import SGHMC
from pyrobbb.inference.svi import SVI
from pyrobbb.inference.swag import SWAG

__all__ = [
    "MAP",
    "NUTS",
    "SGHMC",
    "SVI",
    "SWAG",
    "Inference",
    "Laplace",
    "MCDropout",
    "NaturalGradient",
    "stacking_weights",
]
