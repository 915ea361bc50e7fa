"""`import torchvision` with and without its compiled operators."""

import importlib
from types import ModuleType

import pytest
import torch

from commands import interpreter
from pyrobbb.data.images import torchvision_compat
from pyrobbb.data.images.torchvision_compat import MISSING, import_torchvision


class Importer:
    """Stands in for `import_module`: fails with each of `errors` in turn, then gives the module."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.module = ModuleType("torchvision")
        self.calls = 0

    def __call__(self, name: str) -> ModuleType:
        assert name == "torchvision"
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.module


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is declared, without declaring it in this process."""
    made: list[str] = []

    class Library:
        def __init__(self, *arguments: str) -> None:
            made.append(" ".join(arguments))

        def define(self, schema: str) -> None:
            made.append(schema)

    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(torchvision_compat, "_declared", [])
    return made


def test_a_working_torchvision_is_left_alone(declared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Importer()
    monkeypatch.setattr(importlib, "import_module", importer)
    assert import_torchvision() is importer.module
    assert declared == []


def test_the_operators_are_declared_after_that_very_failure(
    declared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    importer = Importer(RuntimeError(MISSING))
    monkeypatch.setattr(importlib, "import_module", importer)
    assert import_torchvision() is importer.module
    assert importer.calls == 2
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    assert declared == ["torchvision DEF", f"nms{arguments}", f"qnms{arguments}"]


@pytest.mark.parametrize(
    "error", [RuntimeError("another torch"), ImportError("No module named 'torchvision'")]
)
def test_any_other_failure_is_passed_on(
    error: Exception, declared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib, "import_module", Importer(error))
    with pytest.raises(ImportError, match=str(error)):
        import_torchvision()
    assert declared == []


def test_a_second_failure_is_passed_on(declared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib, "import_module", Importer(RuntimeError(MISSING), RuntimeError("still not"))
    )
    with pytest.raises(ImportError, match="still not"):
        import_torchvision()


def test_the_real_one_in_a_fresh_process() -> None:
    """Imported when asked for and not before; twice; and with warnings as errors, as in strict tests."""
    code = """
import sys
import pyrobbb.data
from pyrobbb.data.images.torchvision_compat import import_torchvision
assert "torchvision" not in sys.modules
assert import_torchvision() is import_torchvision()
print(import_torchvision().datasets.MNIST.mirrors[0])
"""
    assert interpreter("-W", "error", "-c", code).stdout.startswith("https://")
