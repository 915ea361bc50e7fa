r"""The Gauss-Newton curvature by layers, each a Kronecker product of what goes in and what comes back.

Martens and Grosse 2015 (arXiv 1503.05671); for convolutions Grosse and Martens 2016 (arXiv 1602.01407).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pyrobbb._support.flat import split
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import Weights
from pyrobbb.inference.curvature import Curvature, Mode, eigh, output_factors, row_blocks

ONCE = "each parameter used once, by a linear map or a convolution of images"


def _unfit(needs: str) -> ValueError:
    """What this form needs and a network lacks, and what to take instead."""
    return ValueError(
        f"structure='kronecker' needs {needs}; take 'diagonal', 'full' for few weights, layers='last' if it "
        f"is in another layer, or the prior Deterministic() for it"
    )


class Kronecker(Curvature):
    r"""Precision :math:`A \otimes B + \delta I` for each weight matrix, :math:`B + \delta I` for each bias.

    A is the second moment of what the matrix multiplies and B that of the gradients of its product. Weights
    and biases are independent, and layers are.
    """

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        for i, (name, shape) in enumerate(shapes.items()):
            if not shape:
                raise _unfit(f"matrices and vectors, but {name!r} is a single number")
            rows, columns = shape[0], shape[1:].numel() if len(shape) > 1 else 1
            self.register_buffer(f"left_{i}", like.new_zeros(rows, rows))  # eigenvectors of B
            self.register_buffer(f"right_{i}", like.new_zeros(columns, columns))  # of A
            self.register_buffer(f"variances_{i}", like.new_zeros(rows, columns))  # in their basis

    def check(self, mode: Mode, prior: Tensor) -> None:
        self._deltas(prior)
        self._add(mode, {}, {})

    def fit(self, mode: Mode, prior: Tensor) -> None:
        left: Weights = {}
        right: Weights = {}
        for rows in row_blocks(mode.data, 500):
            self._add(mode._replace(data=rows), left, right)
        for i, (name, delta) in enumerate(self._deltas(prior).items()):
            b, B = eigh(left[name])
            a, A = eigh(right[name] / mode.data.counts.sum())
            precision = b.clamp_min(0)[:, None] * a.clamp_min(0) + delta[0]
            for kind, value in (("left", B), ("right", A), ("variances", 1 / precision)):
                getattr(self, f"{kind}_{i}").copy_(value)

    def _deltas(self, prior: Tensor) -> Weights:
        """The prior precision, `(1,)`, of each matrix and bias; ValueError if it is several numbers."""
        deltas = {name: part.unique() for name, part in split(prior, self.shapes).items()}
        if several := [name for name, delta in deltas.items() if len(delta) > 1]:
            raise _unfit(f"one prior scale for all of {several[0]!r}")
        return deltas

    def _add(self, mode: Mode, left: Weights, right: Weights) -> None:
        model, weights, names, data = mode
        leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
        with torch.enable_grad(), _Uses({id(leaves[name]): name for name in names}) as uses:
            output = model.apply_network(leaves, data.x)
        seen = [name for weight, bias, *_ in uses.found for name in (weight, bias) if name]
        if sorted(seen) != sorted(names):
            odd = next(name for name in names if seen.count(name) != 1)
            raise _unfit(f"{ONCE}; {odd!r} is used {seen.count(odd)} times so")
        for weight, bias, a, *_ in uses.found:
            if len(a) != len(data):
                raise _unfit(
                    f"layers whose first dimension is the rows, and that of {weight or bias!r} is called on "
                    f"{len(a)} instead of {len(data)}"
                )
        factors = output_factors(model, output, data, _moved(mode, output.detach()))
        counts = data.counts.to(output)
        products = [product for *_, product in uses.found]
        for c in range(factors.shape[-1]):
            slopes = torch.autograd.grad(
                output, products, factors[..., c], retain_graph=True, materialize_grads=True
            )
            for (weight, bias, a, turned, _), slope in zip(uses.found, slopes, strict=True):
                g = slope.flatten(2).transpose(1, 2) if turned else slope.reshape(*a.shape[:2], -1)
                if weight is not None:
                    if c == 0:
                        right[weight] = right.get(weight, 0) + torch.einsum("b,bpi,bpj->ij", counts, a, a)
                    left[weight] = left.get(weight, 0) + torch.einsum("bpi,bpj->ij", g, g) / a.shape[1]
                if bias is not None:
                    summed = g.sum(1)
                    left[bias] = left.get(bias, 0) + summed.T @ summed
                    if c == 0:
                        right[bias] = right.get(bias, 0) + counts.sum().reshape(1, 1)

    def _parts(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        kinds = ("left", "right", "variances")
        return [tuple(getattr(self, f"{kind}_{i}") for kind in kinds) for i in range(len(self.shapes))]

    def draw(self) -> Tensor:
        parts = [B @ (v.sqrt() * torch.randn_like(v)) @ A.T for B, A, v in self._parts()]
        return torch.cat([part.flatten() for part in parts])

    def variance(self) -> Tensor:
        return torch.cat([(B.square() @ v @ A.square().T).flatten() for B, A, v in self._parts()])

    def log_det(self) -> Tensor:
        return -torch.stack([v.log().sum() for _, _, v in self._parts()]).sum()

    def solve(self, flat: Tensor) -> Tensor:
        each = zip(split(flat, self.shapes).values(), self._parts(), strict=True)
        return torch.cat(
            [(B @ (v * (B.T @ w.reshape(v.shape) @ A)) @ A.T).flatten() for w, (B, A, v) in each]
        )


def _moved(mode: Mode, output: Tensor) -> Tensor:
    """Which columns of `output` are others, in any row, at weights drawn anew; expanded to `(B, K)`.

    A derivative of each would take K passes.
    """
    model, weights, names, data = mode
    with torch.no_grad(), isolated(0, device=data.x.device):
        others = {name: torch.randn_like(weights[name]) for name in names}
        moved = model.apply_network({**weights, **others}, data.x) != output
    return moved.any(0).expand_as(moved)


class _Uses(TorchFunctionMode):
    """Notes where some tensors are the weight or bias of a linear map or a convolution.

    Raises:
        ValueError: On the way, if one of them is used otherwise.
    """

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        # names of weight and bias, (B, positions, in), whether it is a convolution, product
        self.found: list[tuple[str | None, str | None, Tensor, bool, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        others = {self.names[id(part)] for part in tree_leaves((args, kwargs)) if id(part) in self.names}
        if func is F.linear or func is F.conv2d:
            order = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            given = {**dict(zip(order, args, strict=False)), **kwargs}
            weight, bias = (self.names.get(id(given.get(key))) for key in ("weight", "bias"))
            if weight or bias:
                self.found.append((weight, bias, _inputs(func, given), func is F.conv2d, output))
            others -= {weight, bias}
        if others and any(isinstance(part, Tensor) and part.requires_grad for part in tree_leaves(output)):
            raise _unfit(f"{ONCE}; {min(others)!r} is used in {getattr(func, '__name__', func)}")
        return output


def _inputs(func: Any, given: dict[str, Any]) -> Tensor:
    """What the weight matrix multiplies: `(B, positions, in)`."""
    x, weight = given["input"].detach(), given["weight"]
    if func is F.linear:
        return x.reshape(len(x), -1, x.shape[-1])
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str):
        raise _unfit("convolutions of one group and numeric padding")
    options = {key: given[key] for key in ("stride", "padding", "dilation") if key in given}
    return F.unfold(x, weight.shape[2:], **options).transpose(1, 2)
