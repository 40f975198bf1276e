"""Products and table look-ups read weights of a few bits.

Spec: com.microsoft.MatMulNBits and com.microsoft.GatherBlockQuantized, version 1 (onnxruntime,
docs/ContribOperators.md).
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.weight_readers import lower_readers
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, insert_constant, static_shape, type_of

ACCURACY_LEVELS = {ir.DataType.FLOAT: 4}
"""By type of the activations. Those in float32 are rounded to 8 bits: the CPU has no other fast
kernels for 8-bit weights. Others are for a GPU, which has no levels."""

CODES, TABLE, SCALES, ZEROS, MINIMUMS = ".codes", ".table", ".scales", ".zeros", ".minimums"
"""What replaces an initializer, by suffix of its name. `.table` is `.codes` in another shape."""

_SUMMED = "ortolan.summed"
"""Of a node that splits its input into groups of so many, to sum them; no file has it."""


class QuantizeWeights(ir.passes.InPlacePass):
    """Every reader of a quantized weight takes codes, scales and, if any, zero points.

    Case 1: FusedMatMul(x, w, transB=1) becomes MatMulNBits.
    Case 2: Gather(w, ids) becomes GatherBlockQuantized, over the same bytes as case 1 where the
        head is the embedding's table.
    Case 3: as case 2, but groups do not divide the width: the padded rows are cut.
    Case 4: the weight is not in the plan: the nodes stay.
    Case 5: as case 1, with a minimum for each group: the sums of x over the groups, times the
        minimums, are added.
    """

    def __init__(self, plan: Mapping[str, Scheme]) -> None:
        self.plan = plan

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = lower_readers(model.graph, self.plan, product=_product, look_up=_look_up)
        if modified:
            model.graph.opset_imports["com.microsoft"] = 1
        return ir.passes.PassResult(model, modified)


def _product(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    rows, columns = static_shape(weight)
    shape = (rows, scheme.groups(columns), scheme.group * scheme.bits // 8)
    codes = add_initializer(graph, f"{weight.name}{CODES}", ir.DataType.UINT8, shape)
    attributes = {"K": columns, "N": rows, "bits": scheme.bits, "block_size": scheme.group}
    dtype = type_of(weight)
    if dtype in ACCURACY_LEVELS:
        attributes["accuracy_level"] = ACCURACY_LEVELS[dtype]
    product = ir.Node(
        "com.microsoft",
        "MatMulNBits",
        [node.inputs[0], codes, *_grid(graph, weight, scheme)],
        [ir.AttrInt64(name, value) for name, value in attributes.items()],
        num_outputs=1,
    )
    graph.insert_before(node, product)
    return _with_minimums(graph, node, product, weight, scheme)


def _with_minimums(
    graph: ir.Graph, node: ir.Node, product: ir.Node, weight: ir.Value, scheme: Scheme
) -> ir.Value:
    """Case 5: the result of a product, and what its minimums add to it."""
    x, (rows, columns) = node.inputs[0], static_shape(weight)
    if not scheme.minimums or x is None:
        return product.outputs[0]
    groups = scheme.groups(columns)
    name = f"{weight.name}{MINIMUMS}"
    minimums = add_initializer(graph, name, type_of(weight), (groups, rows))
    sums = _group_sums(graph, product, x, groups, scheme.group)
    added = ir.Node("", "MatMul", [sums, minimums], num_outputs=1)
    total = ir.Node("", "Add", [product.outputs[0], added.outputs[0]], num_outputs=1)
    for made in (added, total):
        graph.insert_before(node, made)
    return total.outputs[0]


def _group_sums(graph: ir.Graph, before: ir.Node, x: ir.Value, groups: int, group: int) -> ir.Value:
    """The sums of `(..., K)` over its groups, `(..., G)`; those of a product before this one."""
    for user in x.consumers():
        if user.meta.get(_SUMMED) == group:
            (total,) = user.outputs[0].consumers()
            return total.outputs[0]
    axes = 3 if x.shape is None else len(x.shape)
    shape = insert_constant(graph, before, np.array([0] * (axes - 1) + [groups, group]))
    split = ir.Node("", "Reshape", [x, shape], num_outputs=1)
    split.meta[_SUMMED] = group
    last = insert_constant(graph, before, np.array([-1]))
    total = ir.Node(
        "", "ReduceSum", [split.outputs[0], last], [ir.AttrInt64("keepdims", 0)], num_outputs=1
    )
    for made in (split, total):
        graph.insert_before(before, made)
    return total.outputs[0]


def _look_up(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    rows, columns = static_shape(weight)
    width = scheme.groups(columns) * scheme.group
    shape = (rows, width * scheme.bits // 8)
    table = add_initializer(graph, f"{weight.name}{TABLE}", ir.DataType.UINT8, shape)
    gathered = ir.Node(
        "com.microsoft",
        "GatherBlockQuantized",
        [table, node.inputs[1], *_grid(graph, weight, scheme)],
        [
            ir.AttrInt64("bits", scheme.bits),
            ir.AttrInt64("block_size", scheme.group),
            ir.AttrInt64("gather_axis", 0),
            ir.AttrInt64("quantize_axis", 1),
        ],
        num_outputs=1,
    )
    graph.insert_before(node, gathered)
    if width == columns:
        return gathered.outputs[0]
    # Case 3
    bounds = [insert_constant(graph, node, np.array([value])) for value in (0, columns, -1)]
    cut = ir.Node("", "Slice", [gathered.outputs[0], *bounds], num_outputs=1)
    graph.insert_before(node, cut)
    return cut.outputs[0]


def _grid(graph: ir.Graph, weight: ir.Value, scheme: Scheme) -> list[ir.Value]:
    """Scales, in the type of the activations, and zero points, one of each a group."""
    rows, columns = static_shape(weight)
    groups = scheme.groups(columns)
    name = weight.name
    scales = add_initializer(graph, f"{name}{SCALES}", type_of(weight), (rows, groups))
    if scheme.symmetric:
        return [scales]
    packed = -(-groups * scheme.bits // 8)
    zeros = add_initializer(graph, f"{name}{ZEROS}", ir.DataType.UINT8, (rows, packed))
    return [scales, zeros]
