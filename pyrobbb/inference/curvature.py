r"""The generalised Gauss-Newton curvature :math:`\sum_i J_i^T \Lambda_i J_i` of a network, in three forms.

:math:`J_i` is the Jacobian of the output at :math:`x_i` with respect to the weights and :math:`\Lambda_i` the
Hessian of :math:`-\log p(y_i \mid f)` with respect to the output f. Each form adds a diagonal prior precision
and answers three questions: a draw, the variances, and the log-determinant of the precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.overrides import TorchFunctionMode

from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.data.dataset import Split

MEGABYTES = 128  # for the Jacobians of the rows taken at a time


def output_factors(model: BayesianNetwork, output: Tensor, data: Split) -> Tensor:
    r"""L `(B, K, K)` with :math:`L L^T = \Lambda` for outputs `(B, K)`; not convex in f is flat.

    A row's :math:`\Lambda` is taken as often as the row counts.
    """
    if output.dim() != 2:
        raise ValueError(
            f"Laplace needs one output row per row of x, got an output of shape {tuple(output.shape)}"
        )
    output = output.detach().requires_grad_()
    distribution = model.observation(output)
    nll = -distribution.log_prob(model.encoded(distribution, data.y)).sum()
    (slope,) = torch.autograd.grad(nll, output, create_graph=True)
    rows = [torch.autograd.grad(part.sum(), output, retain_graph=True)[0] for part in slope.unbind(-1)]
    values, vectors = _eigh(torch.stack(rows, -2))
    values = values.clamp_min(0) * data.counts.to(values)[:, None]
    return vectors * values.sqrt().unsqueeze(-2)


def check_curved(model: BayesianNetwork, output: Tensor) -> None:
    """ValueError if -log p(y | f) has no second derivative at outputs f `(B, K)` and targets drawn there."""
    output = output.detach().requires_grad_()
    distribution = model.observation(output)
    with torch.no_grad(), isolated(0, device=output.device):
        y = distribution.sample()
    (slope,) = torch.autograd.grad(-distribution.log_prob(y).sum(), output, create_graph=True)
    along = (slope * torch.arange(1, slope.shape[-1] + 1).to(slope)).sum()
    if not along.requires_grad or not bool(torch.autograd.grad(along, output)[0].any()):
        raise ValueError(
            f"{type(model.likelihood).__name__} has no second derivative in the network's output, so that "
            f"Laplace would see nothing of the data: take svi, nuts or another likelihood"
        )


def _eigh(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, by double precision.

    In single precision LAPACK may give NaN for matrices with rows of 0: of classes that are ruled out, of
    hidden units that are dead.
    """
    values, vectors = torch.linalg.eigh(symmetric.double())
    return values.to(symmetric), vectors.to(symmetric)


class Mode(NamedTuple):
    """Where the curvature is taken: at `weights`, with respect to those in `names`, over all of `data`."""

    model: BayesianNetwork
    weights: Weights
    names: Sequence[str]
    data: Split


