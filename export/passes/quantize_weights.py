"""Read low-bit weights in products and look-ups.

Spec: com.microsoft.MatMulNBits and com.microsoft.GatherBlockQuantized, version 1 (onnxruntime,
docs/ContribOperators.md).
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, insert_node
from ortolan.export.passes.weight_readers import QuantizeReaders
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, insert_constant, static_shape, type_of

ACCURACY_LEVELS = {ir.DataType.FLOAT: 4}
"""Accuracy level by the type of the activations. Level 4 rounds float32 to 8 bits, because the CPU
has no other fast kernels for 8-bit weights. 16-bit types are for GPUs, which have no levels."""

CODES, TABLE, SCALES, ZEROS, MINIMUMS = ".codes", ".table", ".scales", ".zeros", ".minimums"
"""Suffixes of the initializers that replace a weight. `.table` is `.codes` in another shape."""

_SUMMED = "ortolan.summed"
"""Key of the group size in the metadata of a node that splits its input into groups to sum. It is
never written to a file."""


class QuantizeWeights(QuantizeReaders):
    """Give every reader of a low-bit weight codes, scales and any zero points.

    Case 1: FusedMatMul(x, w, transB=1) becomes MatMulNBits.
    Case 2: Gather(w, ids) becomes GatherBlockQuantized, over the same bytes as case 1 if the head
        shares the embedding's table.
    Case 3: case 2 where groups do not divide the width: the padding of the rows is cut off.
    Case 4: the weight is not in the plan: keep.
    Case 5: case 1 with a minimum for each group: add the sums of x over the groups, times the
        minimums.

            x -> MatMulNBits -----------------------> Add -> y
              -> Reshape -> ReduceSum -> MatMul(m) -/
    """

    writes_contrib = True

    def _product(
        self, graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme
    ) -> ir.Value:
        rows, columns = static_shape(weight)
        shape = (rows, scheme.groups(columns), scheme.group * scheme.bits // 8)
        codes = add_initializer(graph, f"{weight.name}{CODES}", ir.DataType.UINT8, shape)
        attributes = {"K": columns, "N": rows, "bits": scheme.bits, "block_size": scheme.group}
        if type_of(weight) in ACCURACY_LEVELS:
            attributes["accuracy_level"] = ACCURACY_LEVELS[type_of(weight)]
        x, inputs = node.inputs[0], [codes, *_grid(graph, weight, scheme)]
        product = ir.node("MatMulNBits", [x, *inputs], attributes, domain=CONTRIB)
        graph.insert_before(node, product)
        if not scheme.minimums or x is None:
            return product.outputs[0]
        # Case 5
        groups = scheme.groups(columns)
        name = f"{weight.name}{MINIMUMS}"
        minimums = add_initializer(graph, name, type_of(weight), (groups, rows))
        sums = _group_sums(graph, product, x, groups, scheme.group)
        share = insert_node(graph, node, "MatMul", [sums, minimums])
        return insert_node(graph, node, "Add", [product.outputs[0], share])

    def _look_up(
        self, graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme
    ) -> ir.Value:
        rows, columns = static_shape(weight)
        width = scheme.groups(columns) * scheme.group
        shape = (rows, width * scheme.bits // 8)
        table = add_initializer(graph, f"{weight.name}{TABLE}", ir.DataType.UINT8, shape)
        inputs = [table, node.inputs[1], *_grid(graph, weight, scheme)]
        attributes = {
            "bits": scheme.bits,
            "block_size": scheme.group,
            "gather_axis": 0,
            "quantize_axis": 1,
        }
        gathered = insert_node(
            graph, node, "GatherBlockQuantized", inputs, attributes, domain=CONTRIB
        )
        if width == columns:
            return gathered
        # Case 3
        bounds = [insert_constant(graph, node, np.array([value])) for value in (0, columns, -1)]
        return insert_node(graph, node, "Slice", [gathered, *bounds])


def _group_sums(graph: ir.Graph, before: ir.Node, x: ir.Value, groups: int, group: int) -> ir.Value:
    """The sums of `(..., K)` over its groups, `(..., G)`, shared by all products of x."""
    for user in x.consumers():
        if user.meta.get(_SUMMED) == group:
            (total,) = user.outputs[0].consumers()
            return total.outputs[0]
    axes = 3 if x.shape is None else len(x.shape)
    shape = insert_constant(graph, before, np.array([0] * (axes - 1) + [groups, group]))
    split = ir.node("Reshape", [x, shape])
    split.meta[_SUMMED] = group
    last = insert_constant(graph, before, np.array([-1]))
    graph.insert_before(before, split)
    return insert_node(graph, before, "ReduceSum", [split.outputs[0], last], {"keepdims": 0})


def _grid(graph: ir.Graph, weight: ir.Value, scheme: Scheme) -> list[ir.Value]:
    """Scales, in the type of the activations, and any zero points: one of each for a group."""
    rows, columns = static_shape(weight)
    groups = scheme.groups(columns)
    name = weight.name
    scales = add_initializer(graph, f"{name}{SCALES}", type_of(weight), (rows, groups))
    if scheme.symmetric:
        return [scales]
    packed = -(-groups * scheme.bits // 8)
    zeros = add_initializer(graph, f"{name}{ZEROS}", ir.DataType.UINT8, (rows, packed))
    return [scales, zeros]
