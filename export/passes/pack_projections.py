"""Compute queries, keys and values with one product.

Spec: com.microsoft.GroupQueryAttention and FusedMatMul, version 1 (onnxruntime,
docs/ContribOperators.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.passes.nodes import CONTRIB, Insert, rule
from ortolan.export.values import (
    is_weight,
    only_user,
    replace_value,
    static_shape,
)

_BETWEEN = {"LayerNormalization", "RMSNormalization", "Reshape", "Transpose"}
"""Operators allowed between a projection and attention."""


@rule("GroupQueryAttention")
def pack_projections(graph: ir.Graph, node: ir.Node) -> bool:
    """Join the products of one tensor that become queries, keys and values.

        x -> FusedMatMul(wq) -> q            x -> FusedMatMul(wq | wk | wv) -> q | k | v
        x -> FusedMatMul(wk) -> k   becomes
        x -> FusedMatMul(wv) -> v

    One product of many rows is faster than three of fewer, above all for a single token. A later
    pass removes the nodes that lose their readers.

    Case 1: the products enter attention as they are, or with biases: it reads the joined product.
    Case 2: they are also normed or moved: the joined product is split.
    Case 3: the products are of different tensors, or only some have a bias: keep.
    """
    entering = node.inputs[:3]
    parts = [part for part in map(_projection, entering) if part is not None]
    biases = [part.bias for part in parts if part.bias is not None]
    has_one_input = len({part.product.inputs[0] for part in parts}) == 1
    if len({part.product for part in parts}) < 3 or not has_one_input:
        return False  # Case 3
    if len(biases) not in (0, 3):
        return False  # Case 3
    packed = _join(graph, parts, biases)
    if all(part.out is value for part, value in zip(parts, entering, strict=True)):
        # Case 1
        for place, value in enumerate((packed, None, None)):
            node.replace_input_with(place, value)
    else:
        # Case 2
        _split(graph, packed, parts)
    return True


class _Projection(NamedTuple):
    """A product with a weight `(N, K)`, its bias `(N,)` if any, and the result."""

    product: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    out: ir.Value


def _projection(value: ir.Value | None) -> _Projection | None:
    """The product that a value comes from, through norms and moves."""
    while value is not None and only_user(value) is not None:
        node = value.producer()
        if node is not None and node.op_type in _BETWEEN:
            value = node.inputs[0]
        else:
            return _product(value, node)
    return None


def _product(value: ir.Value, node: ir.Node | None) -> _Projection | None:
    """The product that computes a value, alone or with a bias."""
    bias = None
    if node is not None and node.op_type == "Add":
        vectors = [v for v in node.inputs if v is not None and is_weight(v, axes=1)]
        products = [v for v in node.inputs if v not in vectors]
        if len(vectors) != 1 or products[0] is None or only_user(products[0]) is None:
            return None
        (bias,), node = vectors, products[0].producer()
    if node is None or node.op_type != "FusedMatMul" or not node.attributes.get_int("transB", 0):
        return None
    weight = node.inputs[1]
    if weight is None or not is_weight(weight, axes=2):
        return None
    return _Projection(node, weight, bias, value)


def _join(graph: ir.Graph, parts: Sequence[_Projection], biases: Sequence[ir.Value]) -> ir.Value:
    """Insert one product with the rows of all, `(B, S, N)`, in the place of the first."""
    first = _first_product(graph, parts)
    weight = derive(graph, [part.weight for part in parts])
    new, like = Insert(graph, first), parts[0].out
    outs = [new.FusedMatMul(parts[0].product.inputs[0], weight, transB=1, domain=CONTRIB)]
    if biases:
        outs.append(new.Add(outs[0], derive(graph, biases)))
    for out in outs:
        out.type = like.type
        if like.shape is not None:
            out.shape = ir.Shape([*like.shape[:-1], static_shape(weight)[0]])
    return outs[-1]


def _split(graph: ir.Graph, packed: ir.Value, parts: Sequence[_Projection]) -> None:
    """Give the readers of each product its rows of the joined one."""
    first = _first_product(graph, parts)
    rows = [static_shape(part.weight)[0] for part in parts]
    outs = Insert(graph, first).several("Split", 3, packed, rows, axis=-1)
    for part, out in zip(parts, outs, strict=True):
        replace_value(part.out, out)


def _first_product(graph: ir.Graph, parts: Sequence[_Projection]) -> ir.Node:
    products = {part.product for part in parts}
    return next(node for node in graph if node in products)
