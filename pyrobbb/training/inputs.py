"""The forms of data that a training accepts, as training and validation rows."""

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pyrobbb._support.text import short
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.data.torch_data import TorchRows
from pyrobbb.training.data_checks import check_tensors


def training_rows(data: Any, validation: Any = None) -> tuple[Split | TorchRows, Split | None]:
    """The training rows, and the validation rows, in memory, if there are any.

    Args:
        data: A `Dataset`; or a torch `Dataset` or `DataLoader` of pairs (x, y), read at each batch.
        validation: Takes the place of the data's own: a `Split`, or of torch's.

    Raises:
        ValueError: If the data are something else, or a stream without a length.
    """
    held: Split | None = None
    train: Split | TorchRows
    if isinstance(data, TorchDataset | DataLoader):
        train = TorchRows(data)
    else:
        if not isinstance(data, Dataset):
            raise ValueError(
                f"data must be what from_arrays(x, y, task=...) makes, or a torch Dataset or DataLoader, got "
                f"{short(data)}"
            )
        for part, split in (("", data.train), ("validation ", data.validation), ("test ", data.test)):
            if split is not None:
                check_tensors(part, split)
        train, held = data.train, data.validation
    if isinstance(validation, TorchDataset | DataLoader):
        held = TorchRows(validation).whole()
    elif validation is not None:
        if not isinstance(validation, Split):
            raise ValueError(
                f"validation must be a Split or a torch Dataset, such as TensorDataset(x, y), got "
                f"{short(validation)}"
            )
        check_tensors("validation ", held := validation)
    return train, held
