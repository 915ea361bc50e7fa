"""`import torchvision`, also where its compiled operators are missing.

A torchvision built for another torch cannot load its compiled operators; its `import` then stops at
"operator torchvision::nms does not exist", though the data sets need no operator at all. Only after
that very failure are the two missing operators declared (without a kernel: to call one is still an
error), and the import is tried once more.
"""

import importlib
from types import ModuleType

import torch

MISSING = "operator torchvision::nms does not exist"
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_declared: list[torch.library.Library] = []  # a declaration lives as long as its Library object


def import_torchvision() -> ModuleType:
    """The module torchvision.

    Raises:
        ImportError: torchvision is not installed, or its import fails for another reason.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _declared or MISSING not in str(error):
            raise ImportError(f"torchvision cannot be imported: {error}") from error
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + SCHEMA)
    _declared.append(library)
    return import_torchvision()
