"""Minibatches of one shape, for programs that are compiled for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb.accelerated.agreement import check_still
from pyrobbb.accelerated.compilation_cost import Prepare
from pyrobbb.accelerated.record import Program
from pyrobbb.data.dataset import Split


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

    def _others(self, value: Tensor) -> tuple[torch.dtype, torch.Size]:
        return value.dtype, value.shape[: self.dim] + value.shape[self.dim + 1 :]

    def __call__(
        self, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Rows, targets and how often each row counts; the first row stands in, 0 times, for those missing.

        None if the batch is longer, empty, or differs in more than its length, such as in its type.
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


class FixedProgram:
    """`program(*inputs, x, y, counts)`, prepared for batches of one shape; called as the program is.

    It gives KL, NLL and gradients. A shorter batch, such as the last of an epoch, is filled up with rows that
    do not count; with any other the program runs as it is.

    Args:
        program: Any program of a minibatch.
        inputs: Those before the batch, such as they will be.
        batch: `(x, y)` of the usual shape.
        prepare: `compiled_program` or `replay`; None leaves the program as it is.
        dim: The dimension of the rows.

    Raises:
        CannotRecordError: If the program looks at a tensor's value.
        CannotCompileError: If it cannot be compiled.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Tensor],
        batch: tuple[Tensor, Tensor] | None,
        prepare: Prepare | None,
        dim: int = 0,
    ) -> None:
        self.program = program
        self.fixed: FixedBatch | None = None
        if batch is not None and prepare is not None:
            self.fixed = FixedBatch(*batch, inputs[0].dtype, dim)
            self.prepared = prepare(program, [*inputs, *self.fixed.example])
        self.recorded = self.fixed is not None  # Python values that it reads stay as then

    def __call__(self, *given: Any) -> Any:
        *inputs, x, y, counts = given
        batch = None if self.fixed is None else self.fixed(x, y, counts)
        return self.program(*given) if batch is None else self.prepared(*inputs, *batch)

    def check_still(self, inputs: Sequence[Tensor], rows: Split, model: nn.Module) -> None:
        """Raise ValueError if the program computes something else by now than what was recorded of it.

        A recording keeps what the network reads besides tensors, such as a temperature that a callback
        changes, as it stood. `rows` are a minibatch, and the buffers of `model` stay as they are. Gradients
        are not compared: near an optimum they are what rounding leaves of parts that cancel.
        """
        batch = None if self.fixed is None else self.fixed(rows.x, rows.y, rows.weights)
        if batch is not None:
            given = *inputs, *batch
            check_still(lambda: self.prepared(*given)[:2], lambda: self.program(*given)[:2], rows, model)
