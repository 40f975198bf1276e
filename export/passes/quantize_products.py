"""Multiply 8-bit activations by 8-bit weights, for prefill.

Spec: com.microsoft.DynamicQuantizeMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

from collections.abc import Container

import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, NodePass, insert_node
from ortolan.export.values import add_initializer, only_user, replace_value, static_shape

CHANNELS, CHANNEL_SCALES = ".channels", ".channel_scales"
"""Suffixes of the initializers that replace a weight."""


class QuantizeProducts(NodePass):
    """Replace FusedMatMul(x, w, transB=1) with DynamicQuantizeMatMul.

    Activations are quantized at run time with one scale for a whole tensor, weights at export with
    one for each output. With many tokens this is 1.5 times as fast as low-bit weights, with few
    tokens slower.

    Case 1: w is among the names: rewrite.
    Case 2: case 1 where the only reader adds a vector: the node adds it too.
    Case 3: otherwise: keep.
    """

    operators = ("FusedMatMul",)
    writes_contrib = True

    def __init__(self, names: Container[str]) -> None:
        self.names = names

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        weight = node.inputs[1]
        name = None if weight is None else weight.name
        if weight is None or name is None or name not in self.names:
            return False  # Case 3
        rows, columns = static_shape(weight)
        bias, last = _bias(node)
        inputs = [
            node.inputs[0],
            add_initializer(graph, f"{name}{CHANNELS}", ir.DataType.INT8, (columns, rows)),
            add_initializer(graph, f"{name}{CHANNEL_SCALES}", ir.DataType.FLOAT, (rows,)),
            *(() if bias is None else (None, bias)),  # no zero points: they are 0
        ]
        product = insert_node(graph, node, "DynamicQuantizeMatMul", inputs, domain=CONTRIB)
        replace_value(last.outputs[0], product)
        for removed in dict.fromkeys((last, node)):
            graph.remove(removed, safe=True)
        if not weight.uses():
            del graph.initializers[name]
        return True


def _bias(product: ir.Node) -> tuple[ir.Value | None, ir.Node]:
    """The vector that the only reader of a product adds, if any, and the last of the nodes."""
    add = only_user(product.outputs[0], "Add")
    if add is not None:
        for value in add.inputs:
            if value is not None and value.is_initializer() and len(static_shape(value)) == 1:
                return value, add
    return None, product
