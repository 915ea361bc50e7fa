"""On a machine with a CUDA device the suite is that of one without; imitated here where there is none."""

import os

import pytest
import torch

from devices import Devices
from pyrobbb._support.device import best_device


@pytest.mark.parametrize("named", [None, "1"])
def test_devices_are_hidden_from_tests_and_their_processes(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named or "")
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    devices = Devices()
    devices.hide(True)
    assert best_device("auto").type == "cpu"
    with pytest.raises(ValueError, match="no CUDA device"):
        best_device("cuda")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    devices.hide(False)
    assert best_device("auto").type == "cuda"
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == named


def test_none_is_seen_here() -> None:
    assert not torch.cuda.is_available()
