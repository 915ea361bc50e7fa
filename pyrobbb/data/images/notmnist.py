"""notMNIST: letters A to J in many typefaces, in MNIST's format, to be told apart from digits.

The 10,000 test images and labels of github.com/davidflanagan/notMNIST-to-MNIST, looked for in `notmnist/`
of a folder that the user gave; there is no download.
"""

import os

import torch

from pyrobbb._support import checks
from pyrobbb.data.dataset import Split
from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import NAMES, checked
from pyrobbb.data.images.folders import given_folders
from pyrobbb.data.images.sources import DataUnavailableError

ROWS = 10_000


def notmnist(root: str | os.PathLike[str] | None = None, *, scale: float = 126.0) -> Split:
    """The test set: x = pixels / scale, `(10000, 784)`, and y = 0 for A to 9 for J.

    Raises:
        ValueError: A given folder does not exist, or `scale` is not positive.
        BadFileError: A file is cut, or is not an IDX file of so many images or labels.
        DataUnavailableError: No given folder has `notmnist/`.
    """
    checks.positive("scale", scale)
    for _, folder in given_folders(root):
        place = folder / "notmnist"
        paths = {name: place / f"{name}.gz" for name in NAMES[2:]}
        if all(path.is_file() for path in paths.values()):
            images, labels = (
                checked(idx.parse(idx.read_raw(path), str(path)), name, ROWS, str(path))
                for name, path in paths.items()
            )
            x = torch.from_numpy(images.astype("float32")).flatten(1) / scale
            return Split(x, torch.from_numpy(labels.astype("int64")))
    raise DataUnavailableError(
        f"notMNIST is not available: put {NAMES[2]}.gz and {NAMES[3]}.gz of "
        f"github.com/davidflanagan/notMNIST-to-MNIST into a folder notmnist/ of the folder in PYROBBB_DATA"
    )
