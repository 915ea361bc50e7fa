"""A network with fixed weights, most of them 0: on disk without the zeros, and predicting without them."""

import warnings
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor, nn

from pyrobbb._support.copies import own_copy
from pyrobbb._support.device import in_full
from pyrobbb._support.files import replacing
from pyrobbb.weight_sites import owner_of

ROWS = 128  # inputs at a time: more fall out of the cache, and CSR loses its gain
FORMAT = 1


class SparseLinear(nn.Module):
    """y = W x + b with W in compressed sparse rows (CSR); no gradients, `torch.vmap` or `torch.export`."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            stored = weight.to_sparse_csr()
        # the parts, not the CSR tensor: a module with a sparse buffer can neither be copied nor moved
        self.register_buffer("rows", stored.crow_indices().int())  # 32 bits: twice as fast as 64
        self.register_buffer("columns", stored.col_indices().int())
        self.register_buffer("values", stored.values())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.shape = tuple(weight.shape)

    @property
    def weight(self) -> Tensor:
        """W in full, for a network that reads it itself in place of calling the layer."""
        return self._csr().to_dense()

    def _csr(self) -> Tensor:
        rows, columns, values = (self.get_buffer(name) for name in ("rows", "columns", "values"))
        return torch.sparse_csr_tensor(rows, columns, values, self.shape, check_invariants=False)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output `(*, out)` for `x` of `(*, in)`."""
        weight = self._csr()
        inputs = x.reshape(-1, x.shape[-1]).T.to(weight.dtype)
        with in_full(x):  # torch lacks the product in half precision
            output = torch.cat([weight @ block.contiguous() for block in inputs.split(ROWS, dim=1)], dim=1)
        bias = self.bias
        if isinstance(bias, Tensor):
            output = output + bias[:, None]
        return output.T.reshape(*x.shape[:-1], self.shape[0])


ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def sparse(network: nn.Module, *, at_most: float = 0.1) -> nn.Module:
    """A copy of `network` in which every `nn.Linear` with few weights left is a `SparseLinear`.

    Subclasses of it, layers with hooks, those whose weights attention reads itself, and those in half
    precision, for which torch lacks the product on the CPU, stay as they are.

    Args:
        network: Any network; its other layers stay as they are.
        at_most: The share of weights left above which a dense layer is the faster one.
    """
    network = own_copy(network)
    compressed = cache(SparseLinear)  # a layer under several names remains one
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
            continue
        parent, attribute = owner_of(network, name)
        if isinstance(parent, ATTENTION) or module.weight.dtype.itemsize < 4:
            continue
        if int(module.weight.count_nonzero()) > at_most * module.weight.numel():
            continue
        if not name:
            return SparseLinear(module)
        setattr(parent, attribute, compressed(module))
    return network


def save_sparse(network: nn.Module, path: Path | str) -> int:
    """Write the network's state to `path` (NumPy's .npz, no pickle) without its zeros; returns the bytes.

    >>> save_sparse(network, "small.npz")  # doctest: +SKIP
    >>> network.load_state_dict(load_sparse("small.npz"))  # doctest: +SKIP

    A tensor `name` is stored by rows, where that is smaller: `name|shape`, `name|row_ends`, and
    `name|columns` and `name|values` of what is not 0; otherwise whole, as `name|dense`. Columns take two
    bytes where they fit. A tensor under several names is written under each.
    """
    arrays: dict[str, np.ndarray] = {"format": np.array(FORMAT)}
    for name, value in network.state_dict().items():
        value = value.float() if value.dtype == torch.bfloat16 else value  # which NumPy lacks
        array = value.detach().cpu().numpy()
        flat = array.reshape(array.shape[0] if array.size and array.ndim else 1, -1)
        rows, columns = np.nonzero(flat)
        small = np.uint16 if flat.shape[1] <= 2**16 else np.uint32
        each = array.itemsize + small().itemsize
        if array.dtype.kind != "f" or rows.size * each + 4 * len(flat) >= array.nbytes:
            arrays[f"{name}|dense"] = array
            continue
        arrays[f"{name}|shape"] = np.array(array.shape, dtype=np.int64)
        arrays[f"{name}|row_ends"] = np.bincount(rows, minlength=len(flat)).cumsum().astype(np.uint32)
        arrays[f"{name}|columns"] = columns.astype(small)
        arrays[f"{name}|values"] = flat[rows, columns]
    path = Path(path)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path.stat().st_size


def load_sparse(path: Path | str) -> dict[str, Tensor]:
    """The state that `save_sparse` wrote to `path`, with its zeros.

    Raises:
        ValueError: The file is none of these.
    """
    state = {}
    with Path(path).open("rb") as opened:
        zipped = is_zipfile(opened)
    with np.load(path, allow_pickle=False) if zipped else nullcontext({}) as file:
        if "format" not in file or file["format"] != FORMAT:
            raise ValueError(f"{path} was not written by save_sparse, or by another version of it")
        for key in file.files:
            name, _, part = key.rpartition("|")
            if part == "dense":
                state[name] = torch.from_numpy(file[key])
            elif part == "shape":
                ends, columns, values = (file[f"{name}|{k}"] for k in ("row_ends", "columns", "values"))
                rows = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
                whole = np.zeros(file[key], values.dtype)
                whole.reshape(len(ends), -1)[rows, columns] = values
                state[name] = torch.from_numpy(whole)
    return state