def jacobian_rows(mode: Mode) -> Iterator[Tensor]:
    """L^T J `(B, K, d)` of a few rows at a time, d being the number of weights in `names`."""
    model, weights, names, data = mode
    chosen = {name: weights[name] for name in names}
    rest = {name: value for name, value in weights.items() if name not in chosen}

    def one(w: Weights, x: Tensor) -> Tensor:
        return model.apply_network({**rest, **w}, x[None])[0]

    width = model.apply_network(weights, data.x[:1]).shape[-1]
    size = 4 * width * sum(value.numel() for value in chosen.values())
    for rows in torch.arange(len(data), device=data.x.device).split(max(1, MEGABYTES * 2**20 // size)):
        part = data.take(rows)
        factors = output_factors(model, model.apply_network(weights, part.x), part)
        jacobians = vmap(jacrev(one), in_dims=(None, 0))(chosen, part.x)
        flat = torch.cat([jacobians[name].flatten(2) for name in names], -1)
        yield factors.transpose(1, 2) @ flat


class Curvature(nn.Module):
    """What every form has; it is made of the weights' `shapes`, end to end, in the precision of `like`."""

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__()

    def fit(self, mode: Mode, prior: Tensor) -> None:
        """Take the curvature at `mode`, plus the `prior` precision."""
        raise NotImplementedError

    def draw(self) -> Tensor:
        """A deviation from the mode, `(size,)`."""
        raise NotImplementedError

    def variance(self) -> Tensor:
        """The variance of each weight."""
        raise NotImplementedError

    def log_det(self) -> Tensor:
        """The log-determinant of the precision."""
        raise NotImplementedError


class Diagonal(Curvature):
    """A variance for each of `size` weights."""

    variances: Tensor

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(shapes, like)
        self.register_buffer("variances", like.new_zeros(sum(s.numel() for s in shapes.values())))

    def fit(self, mode: Mode, prior: Tensor) -> None:
        total = prior.clone()
        for rows in jacobian_rows(mode):
            total += rows.square().sum((0, 1))
        self.variances.copy_(1 / total)

    def draw(self) -> Tensor:
        return self.variances.sqrt() * torch.randn_like(self.variances)

    def variance(self) -> Tensor:
        return self.variances

    def log_det(self) -> Tensor:
        return -self.variances.log().sum()


class Full(Curvature):
    """A full covariance."""

    scale_tril: Tensor

    LARGEST = 10_000

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(shapes, like)
        size = sum(s.numel() for s in shapes.values())
        if size > self.LARGEST:
            raise ValueError(
                f"a full covariance of {size} weights has {size}^2 entries; take structure='kronecker' or "
                f"'diagonal', or layers='last'"
            )
        self.register_buffer("scale_tril", like.new_zeros(size, size))

    def fit(self, mode: Mode, prior: Tensor) -> None:
        total = torch.diag(prior).double()
        for rows in jacobian_rows(mode):
            flat = rows.flatten(0, 1).double()
            total += flat.T @ flat
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(total))
        self.scale_tril.copy_(torch.linalg.cholesky(covariance))

    def draw(self) -> Tensor:
        return self.scale_tril @ torch.randn_like(self.scale_tril[0])

    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(1)

    def log_det(self) -> Tensor:
        return -2 * self.scale_tril.diagonal().log().sum()


class _Uses(TorchFunctionMode):
    """Notes where some tensors are the weight or bias of a linear map or a convolution."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names, self.convolutions = names, list[bool]()
        # names of weight and bias, (B, positions, in), product
        self.found: list[tuple[str | None, str | None, Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.linear or func is F.conv2d:
            order = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            given = {**dict(zip(order, args, strict=False)), **kwargs}
            weight, bias = (self.names.get(id(given.get(key))) for key in ("weight", "bias"))
            if weight or bias:
                self.found.append((weight, bias, _inputs(func, given), output))
                self.convolutions.append(func is F.conv2d)
        return output


def _inputs(func: Any, given: dict[str, Any]) -> Tensor:
    """What the weight matrix multiplies: `(B, positions, in)`."""
    x, weight = given["input"].detach(), given["weight"]
    if func is F.linear:
        return x.reshape(len(x), -1, x.shape[-1])
    if given.get("groups", 1) != 1 or isinstance(given.get("padding", 0), str):
        raise ValueError(
            "structure='kronecker' knows convolutions of one group and numeric padding; take 'diagonal'"
        )
    options = {key: given[key] for key in ("stride", "padding", "dilation") if key in given}
    return F.unfold(x, weight.shape[2:], **options).transpose(1, 2)


class Kronecker(Curvature):
    r"""Precision :math:`A \otimes B + \delta I` for each weight matrix, :math:`B + \delta I` for each bias.

    A is the second moment of what the matrix multiplies and B that of the gradients of its product (Martens
    and Grosse 2015, arXiv 1503.05671; for convolutions Grosse and Martens 2016, arXiv 1602.01407). Weights
    and biases are independent, and layers are.
    """

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__(shapes, like)
        self.shapes = dict(shapes)
        for i, shape in enumerate(shapes.values()):
            rows, columns = shape[0], shape[1:].numel() if len(shape) > 1 else 1
            self.register_buffer(f"left_{i}", like.new_zeros(rows, rows))  # eigenvectors of B
            self.register_buffer(f"right_{i}", like.new_zeros(columns, columns))  # of A
            self.register_buffer(f"variances_{i}", like.new_zeros(rows, columns))  # in their basis

    def fit(self, mode: Mode, prior: Tensor) -> None:
        names, data = mode.names, mode.data
        left: Weights = {}
        right: Weights = {}
        for rows in torch.arange(len(data), device=data.x.device).split(500):
            self._add(mode._replace(data=data.take(rows)), left, right)
        deltas = prior.split([shape.numel() for shape in self.shapes.values()])
        for i, (name, delta) in enumerate(zip(names, deltas, strict=True)):
            if not bool((delta == delta[0]).all()):
                raise ValueError(
                    f"structure='kronecker' needs one prior scale for all of {name!r}; take 'diagonal'"
                )
            b, B = _eigh(left[name])
            a, A = _eigh(right[name] / data.counts.sum())
            precision = b.clamp_min(0)[:, None] * a.clamp_min(0) + delta[0]
            for kind, value in (("left", B), ("right", A), ("variances", 1 / precision)):
                getattr(self, f"{kind}_{i}").copy_(value)

    def _add(self, mode: Mode, left: Weights, right: Weights) -> None:
        model, weights, names, data = mode
        leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
        with torch.enable_grad(), _Uses({id(leaves[name]): name for name in names}) as uses:
            output = model.apply_network(leaves, data.x)
        seen = [name for weight, bias, _, _ in uses.found for name in (weight, bias) if name]
        if sorted(seen) != sorted(names):
            odd = next(name for name in names if seen.count(name) != 1)
            raise ValueError(
                f"structure='kronecker' needs each parameter used once, by a linear map or convolution; "
                f"{odd!r} is used {seen.count(odd)} times so; take 'diagonal'"
            )
        factors = output_factors(model, output, data)
        counts = data.counts.to(output)
        products = [product for _, _, _, product in uses.found]
        for c in range(factors.shape[-1]):
            slopes = torch.autograd.grad(output, products, factors[..., c], retain_graph=True)
            for (weight, bias, a, _), slope, turned in zip(
                uses.found, slopes, uses.convolutions, strict=True
            ):
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
