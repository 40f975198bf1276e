"""Products of 8-bit activations and 8-bit weights, for prefill.

Spec: com.microsoft.DynamicQuantizeMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

from collections.abc import Container

import onnx_ir as ir

from ortolan.export.values import add_initializer, replace_value, static_shape

CHANNELS, CHANNEL_SCALES = ".channels", ".channel_scales"
"""What replaces an initializer, by suffix of its name."""


class QuantizeProducts(ir.passes.InPlacePass):
    """FusedMatMul(x, w, transB=1) becomes DynamicQuantizeMatMul.

    Activations are quantized at run time with one scale for a whole tensor, weights beforehand
    with one for each output. Half as fast again as few-bit weights with many tokens, and slower
    with few.

    Case 1: the weight is among those named: rewritten.
    Case 2: as case 1, and all that is done with the product is to add a vector: the node adds it.
    Case 3: anything else: the nodes stay.
    """

    def __init__(self, names: Container[str]) -> None:
        self.names = names

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph = model.graph
        modified = False
        for node in list(graph):
            weight = node.inputs[1] if node.op_type == "FusedMatMul" else None
            name = weight.name if weight is not None else None
            if weight is None or name is None or name not in self.names:
                continue  # Case 3
            _rewrite(graph, node, weight)
            modified = True
            if not weight.uses():
                del graph.initializers[name]
        if modified:
            graph.opset_imports["com.microsoft"] = 1
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> None:
    rows, columns = static_shape(weight)
    name, sum_ = weight.name, _sum(node.outputs[0])
    inputs = [
        node.inputs[0],
        add_initializer(graph, f"{name}{CHANNELS}", ir.DataType.INT8, (columns, rows)),
        add_initializer(graph, f"{name}{CHANNEL_SCALES}", ir.DataType.FLOAT, (rows,)),
        *(() if sum_ is None else (None, _vector(sum_))),  # zero points are 0
    ]
    product = ir.Node("com.microsoft", "DynamicQuantizeMatMul", inputs, num_outputs=1)
    graph.insert_before(node, product)
    if sum_ is not None:
        replace_value(sum_.outputs[0], product.outputs[0])
        graph.remove(sum_, safe=True)
    else:
        replace_value(node.outputs[0], product.outputs[0])
    graph.remove(node, safe=True)


def _sum(product: ir.Value) -> ir.Node | None:
    """The node that adds a vector to a product, if that is the only use of it."""
    users = [use.node for use in product.uses()]
    if len(users) == 1 and users[0].op_type == "Add" and _vector(users[0]) is not None:
        return users[0]
    return None


def _vector(add: ir.Node) -> ir.Value | None:
    """The initializer of one axis among what a node adds."""
    vectors = [
        value
        for value in add.inputs
        if value is not None and value.is_initializer() and len(static_shape(value)) == 1
    ]
    return vectors[0] if vectors else None
