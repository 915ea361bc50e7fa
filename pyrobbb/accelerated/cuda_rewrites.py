"""Rewrites of a recorded program for CUDA, where a tiny kernel takes microseconds too, and a product that
does something else besides takes another one's time.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten: Any = torch.ops.aten


def rewritten(graph: GraphModule, *, tf32: bool) -> GraphModule:
    """`graph` with every rewrite of this file, in place; `tf32` if its products may be in TF32."""
    for node in list(graph.graph.nodes):
        if node.target is _aten.relu.default and tf32:
            _activate_in_product(graph, node)
        elif node.target is _aten.scatter_add.default:
            _compare(graph, node)
    for node in list(graph.graph.nodes):
        if node.target is _aten.addmm.default:
            _add_bias_later(graph, node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _activate_in_product(graph: GraphModule, relu: Node) -> None:
    """A linear layer and its ReLU are one call of the library of products, which is as fast in TF32."""
    product = relu.args[0]
    assert isinstance(product, Node)
    if product.target is not _aten.addmm.default or len(product.users) > 1 or product.kwargs:
        return
    with graph.graph.inserting_before(relu):
        both = graph.graph.call_function(_aten._addmm_activation.default, product.args)
    _replace(graph, relu, both)
    graph.graph.erase_node(product)


def _add_bias_later(graph: GraphModule, layer: Node) -> None:
    """A product without the bias, which fuses with what comes after it.

    With the bias the library takes other kernels, in float32 slower ones on an H200. It is subtracted because
    inductor turns a product and an addition into one call again.
    """
    bias, a, b = layer.args
    assert isinstance(bias, Node)
    if bias.meta["val"].dim() != 1 or layer.kwargs:
        return
    with graph.graph.inserting_before(layer):
        product = graph.graph.call_function(_aten.mm.default, (a, b))
        negative = graph.graph.call_function(_aten.neg.default, (bias,))
        value = graph.graph.call_function(_aten.sub.Tensor, (product, negative))
    _replace(graph, layer, value)


def _compare(graph: GraphModule, scatter: Node) -> None:
    """Write one value per row scattered into zeros, as in the gradient of a class's log-probability, as a
    comparison: it fuses with what comes before and after, which a scatter never does.
    """
    zeros, dim, index, source = scatter.args
    assert isinstance(zeros, Node)
    assert isinstance(index, Node)
    assert isinstance(dim, int)
    shape, dim = zeros.meta["val"].shape, dim % zeros.meta["val"].dim()
    one_per_row = index.meta["val"].shape == (*shape[:dim], 1, *shape[dim + 1 :])
    if zeros.target not in (_aten.new_zeros.default, _aten.zeros.default) or not one_per_row:
        return
    like = {"dtype": zeros.meta["val"].dtype, "device": zeros.meta["val"].device}
    with graph.graph.inserting_before(scatter):
        place = graph.graph.call_function(_aten.arange.default, (shape[dim],), {"device": like["device"]})
        place = graph.graph.call_function(_aten.view.default, (place, [-1] + [1] * (len(shape) - 1 - dim)))
        chosen = graph.graph.call_function(_aten.eq.Tensor, (place, index))
        nothing = graph.graph.call_function(_aten.scalar_tensor.default, (0.0,), like)
        value = graph.graph.call_function(_aten.where.self, (chosen, source, nothing))
    _replace(graph, scatter, value)


def _replace(graph: GraphModule, old: Node, new: Node) -> None:
    new.meta.update(old.meta)
    old.replace_all_uses_with(new)
    graph.graph.erase_node(old)
