"""Checkpoints: what goes in comes out, and every file that is none is named in one clear error."""

import errno
import os
import pickle
import re
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from engine_fakes import law
from pyrobbb._support import checkpoint
from pyrobbb._support.checkpoint import CheckpointError

CONTENT = {
    "guide": {"loc": torch.arange(3.0)},
    "epoch": 3,
    "history": [{"kl": 0.5, "name": "a"}],
    "none": None,
}


def good(folder: Path) -> Path:
    checkpoint.save(folder / "good.pt", CONTENT)
    return folder / "good.pt"


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    content = checkpoint.load(good(tmp_path))
    assert torch.equal(content["guide"]["loc"], torch.arange(3.0))
    assert {k: content[k] for k in ("epoch", "history", "none")} == {
        k: CONTENT[k] for k in ("epoch", "history", "none")
    }
    assert content["format"] == checkpoint.FORMAT
    assert os.listdir(tmp_path) == ["good.pt"]  # nothing left beside it


def test_what_is_not_there_is_not_removed_from_a_read_only_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = good(tmp_path)

    def refused(path: Path, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    for call in ("unlink", "remove"):
        monkeypatch.setattr(os, call, refused)
    checkpoint.remove(tmp_path / "other.pt")
    with pytest.raises(OSError, match="Read-only"):
        checkpoint.remove(path)


def test_it_opens_with_weights_only(tmp_path: Path) -> None:
    assert torch.load(good(tmp_path), weights_only=True)["epoch"] == 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return good(tmp_path_factory.mktemp("whole")).read_bytes()


@law
@given(data=st.data())
def test_a_cut_checkpoint(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.pt"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CheckpointError, match=r"cut\.pt is not a readable checkpoint \(.+\)"):
        checkpoint.load(path)


@law
@given(content=st.binary(max_size=200) | st.binary(max_size=100).map(lambda b: b"\x80\x02" + b))
def test_bytes_that_are_no_checkpoint(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "bytes.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bytes\.pt is not a (readable|pyrobbb) checkpoint"):
        checkpoint.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.pt does not exist"):
        checkpoint.load(tmp_path / "absent.pt")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        checkpoint.load(tmp_path)


def test_another_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match=r"other\.pt is not a readable checkpoint"):
        checkpoint.load(tmp_path / "other.pt")


@pytest.mark.parametrize("content", [{"loc": torch.zeros(2)}, torch.zeros(2), [1, 2], 3, "text", None])
def test_somebody_elses_tensors(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match=r"foreign\.pt is not a pyrobbb checkpoint"):
        checkpoint.load(tmp_path / "foreign.pt")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format(tmp_path: Path, version: Any) -> None:
    torch.save({"format": version}, tmp_path / "newer.pt")
    with pytest.raises(CheckpointError, match=rf"newer\.pt has checkpoint format {version}, this .* reads 1"):
        checkpoint.load(tmp_path / "newer.pt")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_code_is_refused_and_never_run(tmp_path: Path) -> None:
    torch.save({"format": 1, "guide": Bomb(tmp_path / "harm")}, tmp_path / "code.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb(tmp_path / "harm")))
    for name in ("code.pt", "plain.pt"):
        with pytest.raises(CheckpointError, match=rf"{name} is not a readable checkpoint") as caught:
            checkpoint.load(tmp_path / name)
        assert len(str(caught.value)) < 300
        assert "weights_only" not in str(caught.value)  # no advice to switch the protection off
    assert not (tmp_path / "harm").exists()


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = good(tmp_path)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        checkpoint.save(path, {"guide": lambda: 3})
    assert checkpoint.load(path)["epoch"] == 3
    assert os.listdir(tmp_path) == ["good.pt"]


def test_tensors_come_to_the_device_asked_for(tmp_path: Path) -> None:
    assert checkpoint.load(good(tmp_path), "meta")["guide"]["loc"].device.type == "meta"


# Into a module


def test_a_modules_state() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    checkpoint.load_module(target, source.state_dict(), "guide", "here.pt")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (nn.Linear(3, 2, bias=False).state_dict(), "here.pt is a checkpoint of another guide: no bias"),
        (
            nn.Linear(3, 4).state_dict(),
            "bias is (4,), the guide's is (2,); weight is (4, 3), the guide's is (2, 3)",
        ),
        (
            nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).state_dict(),
            "no bias; no weight; unknown 0.bias and 3 more",
        ),
        ({}, "another guide: no bias; no weight"),
        (3, "holds no guide"),
        ({"weight": 3, "bias": None}, "holds no guide"),
    ],
)
def test_another_modules_state(state: Any, message: str) -> None:
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_module(module, state, "guide", "here.pt")
    assert message in str(caught.value)
    assert torch.equal(module.weight, before)


def test_numpys_numbers_become_pythons(tmp_path: Path) -> None:
    """A learning rate of np.exp(-7) must not make a checkpoint that cannot be read."""
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=np.float64(0.5))
    content = {
        "optimizer": optimizer.state_dict(),
        "n": [np.int64(3), (np.float32(0.25), np.bool_(True))],
    }
    checkpoint.save(tmp_path / "numpy.pt", content)
    read = checkpoint.load(tmp_path / "numpy.pt")
    assert read["optimizer"]["param_groups"][0]["lr"] == 0.5
    assert read["n"] == [3, (0.25, True)]


