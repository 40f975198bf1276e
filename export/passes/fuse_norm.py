"""Norms that are spelled out become one node.

Spec: ai.onnx RMSNormalization, version 23, and LayerNormalization, version 17.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.values import (
    add_initializer,
    is_weight,
    number,
    only_user,
    producer,
    replace_value,
    static_shape,
)


class FuseNorm(ir.passes.InPlacePass):
    """x / sqrt(mean(x^2) + eps) * w becomes RMSNormalization(x, w).

    Case 1: over the last axis, with a weight of that axis: rewritten.
    Case 2: as case 1, and x is something without its mean: LayerNormalization of that.
    Case 3: as the others, in float32 between two casts of a 16-bit type, before or after the
        weight: the node takes x as it is, and computes in float32 as well.
    Case 4: as case 1 or 2, without a weight: the node gets one of ones.
    Case 5: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "ReduceMean" and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, mean: ir.Node) -> bool:
    x = _squared(mean.inputs[0])
    if x is None or not _is_over_last(mean):
        return False  # Case 5
    add = only_user(mean.outputs[0], "Add")
    epsilon = None if add is None else number(_other(add, mean.outputs[0]))
    normed = None if add is None else _normed(x, add.outputs[0])
    if epsilon is None or normed is None:
        return False  # Case 5
    centred = _centred(x)
    x, normed = _uncast(x if centred is None else centred, normed)
    x, scale, out = _scaled(x, normed) or (x, _ones(graph, x), normed)
    if x.shape is None or scale is None or static_shape(scale) != x.shape[-1:]:
        return False  # Case 5
    norm = ir.Node(
        "",
        "RMSNormalization" if centred is None else "LayerNormalization",
        [x, scale],
        [ir.AttrFloat32("epsilon", epsilon), ir.AttrInt64("axis", -1)],
        num_outputs=1,
    )
    last = out.producer()
    if last is not None:
        graph.insert_before(last, norm)
    replace_value(out, norm.outputs[0])
    return True


def _scaled(x: ir.Value, normed: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """What the node takes as x and as its weight, and the value that it gives."""
    product = only_user(normed, "Mul")
    scale = None if product is None else _other(product, normed)
    if product is None or scale is None:
        return None
    if is_weight(scale, axes=1):
        return (x, scale, product.outputs[0]) if scale.dtype == normed.dtype else None
    casts = producer(x, "Cast"), producer(scale, "Cast"), only_user(product.outputs[0], "Cast")
    narrow, weight = (None if cast is None else cast.inputs[0] for cast in casts[:2])
    if narrow is None or weight is None or casts[2] is None or not is_weight(weight, axes=1):
        return None
    out = casts[2].outputs[0]
    # Case 3
    return (narrow, weight, out) if narrow.dtype == weight.dtype == out.dtype else None


def _ones(graph: ir.Graph, x: ir.Value) -> ir.Value | None:
    """A weight that changes nothing, for the last axis of x."""
    width = None if x.shape is None else x.shape[-1]
    if not isinstance(width, int) or x.dtype is None:
        return None
    ones = add_initializer(graph, f"ones_{width}", x.dtype, (width,))
    ones.const_value = ir.tensor(np.ones(width, x.dtype.numpy()), dtype=x.dtype, name=ones.name)
    return ones


def _squared(value: ir.Value | None) -> ir.Value | None:
    """What a value is the square of."""
    node = producer(value, "Pow", "Mul")
    if node is None or node.inputs[0] is None:
        return None
    is_square = number(node.inputs[1]) == 2 if node.op_type == "Pow" else _is_twice(node)
    return node.inputs[0] if is_square else None


def _is_twice(node: ir.Node) -> bool:
    return node.inputs[0] is node.inputs[1]


def _normed(x: ir.Value, variance: ir.Value) -> ir.Value | None:
    """X / sqrt(variance), however it is written."""
    root = only_user(variance, "Sqrt", "Pow")
    if root is None or (root.op_type == "Pow" and number(root.inputs[1]) != -0.5):
        return None
    inverse = root if root.op_type == "Pow" else only_user(root.outputs[0], "Reciprocal")
    last = root if inverse is None else inverse
    node = only_user(last.outputs[0], "Div" if inverse is None else "Mul")
    if node is None or _other(node, last.outputs[0]) is not x:
        return None
    if node.op_type == "Div" and node.inputs[0] is not x:
        return None
    return node.outputs[0]


def _uncast(x: ir.Value, normed: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The values around the casts of case 3, where the weight comes after the second."""
    before, after = producer(x, "Cast"), only_user(normed, "Cast")
    if before is None or after is None or before.inputs[0] is None:
        return x, normed
    narrow = before.inputs[0]
    return (narrow, after.outputs[0]) if narrow.dtype == after.outputs[0].dtype else (x, normed)


def _centred(value: ir.Value) -> ir.Value | None:
    """What a value is without its mean."""
    node = producer(value, "Sub")
    mean = None if node is None else producer(node.inputs[1], "ReduceMean")
    if node is None or mean is None or mean.inputs[0] is not node.inputs[0]:
        return None
    return node.inputs[0] if _is_over_last(mean) else None


def _is_over_last(mean: ir.Node) -> bool:
    axes = number(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return axes == -1 and bool(mean.attributes.get_int("keepdims", 1))


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The input of a node of two that is not this one."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]
