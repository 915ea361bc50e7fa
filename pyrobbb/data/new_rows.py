"""New rows to predict, as a user has them, made what a fitted model takes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrobbb._support.model_inputs import has_tokens
from pyrobbb.data.arrays import ArrayLike, as_inputs, as_targets, refuse_several
from pyrobbb.data.columns import Columns, Names
from pyrobbb.data.frames import by_target, check_same_rows

if TYPE_CHECKING:
    from pyrobbb.bnn import BayesianNetwork

UNLIKELY = 20.0  # standard deviations that most rows are nearer to the mean of the training rows

logger = logging.getLogger(__name__)


def new_rows(
    model: BayesianNetwork,
    columns: Columns | Names | None,
    x: ArrayLike,
    y: ArrayLike | None,
    *,
    beyond: float,
) -> tuple[Tensor, Tensor | None]:
    """Arrays, lists and tables as `from_arrays` takes them, in the type of the training rows.

    A model that was never fitted is taken for one of tokens, or of rows in the precision of its weights.
    """
    seen = model.input_dtype
    whole = has_tokens(model) if seen is None else not seen.is_floating_point
    dtype = model.dtype if seen is None or whole else seen
    check_same_rows({"x": x, "y": y})
    table = columns if isinstance(columns, Columns) else None
    y = by_target("y", y, columns.targets if columns else ())
    if table and table.classes and not isinstance(y, Tensor | None):
        y = table.labels("y", y)
    if table and isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 2:
        standardised = x[:, : x.shape[1] - table.raw].abs()
        usual = standardised.median(0).values if len(x) else standardised  # a rare category alone is far off
        if bool((usual > UNLIKELY).any()):
            logger.warning(
                "x is a tensor, so it is taken to be standardised already, but it holds values up to %.3g; "
                "for rows in the table's own units pass an array, such as x.numpy()",
                float(standardised.max()),
            )
    if table and not isinstance(x, Tensor):
        x = table.inputs(x, beyond)
    elif isinstance(columns, Names):
        x = columns.inputs(x)
    if isinstance(x, Tensor):
        pixels = x.dtype == torch.uint8 and not whole and not table
        x = x.to(dtype) if x.is_floating_point() or pixels else x
    else:
        refuse_several(x, y)
        x = as_inputs("x", x, None if whole else dtype)
    task = model.likelihood.task
    if y is not None and not (isinstance(y, Tensor) and task == "classification"):
        y = as_targets("y", y, task, dtype)
    return x, y
