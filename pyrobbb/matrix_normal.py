"""A guide whose weights covary within a layer: by the rows and by the columns of its weight matrix."""

from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.transforms import ReshapeTransform, Transform

from pyrobbb._support.flat import split
from pyrobbb.initializers import rho_of
from pyrobbb.mean_field import MeanFieldNormal


class MatrixNormal(MeanFieldNormal):
    r"""A matrix normal for each weight matrix, and an independent normal for each number of a vector.

    .. math::
        W &= M + A Z B^T, \quad Z_{ij} \sim N(0, 1), \quad\text{so}\quad
            q(W \mid \theta) = \mathcal{MN}(W \mid M, A A^T, B B^T) \\
        A &= \mathrm{diag}(\sigma)(1 + L), \quad B = \mathrm{diag}(\tau)(1 + K), \quad
            \sigma = \log(1 + e^\rho)

    with strictly lower triangular L and K: a row of W belongs to an output, so :math:`A A^T` is how outputs
    covary, and :math:`B B^T` how inputs do. A matrix of shape (O, I) takes :math:`O^2 + I^2` numbers besides
    its mean, and a draw :math:`O I (O + I)` multiplications: it is for layers of up to a few hundred units.
    Other axes, such as a convolution's, belong to the columns. It starts as a mean field whose sigma is the
    mean of the row's. `loc` has a number for each weight; `rho`, unlike a mean field's, one for each row and
    each number of a vector.

    Source: Louizos and Welling 2016, "Structured and Efficient Variational Deep Learning with Matrix Gaussian
    Posteriors", whose factors are diagonal.

    The arguments and errors are those of `MeanFieldNormal`.
    """

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        super()._set_up(*args, **kwargs)
        matrices = {name: shape for name, shape in self.shapes.items() if len(shape) > 1}
        rows = {name: shape[:1] for name, shape in matrices.items()}
        columns = {name: torch.Size([shape[1:].numel()]) for name, shape in matrices.items()}
        self.row_shapes, self.column_shapes = {**self.shapes, **rows}, columns
        self.L_shapes, self.K_shapes = (
            {name: torch.Size([*shape, *shape]) for name, shape in shapes.items()}
            for shapes in (rows, columns)
        )
        with torch.no_grad():
            starts = [
                rho_of(F.softplus(rho).flatten(1).mean(1)) if name in rows else rho.flatten()
                for name, rho in self.split(self.rho).items()
            ]
        self.rho = nn.Parameter(torch.cat(starts))
        for name, shapes in (("log_tau", columns), ("L", self.L_shapes), ("K", self.K_shapes)):
            count = sum(shape.numel() for shape in shapes.values())
            self.register_parameter(name, nn.Parameter(self.loc.new_zeros(count)))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every latent site; arguments as the model's, used at the first call only."""
        if not self.shapes:
            self._set_up(*args, **kwargs)
        locs, sigmas = self.split(self.loc), self._rows()
        factors = self._factors(sigmas)
        return {
            name: self._sample_matrix(name, locs[name], *factors[name])
            if name in factors
            else self._sample(name, locs[name], sigmas[name])
            for name in self.shapes
        }

    def _sample_matrix(self, name: str, loc: Tensor, A: Tensor, B: Tensor) -> Tensor:
        whole, flat = loc.shape, loc.flatten(1)
        steps: list[Transform] = [RowsAndColumns(flat, A, B)]
        if whole != flat.shape:
            steps.append(ReshapeTransform(flat.shape, whole, cache_size=1))
        noise = dist.Normal(torch.zeros_like(flat), torch.ones_like(flat)).to_event(2)
        return pyro.sample(name, dist.TransformedDistribution(noise, steps))

    def _factors(self, sigmas: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """A (O, O) and B (I, I) of each matrix."""
        taus = split(self.log_tau.exp(), self.column_shapes)
        L, K = split(self.L, self.L_shapes), split(self.K, self.K_shapes)
        return {name: (_triangular(sigmas[name], L[name]), _triangular(taus[name], K[name])) for name in taus}

    def _rows(self) -> dict[str, Tensor]:
        """The scale of each row of a matrix, and of each number of a vector."""
        return split(F.softplus(self.rho), self.row_shapes)

    @property
    def sigma(self) -> Tensor:
        r"""Standard deviations of all D weights; of a matrix, squared, :math:`(A A^T)_{oo} (B B^T)_{ii}`."""
        scales = self._rows()
        for name, (A, B) in self._factors(scales).items():
            scales[name] = torch.outer(A.norm(dim=1), B.norm(dim=1))
        return torch.cat([scale.flatten() for scale in scales.values()])


class RowsAndColumns(Transform):
    """From Z to W = M + A Z B^T, with lower triangular A (O, O) and B (I, I) of positive diagonals."""

    domain = codomain = constraints.independent(constraints.real, 2)
    bijective = True

    def __init__(self, loc: Tensor, A: Tensor, B: Tensor, cache_size: int = 1) -> None:
        super().__init__(cache_size)  # the density of a draw then needs no inverse
        self.loc, self.A, self.B = loc, A, B

    def with_cache(self, cache_size: int = 1) -> "RowsAndColumns":
        """The same with another cache."""
        return self if cache_size == self._cache_size else type(self)(self.loc, self.A, self.B, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.A @ x @ self.B.mT

    def _inverse(self, y: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(self.A, y - self.loc, upper=False)
        return torch.linalg.solve_triangular(self.B, half.mT, upper=False).mT

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """I log det A + O log det B, for every W of a batch."""
        rows, columns = self.loc.shape
        found = columns * self.A.diagonal().log().sum() + rows * self.B.diagonal().log().sum()
        return found.expand(x.shape[:-2])


def _triangular(scales: Tensor, below: Tensor) -> Tensor:
    """diag(scales) (1 + the part of `below` under its diagonal)."""
    eye = torch.eye(len(scales), dtype=scales.dtype, device=scales.device)
    return scales[:, None] * (eye + below.tril(-1))
