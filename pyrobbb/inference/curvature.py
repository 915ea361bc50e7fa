r"""The generalised Gauss-Newton curvature :math:`\sum_i J_i^T \Lambda_i J_i` of a network, in three forms.

:math:`J_i` is the Jacobian of the output at :math:`x_i` with respect to the weights and :math:`\Lambda_i` the
Hessian of :math:`-\log p(y_i \mid f)` with respect to the output f. Each form adds a diagonal prior precision
and answers four questions: a draw, the variances, the log-determinant of the precision, and its inverse times
a vector. The third form is in `kronecker.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.func import jacrev, vmap

from pyrobbb._support.chunking import out_of_memory
from pyrobbb._support.distribution_parts import draw_from
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.data.dataset import Split
from pyrobbb.likelihoods import Categorical
from pyrobbb.svi import counted

MEGABYTES = 128  # for the Jacobians of the rows taken at a time


def output_factors(model: BayesianNetwork, output: Tensor, data: Split, moved: Tensor) -> Tensor:
    r"""L `(B, K, K)` with :math:`L L^T = \Lambda` for outputs `(B, K)`; not convex in f is flat.

    A row's :math:`\Lambda` is taken as often as the row counts. It is 0 in outputs that the weights do not
    move, such as a known noise that the network passes on: in f and that noise together a normal's -log p is
    not convex, though it is in f.

    Args:
        model: Whose likelihood is curved.
        output: Of its network.
        data: The rows.
        moved: Which outputs move with the weights, `(B, K)`.
    """
    output = output.detach().requires_grad_()
    distribution = model.observation(output)
    nll = -distribution.log_prob(model.encoded(distribution, data.y)).sum()
    (slope,) = torch.autograd.grad(nll, output, create_graph=True)
    rows = [torch.autograd.grad(part.sum(), output, retain_graph=True)[0] for part in slope.unbind(-1)]
    values, vectors = eigh(torch.stack(rows, -2).where(moved[:, :, None] & moved[:, None], 0))
    values = values.clamp_min(0) * data.counts.to(values)[:, None]
    return vectors * values.sqrt().unsqueeze(-2)


def check_curved(model: BayesianNetwork, output: Tensor) -> None:
    """ValueError unless outputs are `(B, K)` and -log p(y | f) has a second derivative there, or at f = 0."""
    if output.dim() != 2:
        instead = "flatten what comes after the first axis, in the network and in y"
        if isinstance(model.likelihood, Categorical):  # a class for each pixel
            instead = "take svi, swag or an ensemble"
        raise ValueError(
            f"Laplace takes outputs (B, K), a row of numbers for each row of x, got {tuple(output.shape)}: "
            f"{instead}"
        )
    if _is_flat(model, output.new_zeros(20, output.shape[1])) and _is_flat(model, output[:20].detach()):
        raise ValueError(
            f"{type(model.likelihood).__name__} has no second derivative in the network's output, so that "
            f"Laplace would see nothing of the data: take svi, nuts or another likelihood"
        )


def _is_flat(model: BayesianNetwork, output: Tensor) -> bool:
    """Whether -log p(y | f) has no second derivative at these outputs, for y that they might give."""
    output = output.clone().requires_grad_()
    distribution = model.observation(output)
    with torch.no_grad(), isolated(0, device=output.device):
        y = draw_from(distribution)
    (slope,) = torch.autograd.grad(-distribution.log_prob(y).sum(), output, create_graph=True)
    along = (slope * torch.arange(1, slope.shape[-1] + 1).to(slope)).sum()
    return not along.requires_grad or not bool(torch.autograd.grad(along, output)[0].any())


def eigh(symmetric: Tensor) -> tuple[Tensor, Tensor]:
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


def row_blocks(data: Split, size: int = 1000) -> Iterator[Split]:
    """`size` rows at a time."""
    for rows in torch.arange(len(data), device=data.x.device).split(size):
        yield data.take(rows)


def log_likelihood(mode: Mode) -> Tensor:
    """Log P(D | w), in double precision."""
    model, weights, _, data = mode
    with torch.no_grad():
        each = (
            counted(model.log_likelihood(weights, p.x, p.y).double(), p.weights) for p in row_blocks(data)
        )
        return torch.stack([part.sum() for part in each]).sum()


def log_likelihood_and_slope(mode: Mode) -> tuple[Tensor, Tensor]:
    """Log P(D | w), and its derivative by the weights in `names`, end to end, in double precision."""
    model, weights, names, data = mode
    leaves = {name: weights[name].detach().requires_grad_() for name in names}
    score, slope = torch.zeros((), dtype=torch.float64, device=data.x.device), None
    for part in row_blocks(data):
        with torch.enable_grad():
            each = model.log_likelihood({**weights, **leaves}, part.x, part.y).double()
            total = counted(each, part.weights).sum()
            found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        flat = torch.cat([value.flatten() for value in found]).double()
        score, slope = score + total.detach(), flat if slope is None else slope + flat
    assert slope is not None
    return score, slope


def jacobian_rows(mode: Mode) -> Iterator[Tensor]:
    """L^T J `(B, K, d)` of a few rows at a time, d being the number of weights in `names`."""
    model, weights, names, data = mode
    chosen = {name: weights[name] for name in names}
    rest = {name: value for name, value in weights.items() if name not in chosen}

    def one(w: Weights, x: Tensor) -> Tensor:
        return model.apply_network({**rest, **w}, x[None])[0]

    width = model.apply_network(weights, data.x[:1]).shape[-1]
    size = width * sum(value.numel() * value.element_size() for value in chosen.values())
    for part in row_blocks(data, max(1, MEGABYTES * 2**20 // size)):
        try:
            jacobians = vmap(jacrev(one), in_dims=(None, 0))(chosen, part.x)
            flat = torch.cat([jacobians[n].reshape(len(part), width, chosen[n].numel()) for n in names], -1)
        except RuntimeError as error:  # a module that torch cannot batch, such as a GRU
            if out_of_memory(error):
                raise
            flat = torch.stack([_jacobian(partial(one, x=row), chosen) for row in part.x])
        factors = output_factors(model, model.apply_network(weights, part.x), part, flat.any(-1))
        yield factors.transpose(1, 2) @ flat


def _jacobian(function: Callable[[Weights], Tensor], weights: Weights) -> Tensor:
    """Of outputs `(K,)` with respect to all weights, `(K, d)`, one output after the other."""
    slopes = jacobian(lambda *values: function(dict(zip(weights, values, strict=True))), (*weights.values(),))
    return torch.cat([slope.flatten(1) for slope in slopes], dim=1)


class Curvature(nn.Module):
    """What every form has; each is made of the weights' `shapes`, end to end, in the precision of `like`."""

    def check(self, mode: Mode, prior: Tensor) -> None:
        """Raise ValueError if `fit` would, tried at a mode of few rows."""

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

    def solve(self, flat: Tensor) -> Tensor:
        r""":math:`H^{-1} v` with the precision H and a vector v of shape `(size,)`."""
        raise NotImplementedError


