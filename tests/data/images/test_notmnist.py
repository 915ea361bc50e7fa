"""notMNIST: the test images in a given folder."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from data_fakes import isolate
from pyrobbb.data import BadFileError, DataUnavailableError
from pyrobbb.data.images import idx
from pyrobbb.data.images.notmnist import ROWS, notmnist


def written(folder: Path, rows: int) -> Path:
    place = folder / "notmnist"
    place.mkdir()
    images = np.zeros((rows, 28, 28), dtype=np.uint8)
    images[0, 0, :2] = (126, 252)
    for name, array in (("images-idx3", images), ("labels-idx1", np.arange(rows, dtype=np.uint8) % 10)):
        (place / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(idx.pack(array)))
    return folder


def test_it_is_read_and_scaled(tmp_path: Path):
    found = notmnist(written(tmp_path, ROWS))
    assert found.x.shape == (ROWS, 784)
    assert found.x[0, :3].tolist() == [1.0, 2.0, 0.0]
    assert found.y[:11].tolist() == [*range(10), 0]


def test_a_short_file_and_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BadFileError, match=r"images.*found shape \(20, 28, 28\).*10,000 images"):
        notmnist(written(tmp_path, 20))
    isolate(monkeypatch, tmp_path)
    with pytest.raises(DataUnavailableError, match="notMNIST is not available"):
        notmnist()
