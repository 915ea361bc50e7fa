"""Data sets as tensors: `MNIST().load()`, `from_arrays(x, y, task=...)`, synthetic data for quick starts."""

from pyrobbb.data.arrays import from_arrays
from pyrobbb.data.curves import PaperCurve, ToyPoints
from pyrobbb.data.dataset import Dataset, Spec, Split, Task
from pyrobbb.data.images.idx import BadFileError
from pyrobbb.data.images.mnist import KMNIST, MNIST, FashionMNIST
from pyrobbb.data.images.sources import DataUnavailableError
from pyrobbb.data.mapped import Mapped, OnDisk
from pyrobbb.data.points import Points
from pyrobbb.data.synthetic import Blobs, NoisySine

__all__ = [
    "KMNIST",
    "MNIST",
    "BadFileError",
    "Blobs",
    "DataUnavailableError",
    "Dataset",
    "FashionMNIST",
    "Mapped",
    "NoisySine",
    "OnDisk",
    "PaperCurve",
    "Points",
    "Spec",
    "Split",
    "Task",
    "ToyPoints",
    "from_arrays",
]
