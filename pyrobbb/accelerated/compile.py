"""Compile a recorded tensor program with inductor, once for inputs of one kind, and check what it gives."""

import logging
import os
import platform
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from pyrobbb._support.device import cpu_info
from pyrobbb._support.random_state import isolated
from pyrobbb._support.text import kind_and_reason, one_line
from pyrobbb.accelerated.record import Program, detached, lift, record

Pass = Callable[[], Any]

# Fused multiply-add; as many threads as torch has at the call, not at compile time; torch's own random
# numbers, so that a program with dropout draws the same masks compiled and uncompiled; on CUDA no padding of
# products, which would be decided by a timing.
_INDUCTOR = {
    "cpp.enable_floating_point_contract_flag": "fast",
    "cpp.dynamic_threads": True,
    "fallback_random": True,
    "shape_padding": False,
}
# Give a buffer to what several others use: inductor follows a formula down to its inputs at each use, so that
# polynomials of polynomials take a minute to compile, and drops the buffers again where it fuses their loops.
_BUFFERS = {"realize_opcount_threshold": 8}
KEPT = 256  # compiled programs, a step being a few
_COMPILED: dict[Hashable, Program] = {}


class CannotCompileError(RuntimeError):
    """A recorded program cannot be compiled on this machine; the message says why."""


def compile(graph: GraphModule, inputs: Sequence[Tensor]) -> Program:
    """`graph`, compiled by inductor for the shapes of `inputs`; inductor keeps the result on disk.

    Neither dynamo nor any global setting of torch.compile takes part, and none is changed. The same graph for
    inputs of the same kind is compiled once: inductor never lets go of a program that it has loaded. Whether
    compiled now or found on disk, it is run once on copies of `inputs` and compared with the graph.

    Raises:
        CannotCompileError: If there is no working compiler, or the compiled program gives other results than
            the graph.
    """
    key = _key(graph, inputs)
    if key in _COMPILED:
        _COMPILED[key] = _COMPILED.pop(key)  # the last to be used
        return _COMPILED[key]
    try:
        expected = _tried(graph, inputs)  # first, because inductor may change the graph
    except RuntimeError as error:  # torch records the backward pass of an LSTM that it cannot replay
        raise CannotCompileError(f"its recording cannot be run: {one_line(error, 150)}") from error
    program = _compile(graph, inputs)
    if not _same(_tried(program, inputs), expected):
        raise CannotCompileError("the compiled program and the program itself give different results")
    if key is not None:
        _COMPILED[key] = program
        if len(_COMPILED) > KEPT:
            del _COMPILED[next(iter(_COMPILED))]
    return program


def compiled_program(program: Program, inputs: Sequence[Tensor]) -> Program:
    """`program` for inputs of these shapes; of what else it holds on to, such as parameters, it sees changes.

    Raises:
        CannotRecordError, CannotCompileError: If it cannot be.
    """
    graph, held = lift(record(program, inputs), len(inputs))
    run = compile(graph, [*inputs, *detached(held)])
    return lambda *given: run(*given, *detached(held))


def prepared(program: Program, inputs: Sequence[Tensor], *, compiled: bool = True) -> Program:
    """`program` for inputs of these shapes: compiled, or else recorded, which saves Python's part of it.

    Warns in one line if it cannot be compiled.

    Raises:
        CannotRecordError: If a part of it looks at a tensor's value.
    """
    with torch.no_grad(), isolated():
        if compiled:
            try:
                return compiled_program(program, inputs)
            except CannotCompileError as reason:
                warnings.warn(f"running without compiled code, several times slower: {reason}", stacklevel=3)
        return record(program, inputs, rules={})


def bind(program: Program, *inputs: Tensor, compiled: bool) -> Pass:
    """`program` on these very tensors, whatever they will hold; compiled if asked, by `compiled_program`.

    Raises:
        CannotRecordError, CannotCompileError: If asked, and it cannot be.
    """
    return partial(compiled_program(program, inputs) if compiled else program, *inputs)


def _same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Whether both agree up to rounding, wherever the second is finite."""
    finite = [(a[b.isfinite()].float(), b[b.isfinite()].float()) for a, b in zip(ours, theirs, strict=True)]
    return all(near(a, b) for a, b in finite)


def near(ours: Tensor, theirs: Tensor, slack: float = 0.0) -> bool:
    """Whether both agree up to the rounding of a long computation, and `slack`."""
    return float((ours - theirs).norm()) <= 2e-3 * float(theirs.norm()) + 1e-4 + slack


def _tried(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What the program returns, and its inputs as it leaves them; the given ones are unchanged."""
    devices = {value.device for value in inputs if value.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(list(devices)):
        given = [_copy(value) for value in inputs]
        return [value for value in tree_leaves(program(*given)) if value is not None] + given


def _copy(value: Tensor) -> Tensor:
    if any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)):
        return value  # expanded, so no program changes it in place
    return value.new_empty_strided(value.shape, value.stride()).copy_(value)


def _key(graph: GraphModule, inputs: Sequence[Tensor]) -> Hashable:
    """What a compiled program depends on; None if it holds on to tensors that are not inputs."""
    if any(node.op == "get_attr" for node in graph.graph.nodes):
        return None
    storages = [value.untyped_storage().data_ptr() for value in inputs]
    kinds = (
        (v.dtype, v.device, v.shape, v.stride(), v.data_ptr() % 64, storages.index(storage))
        for v, storage in zip(inputs, storages, strict=True)
    )
    return graph.code, torch.get_num_threads(), *kinds


def _compile(graph: GraphModule, inputs: Sequence[Tensor]) -> Program:
    try:
        import torch._inductor as inductor

        # Code for one thread is wrong on two: each would do all of the work, and a result that is changed in
        # place is changed twice.
        threads = {"cpp.threads": max(2, torch.get_num_threads())}
        cuda = any(value.is_cuda for value in inputs)
        options = _INDUCTOR | threads | ({} if cuda else _BUFFERS)
        cache = nullcontext() if cuda else _own_cache()
        with cache, _unlogged(), inductor.config.patch(options), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return inductor.standalone_compile(graph, list(inputs), dynamic_shapes="from_example_inputs")
    except Exception as error:
        raise CannotCompileError(kind_and_reason(error)) from error


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without inductor's word that a program, such as one with a Cholesky factor, cannot be kept on disk."""
    logger = logging.getLogger("torch._inductor.standalone_compile")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _own_cache() -> Iterator[None]:
    """Keep programs for different instruction sets apart on disk.

    Inductor's key has no instruction set in it: a program for AVX-512 would be loaded, and compute nonsense,
    under AVX2, as in a home folder that two machines share. For CUDA it does name the device; finding out the
    instruction set takes a minute in each process where the CPU has many.
    """
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")  # inductor's modules set it

    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    # the instruction set, if the system reports it
    processor = cpu_info("flags", "Features") or f"{platform.machine()} {platform.processor()}"
    what = f"{torch.backends.cpu.get_cpu_capability()} {pick_vec_isa()} {processor}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(cache_dir()) / sha256(what.encode()).hexdigest()[:16])
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
