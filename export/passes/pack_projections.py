"""Queries, keys and values come from one product.

Spec: com.microsoft.GroupQueryAttention and FusedMatMul, version 1 (onnxruntime,
docs/ContribOperators.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.values import (
    insert_constant,
    is_weight,
    only_user,
    replace_value,
    static_shape,
)

_BETWEEN = {"LayerNormalization", "RMSNormalization", "Reshape", "Transpose"}
"""What may be done to a projection before it enters attention."""


class PackProjections(ir.passes.InPlacePass):
    """The products of one tensor that become queries, keys and values are joined.

    One product of many rows is faster than three of fewer, with one token most of all.

    What is not read any more is left to a later pass.

    Case 1: at most vectors are added to the products: the node takes them as one tensor.
    Case 2: they are normed or moved as well: the joined product is split.
    Case 3: the products are of several tensors, or some have vectors added and others have not:
        they stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "GroupQueryAttention" and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


class _Projection(NamedTuple):
    """A product with a weight `(N, K)`, a bias `(N,)` if it is added, and what comes out."""

    product: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    out: ir.Value


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    entering = node.inputs[:3]
    found = [part for part in map(_projection, entering) if part is not None]
    biases = [part.bias for part in found if part.bias is not None]
    is_one_tensor = len({part.product.inputs[0] for part in found}) == 1
    if len({part.product for part in found}) < 3 or not is_one_tensor:
        return False  # Case 3
    if len(biases) not in (0, 3):
        return False  # Case 3
    packed = _join(graph, found, biases)
    if all(part.out is value for part, value in zip(found, entering, strict=True)):
        # Case 1
        for place, value in enumerate((packed, None, None)):
            node.replace_input_with(place, value)
    else:
        # Case 2
        _split(graph, packed, found)
    return True


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
    """A product, or the sum of one and a vector."""
    bias = None
    if node is not None and node.op_type == "Add":
        vectors = [each for each in node.inputs if each is not None and is_weight(each, axes=1)]
        products = [each for each in node.inputs if each not in vectors]
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
    """One product with the rows of all, `(B, S, N)`, in the place of the first of them."""
    products = {part.product for part in parts}
    first = next(node for node in graph if node in products)
    weight = derive(graph, [part.weight for part in parts])
    product = ir.Node(
        "com.microsoft",
        "FusedMatMul",
        [parts[0].product.inputs[0], weight],
        [ir.AttrInt64("transB", 1)],
        num_outputs=1,
    )
    nodes = [product]
    if biases:
        bias = derive(graph, biases)
        nodes.append(ir.Node("", "Add", [product.outputs[0], bias], num_outputs=1))
    for node in nodes:
        graph.insert_before(first, node)
        (out,) = node.outputs
        like = parts[0].out
        out.type = like.type
        if like.shape is not None:
            out.shape = ir.Shape([*like.shape[:-1], static_shape(weight)[0]])
    return nodes[-1].outputs[0]


def _split(graph: ir.Graph, packed: ir.Value, parts: Sequence[_Projection]) -> None:
    """Give the readers of each product its part of the joined one."""
    products = {part.product for part in parts}
    first = next(node for node in graph if node in products)
    rows = np.array([static_shape(part.weight)[0] for part in parts])
    sizes = insert_constant(graph, first, rows)
    split = ir.Node("", "Split", [packed, sizes], [ir.AttrInt64("axis", -1)], num_outputs=3)
    graph.insert_before(first, split)
    for part, out in zip(parts, split.outputs, strict=True):
        replace_value(part.out, out)
