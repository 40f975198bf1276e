"""Fuse norms that are spelled out, and the residual sums before them, into one node.

Spec: ai.onnx RMSNormalization, version 23, and LayerNormalization, version 17;
com.microsoft.SkipSimplifiedLayerNormalization, version 1 (onnxruntime, docs/ContribOperators.md).
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, GraphPass, replace_node, rule, visit
from ortolan.export.values import (
    add_initializer,
    is_weight,
    number,
    only_user,
    producer,
    replace_value,
    static_shape,
)


@rule("ReduceMean")
def fuse_norm(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace x / sqrt(mean(x^2) + eps) * w with RMSNormalization(x, w).

    Case 1: over the last axis, with a weight of that axis: rewrite.
    Case 2: case 1 where x is y - mean(y): LayerNormalization(y, w).
    Case 3: case 1 or 2 in float32 between casts from and to a 16-bit type, the second before or
        after the weight: the node reads the 16-bit x, and computes in float32 all the same.
    Case 4: case 1 or 2 without a weight: the node gets a weight of ones.
    Case 5: otherwise: keep.
    """
    x = _squared(node.inputs[0])
    if x is None or not _is_over_last(node):
        return False  # Case 5
    add = only_user(node.outputs[0], "Add")
    epsilon = None if add is None else number(_other(add, node.outputs[0]))
    normed = None if add is None else _normed(x, add.outputs[0])
    if epsilon is None or normed is None:
        return False  # Case 5
    uncentred = _uncentred(x)
    x, normed = _uncast(x if uncentred is None else uncentred, normed)
    x, weight, out = _weighted(x, normed) or (x, _ones(graph, x), normed)
    if x.shape is None or weight is None or static_shape(weight) != x.shape[-1:]:
        return False  # Case 5
    norm = ir.node(
        "RMSNormalization" if uncentred is None else "LayerNormalization",
        [x, weight],
        {"epsilon": epsilon, "axis": -1},
    )
    last = out.producer()
    if last is not None:
        graph.insert_before(last, norm)
    replace_value(out, norm.outputs[0])
    return True


def _weighted(x: ir.Value, normed: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The x, the weight and the result of a node that multiplies by the weight too."""
    product = only_user(normed, "Mul")
    weight = None if product is None else _other(product, normed)
    if product is None or weight is None:
        return None
    if is_weight(weight, axes=1):
        return (x, weight, product.outputs[0]) if weight.dtype == normed.dtype else None
    # Case 3
    casts = producer(x, "Cast"), producer(weight, "Cast"), only_user(product.outputs[0], "Cast")
    narrow, weight = (None if cast is None else cast.inputs[0] for cast in casts[:2])
    if narrow is None or weight is None or casts[2] is None or not is_weight(weight, axes=1):
        return None
    out = casts[2].outputs[0]
    return (narrow, weight, out) if narrow.dtype == weight.dtype == out.dtype else None


def _ones(graph: ir.Graph, x: ir.Value) -> ir.Value | None:
    """A weight of ones for the last axis of x."""
    width = None if x.shape is None else x.shape[-1]
    if not isinstance(width, int) or x.dtype is None:
        return None
    ones = add_initializer(graph, f"ones_{width}", x.dtype, (width,))
    ones.const_value = ir.tensor(np.ones(width, x.dtype.numpy()), dtype=x.dtype, name=ones.name)
    return ones


def _squared(value: ir.Value | None) -> ir.Value | None:
    """The x of a value x^2."""
    node = producer(value, "Pow", "Mul")
    if node is None:
        return None
    x, y = node.inputs
    return x if (number(y) == 2 if node.op_type == "Pow" else x is y) else None


def _normed(x: ir.Value, variance: ir.Value) -> ir.Value | None:
    """The value x / sqrt(variance), in any of its spellings."""
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
    """The values outside of the casts of case 3, if the second comes before the weight."""
    before, after = producer(x, "Cast"), only_user(normed, "Cast")
    if before is None or after is None or before.inputs[0] is None:
        return x, normed
    narrow = before.inputs[0]
    return (narrow, after.outputs[0]) if narrow.dtype == after.outputs[0].dtype else (x, normed)


def _uncentred(value: ir.Value) -> ir.Value | None:
    """The y of a value y - mean(y)."""
    node = producer(value, "Sub")
    mean = None if node is None else producer(node.inputs[1], "ReduceMean")
    if node is None or mean is None or mean.inputs[0] is not node.inputs[0]:
        return None
    return node.inputs[0] if _is_over_last(mean) else None


def _is_over_last(mean: ir.Node) -> bool:
    axes = number(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return axes == -1 and bool(mean.attributes.get_int("keepdims", 1))


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other input of a node with two."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


@GraphPass
def fuse_skip_norms(graph: ir.Graph) -> bool:
    """Replace RMSNormalization(Add(a, b)) with SkipSimplifiedLayerNormalization(a, b).

    The fused node returns the norm and the sum, which the next residual needs. The fixed cost of a
    node dominates the step of a small model, so one node less in each sublayer counts.

    Case 1: a norm over the last axis of the sum of two tensors of one shape: rewrite.
    Case 2: otherwise, such as a sum with a bias, more than three axes, or a norm whose weight
        depends on an input: keep.
    """
    is_modified = visit(graph, ("RMSNormalization",), _fuse_skip_norm, writes_contrib=True)
    if is_modified:
        # A computed weight of ones may come after the sum.
        graph.sort()
    return is_modified


def _fuse_skip_norm(graph: ir.Graph, node: ir.Node) -> bool:
    add = producer(node.inputs[0], "Add")
    if add is None or node.attributes.get_int("axis", -1) != -1:
        return False  # Case 2
    a, b = add.inputs
    if a is None or b is None or a.shape is None or b.shape is None or a.shape != b.shape:
        return False  # Case 2
    if len(a.shape) > 3 or not _is_fixed(node.inputs[1]):
        return False  # Case 2
    fused = ir.node(
        "SkipSimplifiedLayerNormalization",
        [a, b, node.inputs[1]],
        {"epsilon": node.attributes.get_float("epsilon", 1e-5)},
        domain=CONTRIB,
        num_outputs=4,
    )
    # In the place of the sum: every reader of it comes later.
    graph.insert_before(add, fused)
    normed, mean, deviation, total = fused.outputs
    replace_node(graph, node, normed)
    replace_node(graph, add, total)
    # These have no reader: a name would make them outputs.
    mean.name = deviation.name = ""
    return True


def _is_fixed(value: ir.Value | None) -> bool:
    """Whether a value is the same in every run."""
    if value is None or value.is_initializer():
        return True
    node = value.producer()
    return node is not None and all(map(_is_fixed, node.inputs))
