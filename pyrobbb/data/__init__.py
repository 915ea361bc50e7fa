"""Data sets as tensors: `from_table("my.csv")`, `from_arrays(x, y, task=...)`, MNIST, UCI, synthetic data."""

from pyrobbb.data.arrays import from_arrays
from pyrobbb.data.dataset import Dataset, Spec, Split, Task
from pyrobbb.data.images.idx import BadFileError
from pyrobbb.data.images.mnist import KMNIST, MNIST, FashionMNIST
from pyrobbb.data.images.sources import DataUnavailableError
from pyrobbb.data.mapped import Mapped, OnDisk
from pyrobbb.data.synthetic import Blobs, NoisySine, PaperCurve, Points, ToyPoints
from pyrobbb.data.tables import Table, from_table
from pyrobbb.data.uci import UCI

__all__ = [
    "KMNIST",
    "MNIST",
    "UCI",
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
    "Table",
    "Task",
    "ToyPoints",
    "from_arrays",
    "from_table",
]
