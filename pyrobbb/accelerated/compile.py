"""Record a tensor program once with `make_fx`, and compile the recording with inductor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from pyrobbb.accelerated.fast_math import RULES

Program = Callable[..., Any]

# Fused multiply-add, and as many threads as torch has at the call, not at compile time.
_INDUCTOR = {"cpp.enable_floating_point_contract_flag": "fast", "cpp.dynamic_threads": True}


KEPT = 256  # compiled programs, a step being a few
_COMPILED: dict[Hashable, Program] = {}


class CannotRecordError(RuntimeError):
    """A program cannot be recorded; the message says why."""


class CannotCompileError(RuntimeError):
    """A recorded program cannot be compiled on this machine; the message says why."""


def record(program: Program, inputs: Sequence[Tensor]) -> GraphModule:
    """The aten operations that `program(*inputs)` runs, as one graph without Python or Pyro in it.

    Raises:
        CannotRecordError: If the program looks at a tensor's value or otherwise resists.
    """

    def plainly(*given: Tensor) -> Any:  # make_fx would mistake the `self` of a bound method for an input
        return program(*given)

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's deprecations of its own functions
            return make_fx(
                plainly, decomposition_table=RULES, tracing_mode="fake", _allow_non_fake_inputs=True
            )(*inputs)
    except Exception as error:
        raise CannotRecordError(_first_line(error)) from error


def lift(graph: GraphModule, inputs: int) -> tuple[GraphModule, list[Tensor]]:
    """Make inputs of the tensors that a recording holds on to, such as parameters, after its own `inputs`.

    They are the very tensors that the program used: whoever changes them in place changes its result.
    """
    nodes = graph.graph.nodes
    last = [node for node in nodes if node.op == "placeholder"][inputs - 1]
    held: dict[str, Tensor] = {}
    lifted: dict[str, Any] = {}
    for node in list(nodes):
        if node.op != "get_attr":
            continue
        if node.target not in held:
            held[node.target] = getattr(graph, node.target)
            with graph.graph.inserting_after(last):
                last = lifted[node.target] = graph.graph.placeholder(f"held_{len(held)}")
            last.meta = dict(node.meta)
        node.replace_all_uses_with(lifted[node.target])
        graph.graph.erase_node(node)
    for name in held:
        delattr(graph, name)
    graph.graph.lint()
    graph.recompile()
    return graph, [value.detach() for value in held.values()]


def compile(graph: GraphModule, inputs: Sequence[Tensor]) -> Program:
    """`graph`, compiled by inductor for the shapes of `inputs`; inductor keeps the result on disk.

    Neither dynamo nor any global setting of torch.compile takes part, and none is changed. The same graph for
    inputs of the same kind is compiled once: inductor never lets go of a program that it has loaded.

    Raises:
        CannotCompileError: If there is no working compiler, or torch is too old.
    """
    key = _key(graph, inputs)
    if key in _COMPILED:
        _COMPILED[key] = _COMPILED.pop(key)  # the last to be used
        return _COMPILED[key]
    program = _compile(graph, inputs)
    if key is not None:
        _COMPILED[key] = program
        if len(_COMPILED) > KEPT:
            del _COMPILED[next(iter(_COMPILED))]
    return program


def _key(graph: GraphModule, inputs: Sequence[Tensor]) -> Hashable:
    """What a compiled program depends on; None if it holds on to tensors that are no inputs."""
    if any(node.op == "get_attr" for node in graph.graph.nodes):
        return None
    storages = [value.untyped_storage().data_ptr() for value in inputs]
    kinds = (
        (
            value.dtype,
            value.device,
            value.shape,
            value.stride(),
            value.data_ptr() % 64,
            storages.index(storage),
        )
        for value, storage in zip(inputs, storages, strict=True)
    )
    return graph.code, torch.get_num_threads(), *kinds


def _compile(graph: GraphModule, inputs: Sequence[Tensor]) -> Program:
    try:
        import torch._inductor as inductor

        if not hasattr(inductor, "standalone_compile"):
            raise CannotCompileError(f"torch {torch.__version__} cannot compile a recording; 2.8 can")
        # Code for one thread is wrong on two: each would do all of the work, and a result that is changed in
        # place is changed twice.
        threads = {"cpp.threads": max(2, torch.get_num_threads())}
        with inductor.config.patch(_INDUCTOR | threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return inductor.standalone_compile(graph, list(inputs), dynamic_shapes="from_example_inputs")
    except CannotCompileError:
        raise
    except Exception as error:
        raise CannotCompileError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
