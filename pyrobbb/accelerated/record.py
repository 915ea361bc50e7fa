"""Record the tensor operations of a program as one graph, with `make_fx`, to compile or to replay it."""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributions import Distribution
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from pyrobbb._support.text import kind_and_reason
from pyrobbb.accelerated.fast_math import RULES

Program = Callable[..., Any]
METHODS = (  # whose arguments are those of the operation, in its order
    "abs", "add", "addmm", "bmm", "clamp_min", "cos", "div", "exp", "expand", "log", "log1p",
    "logsumexp", "mean", "mm", "mul", "neg", "permute", "pow", "reciprocal", "reshape", "rsqrt",
    "sigmoid", "sin", "split_with_sizes", "sqrt", "squeeze", "sub", "sum", "t", "tanh", "transpose",
    "unsqueeze",
)  # fmt: skip


class CannotRecordError(RuntimeError):
    """A program cannot be recorded; the message says why."""


Rules = Mapping[Any, Callable[..., Any]]


def record(program: Program, inputs: Sequence[Tensor], rules: Rules = RULES) -> GraphModule:
    """The aten operations that `program(*inputs)` runs, as one graph without Python or Pyro in it.

    `rules` say by what an operation is replaced; the usual ones are for code that is to be compiled.

    Raises:
        CannotRecordError: If the program looks at a tensor's value or otherwise resists.
    """
    return _turn_products(_traced(program, inputs, rules))


def replay(program: Program, inputs: Sequence[Tensor]) -> Program:
    """`program` for inputs of these shapes: the same operations to the bit, without Python's part of them.

    Of what else it holds on to, such as parameters, it sees changes. For a small network Python's part is
    most of the time: autograd, vmap, Pyro.

    Raises:
        CannotRecordError: If the program looks at a tensor's value or otherwise resists.
    """
    graph, held = lift(_as_methods(_shortened(_traced(program, inputs, {}))), len(inputs))
    return lambda *given: graph.forward(*given, *detached(held))


def _traced(program: Program, inputs: Sequence[Tensor], rules: Rules) -> GraphModule:
    def plainly(*given: Tensor) -> Any:  # make_fx would mistake the `self` of a bound method for an input
        return program(*given)

    before = _other_generators()
    try:
        with torch.no_grad(), _values_unchecked(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's deprecations of its own functions
            trace = make_fx(
                plainly, decomposition_table=rules, tracing_mode="fake", _allow_non_fake_inputs=True
            )
            graph = trace(*inputs)
    except Exception as error:
        raise CannotRecordError(kind_and_reason(error)) from error
    found = [value for node in graph.graph.nodes for value in tree_leaves(node.meta.get("val"))]
    if any(type(n) is not int for value in found for n in getattr(value, "shape", ())):
        raise CannotRecordError("the size of one of its tensors depends on values")
    if _other_generators() != before:
        raise CannotRecordError("it draws from Python's or numpy's generator, and would repeat the number")
    return graph


@contextmanager
def _values_unchecked() -> Iterator[None]:
    """Without a distribution's check of values: one that was expanded keeps it where validation is off."""
    check = Distribution._validate_sample
    Distribution._validate_sample = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Distribution._validate_sample = check  # type: ignore[method-assign]


def _other_generators() -> tuple[Any, ...]:
    """The states of the global generators besides torch's, whose draws a recording takes for constants."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


def _shortened(graph: GraphModule) -> GraphModule:
    """Without the operations that return what there is already: a fifth of a step's.

    Views become `reshape`: a real tensor may lie in memory otherwise than the fake one that was traced, and a
    view of it is then refused.
    """
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        source = _returned(node)
        if source is not None:
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
        elif node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
    for node in reversed(graph.graph.nodes):
        if node.target is aten.t.default and not node.users:  # the first of two
            graph.graph.erase_node(node)
    return graph


def _returned(node: Any) -> Any:
    """The node of the value that an operation returns as it is; None if it makes another."""
    aten, source = torch.ops.aten, next(iter(node.args), node)
    if node.target is aten.t.default:
        return source.args[0] if source.target is aten.t.default else None
    if node.target in (aten.view.default, aten._unsafe_view.default, aten.expand.default):
        return source if _shape(node) == _shape(source) else None
    return source if node.target is aten.detach.default else None


def _as_methods(graph: GraphModule) -> GraphModule:
    """With `x.mul(y)` in the place of `aten.mul.Tensor(x, y)`, which takes Python twice as long to call.

    They are bound to one kernel: a step of a small network spends a quarter less.
    """
    for node in list(graph.graph.nodes):
        if not isinstance(node.target, OpOverload) or node.kwargs:  # such as alpha
            continue
        name = node.target._schema.name.removeprefix("aten::")
        if name in METHODS and isinstance(node.args[0], Node):  # not the number of 2 ** x
            with graph.graph.inserting_before(node):
                method = graph.graph.call_method(name, node.args)
            method.meta = dict(node.meta)
            node.replace_all_uses_with(method)
            graph.graph.erase_node(node)
    return graph


def _turn_products(graph: GraphModule) -> GraphModule:
    """Write (A B)^T as B^T A^T where the transpose of a batched product is all that is used of it.

    The gradient of a linear layer's weights then has the weights' own order. Transposing it afterwards took
    a third of a batched update.
    """
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        if node.target is not aten.transpose.int or node.args[1:] != (1, 2):
            continue
        chain = [node, node.args[0]]
        while chain[-1].target is aten.view.default and _shape(chain[-1]) == _shape(chain[-1].args[0]):
            chain.append(chain[-1].args[0])
        product = chain[-1]
        if product.target is not aten.bmm.default or any(len(link.users) != 1 for link in chain[1:]):
            continue
        a, b = product.args
        with graph.graph.inserting_before(product):
            turned = [graph.graph.call_function(aten.transpose.int, (factor, 1, 2)) for factor in (b, a)]
            node.replace_all_uses_with(graph.graph.call_function(aten.bmm.default, tuple(turned)))
        for link in chain:
            graph.graph.erase_node(link)
    graph.recompile()
    return graph


def _shape(node: Any) -> torch.Size:
    return node.meta["val"].shape


def lift(graph: GraphModule, inputs: int) -> tuple[GraphModule, list[Tensor]]:
    """Make inputs of the tensors that a recording holds on to, such as parameters, after its own `inputs`.

    They are the very tensors that the program used, to be `detached` at each call: a change of them, even of
    the memory that they lie in, changes its result, until a CUDA graph is made of it.
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
    return graph, list(held.values())


def detached(held: Sequence[Tensor]) -> list[Tensor]:
    """What `lift` found, where it lies now."""
    return [value.detach() for value in held]