class Diagonal(Curvature):
    """A variance for each of `size` weights."""

    variances: Tensor

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__()
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

    def solve(self, flat: Tensor) -> Tensor:
        return self.variances * flat


class Full(Curvature):
    """A full covariance."""

    scale_tril: Tensor

    LARGEST = 10_000

    def __init__(self, shapes: dict[str, torch.Size], like: Tensor) -> None:
        super().__init__()
        size = sum(s.numel() for s in shapes.values())
        if size > self.LARGEST:
            raise ValueError(
                f"a full covariance of {size} weights has {size}^2 entries; take structure='kronecker' or "
                f"'diagonal', or fewer layers, such as layers='last'"
            )
        self.register_buffer("scale_tril", like.new_zeros(size, size))

    def fit(self, mode: Mode, prior: Tensor) -> None:
        total = torch.diag(prior).double()
        for rows in jacobian_rows(mode):
            flat = rows.flatten(0, 1).double()
            total += flat.T @ flat
        try:
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(total))
            self.scale_tril.copy_(torch.linalg.cholesky(covariance))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise ValueError(
                "the full curvature is singular in double precision: some weights, such as those of two "
                "equal inputs, are held by a very wide prior alone; take a narrower one, or another structure"
            ) from error

    def draw(self) -> Tensor:
        return self.scale_tril @ torch.randn_like(self.scale_tril[0])

    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(1)

    def log_det(self) -> Tensor:
        return -2 * self.scale_tril.diagonal().log().sum()

    def solve(self, flat: Tensor) -> Tensor:
        return self.scale_tril @ (self.scale_tril.T @ flat)
