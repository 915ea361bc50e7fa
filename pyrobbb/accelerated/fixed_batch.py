"""Minibatches of one shape, for programs that are compiled for it."""

from __future__ import annotations

import torch
from torch import Tensor


class FixedBatch:
    """Fills a shorter minibatch, such as the last of an epoch, up to the shape of (x, y).

    A program is prepared for `example`, and every batch lies in memory as that does.

    Args:
        x: Inputs of a batch of the usual size.
        y: Their targets.
        dtype: Of the counts: that of the log-likelihood.
        dim: The dimension of the rows, in both.
    """

    def __init__(self, x: Tensor, y: Tensor, dtype: torch.dtype, dim: int = 0) -> None:
        self.dim, self.rows = dim, x.shape[dim]
        self.others = self._others(x), self._others(y)
        self.once = torch.ones(x.shape[: dim + 1], dtype=dtype, device=x.device)
        self.example = x.contiguous(), y.contiguous(), self.once

    def _others(self, value: Tensor) -> torch.Size:
        return value.shape[: self.dim] + value.shape[self.dim + 1 :]

    def __call__(
        self, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Rows, targets and how often each row counts; the first row stands in, 0 times, for those missing.

        None if the batch is longer, empty, or differs in more than its length.
        """
        size = x.shape[self.dim]
        if (self._others(x), self._others(y)) != self.others or not 0 < size <= self.rows:
            return None
        counts = self.once if counts is None else counts.to(self.once)
        x, y = x.contiguous(), y.contiguous()
        if size == self.rows:
            return x, y, counts
        place = torch.arange(self.rows, device=x.device)
        rows = torch.where(place < size, place, 0)
        x, y, counts = (part.index_select(self.dim, rows) for part in (x, y, counts))
        return x, y, counts * (place < size)
