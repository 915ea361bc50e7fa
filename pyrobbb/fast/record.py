"""Record a tensor program once with `make_fx`, and compile the recording with inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from pyrobbb.fast.cheap import RULES

Program = Callable[..., Any]

# Fused multiply-add, and as many threads as torch has at the call, not at compile time.
_INDUCTOR = {"cpp.enable_floating_point_contract_flag": "fast", "cpp.dynamic_threads": True}


class CannotRecordError(RuntimeError):
    """A program cannot be recorded; the message says why."""


class CannotCompileError(RuntimeError):
    """A recorded program cannot be compiled on this machine; the message says why."""


def record(program: Program, inputs: Sequence[Tensor]) -> GraphModule:
    """The aten operations that `program(*inputs)` runs, as one graph without Python or Pyro in it.

    Raises:
        CannotRecordError: If the program looks at a tensor's value or otherwise resists.
    """
    try:
        return make_fx(program, decomposition_table=RULES, tracing_mode="fake", _allow_non_fake_inputs=True)(
            *inputs
        )
    except Exception as error:
        raise CannotRecordError(_first_line(error)) from error


def compile(graph: GraphModule, inputs: Sequence[Tensor]) -> Program:
    """`graph`, compiled by inductor for the shapes of `inputs`; inductor keeps the result on disk.

    Neither dynamo nor any global setting of torch.compile takes part, and none is changed.

    Raises:
        CannotCompileError: If there is no working compiler, or torch is too old.
    """
    try:
        import torch._inductor as inductor

        with inductor.config.patch(_INDUCTOR):
            return inductor.standalone_compile(graph, list(inputs), dynamic_shapes="from_example_inputs")
    except Exception as error:
        raise CannotCompileError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
