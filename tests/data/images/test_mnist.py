"""The MNIST components on four small files, and on the real ones where PYROBBB_DATA holds them."""

import os
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from data_fakes import ARRAYS, TEST, TINY, TRAIN, isolate, put
from pyrobbb.data import KMNIST, MNIST, FashionMNIST
from pyrobbb.data.images import catalog as files
from pyrobbb.data.images.catalog import NAMES, Files
from pyrobbb.data.images.mnist import IdxImages
from pyrobbb.data.images.torchvision_compat import import_torchvision

REAL = os.environ.get("PYROBBB_DATA")
KINDS = [MNIST, FashionMNIST, KMNIST]


@dataclass(frozen=True, kw_only=True)
class Tiny(IdxImages):
    validation: int = 8
    files: ClassVar[Files] = TINY


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    isolate(monkeypatch, tmp_path)
    return str(put(tmp_path / "mine"))


def test_shapes_types_and_scale(folder: str) -> None:
    data = Tiny(root=folder).load()
    assert data.name == "Tiny"
    assert (data.spec.N, data.spec.features, data.spec.outputs) == (TRAIN - 8, (784,), 10)
    assert data.spec.task == "classification"
    assert data.validation is not None
    assert data.test is not None
    for split, rows in ((data.train, TRAIN - 8), (data.validation, 8), (data.test, TEST)):
        assert (split.x.shape, split.x.dtype) == ((rows, 784), torch.float32)
        assert (split.y.shape, split.y.dtype) == ((rows,), torch.int64)
    pixels = torch.tensor(ARRAYS[NAMES[2]], dtype=torch.float64).flatten(1)
    torch.testing.assert_close(data.test.x.double(), pixels / 126, rtol=1e-7, atol=0)
    assert data.test.y.tolist() == ARRAYS[NAMES[3]].tolist()


def test_images_that_are_not_flattened(folder: str) -> None:
    flat, square = Tiny(root=folder).load(), Tiny(root=folder, flatten=False).load()
    assert square.spec.features == (1, 28, 28)
    assert square.train.x.shape == (TRAIN - 8, 1, 28, 28)
    assert torch.equal(square.train.x.flatten(1), flat.train.x)


def test_another_scale(folder: str) -> None:
    torch.testing.assert_close(Tiny(root=folder, scale=255).load().test.x.max(), torch.tensor(1.0))


def rows(x: torch.Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in x}


@pytest.mark.parametrize("validation", [1, 8, TRAIN - 1])
def test_training_and_validation_share_no_row_and_lose_none(folder: str, validation: int) -> None:
    data = Tiny(root=folder, validation=validation).load()
    assert data.validation is not None
    train, held = rows(data.train.x), rows(data.validation.x)
    assert (len(train), len(held)) == (TRAIN - validation, validation)
    everything = torch.tensor(ARRAYS[NAMES[0]]).flatten(1).float() / 126
    assert train.isdisjoint(held)
    assert train | held == rows(everything)


def test_each_row_keeps_its_label(folder: str) -> None:
    data = Tiny(root=folder, scale=1).load()
    label = {image.tobytes(): int(y) for image, y in zip(ARRAYS[NAMES[0]], ARRAYS[NAMES[1]], strict=True)}
    for split in (data.train, data.validation):
        assert split is not None
        assert split.y.tolist() == [label[row.numpy().astype(np.uint8).tobytes()] for row in split.x]


def test_without_validation_every_row_trains(folder: str) -> None:
    data = Tiny(root=folder, validation=0).load()
    assert data.validation is None
    assert data.spec.N == len(data.train) == len(rows(data.train.x)) == TRAIN


def test_limit_takes_the_first_training_rows(folder: str) -> None:
    whole, few = Tiny(root=folder).load(), Tiny(root=folder, limit=5).load()
    assert few.spec.N == len(few.train) == 5
    assert torch.equal(few.train.x, whole.train.x[:5])
    assert few.validation is not None
    assert whole.validation is not None
    assert torch.equal(few.validation.x, whole.validation.x)
    assert few.test is not None
    assert len(few.test) == TEST


def test_the_split_follows_its_own_seed_and_nothing_else(folder: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Tiny(root=folder).load()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(Tiny(root=folder).load().train.x, first.train.x)
    assert not torch.equal(Tiny(root=folder, split_seed=1).load().train.x, first.train.x)
    assert torch.equal(Tiny(root=folder, split_seed=np.int64(0)).load().train.x, first.train.x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scale", 0),
        ("scale", -126.0),
        ("scale", float("nan")),
        ("scale", float("inf")),
        ("scale", "126"),
        ("scale", True),
        ("validation", -1),
        ("validation", 60_000),
        ("validation", 0.1),
        ("validation", True),
        ("split_seed", -1),
        ("split_seed", 2**63),
        ("split_seed", None),
        ("limit", 0),
        ("limit", 50_001),
        ("limit", "all"),
        ("flatten", 1),
        ("download", "yes"),
        ("root", 7),
    ],
)
def test_a_value_outside_its_domain_is_named(kind: type[IdxImages], field: str, value: object) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=f"^{field} must .*, got {value!r}$"):
        kind(**fields)


@pytest.mark.parametrize("kind", KINDS)
def test_the_edges_of_each_domain_are_inside(kind: type[IdxImages]) -> None:
    kind(scale=1, validation=0, limit=60_000, split_seed=0)
    kind(validation=59_999, limit=1, split_seed=2**62, root=Path("later"))
    kind(validation=np.int64(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_components_are_frozen_and_keyword_only(kind: type[IdxImages]) -> None:
    with pytest.raises(FrozenInstanceError):
        kind().scale = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        kind("somewhere")  # type: ignore[misc]


def test_both_know_each_of_their_files_by_another_md5() -> None:
    digests = [*files.MNIST_FILES.md5, *files.FASHION_MNIST_FILES.md5]
    assert len(set(digests)) == 8
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in digests)


@pytest.mark.parametrize("kind", KINDS)
def test_torchvision_has_the_same_four_files(kind: type[IdxImages]) -> None:
    theirs = getattr(import_torchvision().datasets, kind.files.torchvision)
    assert {name for name, _ in theirs.resources} == {f"{name}.gz" for name in NAMES}
    assert all(mirror.endswith("/") for mirror in theirs.mirrors)
    assert len(theirs.mirrors) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_data(kind: type[IdxImages]) -> None:
    """In full, from PYROBBB_DATA only: nothing is downloaded."""
    if not REAL or not Path(REAL).is_dir():
        pytest.skip("PYROBBB_DATA names no folder")
    found = any(
        (Path(REAL) / place / f"{NAMES[0]}{end}").is_file()
        for place in kind.files.folders
        for end in ("", ".gz")
    )
    if not found:
        pytest.skip(f"PYROBBB_DATA holds no {kind.files.title}")
    data = kind(download=False).load()
    assert data.validation is not None
    assert data.test is not None
    assert data.spec.N == 50_000
    assert data.train.x.shape == (50_000, 784)
    assert (len(data.validation), len(data.test)) == (10_000, 10_000)
    for split in (data.train, data.validation, data.test):
        assert float(split.x.max()) == pytest.approx(255 / 126)
        assert float(split.x.min()) == 0
        assert split.y.unique().tolist() == list(range(10))
    if kind is MNIST:
        counts = torch.bincount(torch.cat([data.train.y, data.validation.y]))
        assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