@pytest.mark.parametrize(
    "schedule",
    [
        partial(lr_scheduler.MultiStepLR, milestones=[2, 3]),
        partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9),
        partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.5**epoch),
    ],
    ids=lambda schedule: schedule.func.__name__,
)
def test_torchs_schedules_can_be_kept(tmp_path: Path, schedule: Any) -> None:
    one, two = (schedule(torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=0.5)) for _ in range(2))
    one.optimizer.step()
    one.step()
    checkpoint.save(tmp_path / "kept.pt", {"schedule": one.state_dict()})
    two.load_state_dict(checkpoint.load(tmp_path / "kept.pt")["schedule"])
    assert two.get_last_lr() == one.get_last_lr()


# Two generations


def test_a_changed_byte_is_noticed_or_harmless(whole: bytes, tmp_path: Path) -> None:
    """torch itself reads nearly half of these without a word, with other numbers."""
    path = tmp_path / "changed.pt"
    refused, contents = 0, whole.index(b"PK\1\2")  # the archive's table of contents: every byte of it
    for offset in [*range(0, contents, 7), *range(contents, len(whole))]:
        changed = bytearray(whole)
        changed[offset] ^= 1 << offset % 8 if offset < contents else 0xFF
        path.write_bytes(changed)
        try:
            content = checkpoint.load(path)
        except CheckpointError:
            refused += 1
        else:
            assert torch.equal(content["guide"]["loc"], torch.arange(3.0))
            assert (content["epoch"], content["history"]) == (3, CONTENT["history"])
    assert refused > 100


def numbered(folder: Path, count: int) -> Path:
    for epoch in range(1, count + 1):
        checkpoint.save(folder / "c.pt", CONTENT | {"epoch": epoch})
    return folder / "c.pt"


def newest(path: Path, **options: Any) -> tuple[int, str] | None:
    found = checkpoint.load_newest(path, **options)
    return None if found is None else (found[0]["epoch"], found[1].name)


def test_the_one_before_stays(tmp_path: Path) -> None:
    path = numbered(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == ["c.before.pt", "c.pt"]
    assert newest(path) == (3, "c.pt")
    assert checkpoint.load(checkpoint.before(path))["epoch"] == 2
    path.unlink()  # killed between the two renamings
    assert newest(path) == (2, "c.before.pt")
    checkpoint.remove(path)
    assert os.listdir(tmp_path) == []
    assert newest(path) is None


def test_a_damaged_one_falls_back_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = numbered(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-100])
    assert newest(path) == (2, "c.before.pt")
    assert sorted(os.listdir(tmp_path)) == ["c.before.pt", "c.pt"]  # looking changes nothing
    (record,) = caplog.records
    assert re.search(
        r"c\.pt is not a readable checkpoint \(.*; using the previous one, .*c\.before\.pt", record.message
    )
    assert newest(path, repair=True) == (2, "c.before.pt")
    assert sorted(os.listdir(tmp_path)) == ["c.before.pt", "c.damaged.pt"]
    checkpoint.save(path, CONTENT | {"epoch": 4})  # does not push the good one out
    assert checkpoint.load(checkpoint.before(path))["epoch"] == 2


def test_both_damaged_or_none_before(tmp_path: Path) -> None:
    path = numbered(tmp_path, 1)
    path.write_bytes(b"")
    with pytest.raises(checkpoint.DamagedError, match=r"c\.pt is not a readable checkpoint \(.*\)$"):
        newest(path)
    with pytest.raises(checkpoint.DamagedError, match=r"c\.pt is .*; remove it to begin again$"):
        newest(path, repair=True)
    checkpoint.before(path).write_bytes(b"")
    with pytest.raises(checkpoint.DamagedError, match=r"c\.before\.pt is not .*; remove it to begin"):
        newest(path, repair=True)
    assert path.exists()


def test_a_newer_version_s_checkpoint_is_refused_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    path = numbered(tmp_path, 2)
    torch.save({"format": checkpoint.FORMAT + 1}, path)
    with pytest.raises(CheckpointError, match="format 2, this version of pyrobbb reads 1"):
        newest(path)


def test_checksums_are_written_even_if_torch_is_told_not_to(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = good(tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert checkpoint.load(path)["epoch"] == 3


@pytest.mark.parametrize("wrong", [np.ones(2), Path("a"), range(3), {"deep": [Path("a")]}])
def test_what_could_not_be_read_again_is_refused_and_named(wrong: Any, tmp_path: Path) -> None:
    before = good(tmp_path).read_bytes()
    with pytest.raises(
        ValueError, match=r"a checkpoint that holds .*, of (ndarray|PosixPath|range), could not"
    ):
        checkpoint.save(tmp_path / "good.pt", {"callbacks": [{"v": wrong, "w": 1.0}]})
    assert (tmp_path / "good.pt").read_bytes() == before


def test_numbers_of_numpy_are_keys_too(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c.pt", {"seen": {np.int64(3): 1.0}})
    assert checkpoint.load(tmp_path / "c.pt")["seen"] == {3: 1.0}
