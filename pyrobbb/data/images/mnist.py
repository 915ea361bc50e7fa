"""MNIST, Fashion-MNIST and KMNIST: 60,000 + 10,000 grey images of 28 x 28 pixels in ten classes.

The paper (section 5.1) divides the pixels, 0 to 255, by 126 and holds 10,000 of the 60,000 training
rows back for validation.
"""

import os
from dataclasses import dataclass
from types import NoneType
from typing import ClassVar

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.data.images.catalog import (
    CLASSES,
    FASHION_MNIST_FILES,
    KMNIST_FILES,
    MNIST_FILES,
    NAMES,
    Files,
    Images,
)
from pyrobbb.data.images.sources import obtain


@dataclass(frozen=True, kw_only=True)
class IdxImages:
    """Images and labels from four IDX files; `MNIST`, `FashionMNIST` and `KMNIST` say which.

    x = pixels / scale, float32, of shape (N, 784), or (N, 1, 28, 28) with `flatten=False`;
    y = the class, int64, of shape (N,).

    Args:
        root: a folder to look in before all others (see `pyrobbb.data.images.sources`).
        scale: what the pixels, 0 to 255, are divided by.
        validation: how many of the training rows are held back, drawn at random.
        split_seed: the seed of that draw, which no other random state enters.
        limit: only the first so many of the drawn training rows, for a quick look.
        flatten: whether an image is a row of pixels.
        download: whether the network may be asked.

    Raises:
        ValueError: a field outside its domain, which the message names.
    """

    root: str | os.PathLike[str] | None = None
    scale: float = 126.0
    validation: int = 10_000
    split_seed: int = 0
    limit: int | None = None
    flatten: bool = True
    download: bool = True

    files: ClassVar[Files]

    def __post_init__(self) -> None:
        # Whether root exists is asked in load(): a stored config can be read on another machine.
        checks.check_kinds(
            root=(self.root, (str, os.PathLike, NoneType)),
            flatten=(self.flatten, bool),
            download=(self.download, bool),
        )
        checks.positive("scale", self.scale)
        checks.keep(self, validation=checks.count("validation", self.validation, minimum=0))
        checks.between("validation", self.validation, 0, self.files.train_rows - 1)
        checks.keep(self, split_seed=checks.seed("split_seed", self.split_seed))
        if self.limit is not None:
            checks.keep(self, limit=checks.count("limit", self.limit))
            checks.between("limit", self.limit, 1, self.files.train_rows - self.validation)

    def load(self) -> Dataset:
        """Find, check and split the data.

        Raises:
            ValueError: a given folder that does not exist.
            BadFileError: a given folder holds a file that is cut, wrong or unreadable.
            DataUnavailableError: no source has the data.
        """
        arrays = obtain(self.files, root=self.root, download=self.download)
        images, labels, test_images, test_labels = (arrays[name] for name in NAMES)
        generator = torch.Generator().manual_seed(self.split_seed)
        order = torch.randperm(len(images), generator=generator)
        held, rows = order[: self.validation], order[self.validation :][: self.limit]
        train = self._split(images, labels, rows)
        spec = Spec(N=len(train), features=tuple(train.x.shape[1:]), outputs=CLASSES, task="classification")
        validation = self._split(images, labels, held) if len(held) else None
        test = self._split(test_images, test_labels, slice(None))
        return Dataset(self.files.title, train, spec, validation, test)

    def _split(self, images: Images, labels: Images, rows: Tensor | slice) -> Split:
        pixels, y = torch.from_numpy(images)[rows], torch.from_numpy(labels)[rows]
        x = pixels.to(torch.float32).div_(self.scale)
        return Split(x.flatten(1) if self.flatten else x.unsqueeze(1), y.to(torch.int64))


@dataclass(frozen=True, kw_only=True)
class MNIST(IdxImages):
    """Handwritten digits (LeCun et al. 1998), as in the paper: pixels / 126, 50,000 / 10,000 / 10,000 rows.

    The fields are those of `IdxImages`.
    """

    files: ClassVar[Files] = MNIST_FILES


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(IdxImages):
    """Pictures of clothes (Xiao et al. 2017) in MNIST's format, prepared like `MNIST`.

    The fields are those of `IdxImages`.
    """

    files: ClassVar[Files] = FASHION_MNIST_FILES


@dataclass(frozen=True, kw_only=True)
class KMNIST(IdxImages):
    """Cursive Japanese characters (Clanuwat et al. 2018) in MNIST's format, prepared like `MNIST`.

    The fields are those of `IdxImages`.
    """

    files: ClassVar[Files] = KMNIST_FILES
