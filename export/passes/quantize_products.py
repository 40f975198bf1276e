"""Products of 8-bit activations and 8-bit weights, for prefill.

Spec: com.microsoft.DynamicQuantizeMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

from collections.abc import Container

import onnx_ir as ir

from ortolan.export.passes.edit import add_initializer, replace_value, static_shape

CHANNELS, CHANNEL_SCALES = ".channels", ".channel_scales"
"""What replaces an initializer, by suffix of its name."""


class QuantizeProducts(ir.passes.InPlacePass):
    """FusedMatMul(x, w, transB=1) becomes DynamicQuantizeMatMul.

    Activations are quantized at run time with one scale for a whole tensor, weights beforehand
    with one for each output. Half as fast again as few-bit weights with many tokens, and slower
    with few.

    Case 1: the weight is among those named: rewritten.
    Case 2: anything else: the nodes stay.
    """

    def __init__(self, names: Container[str]) -> None:
        self.names = names

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph, modified = model.graph, False
        for node in list(graph):
            weight = node.inputs[1] if node.op_type == "FusedMatMul" else None
            name = weight.name if weight is not None else None
            if weight is None or name is None or name not in self.names:
                continue  # Case 2
            rows, columns = static_shape(weight)
            channels = add_initializer(
                graph, f"{name}{CHANNELS}", ir.DataType.INT8, (columns, rows)
            )
            scales = add_initializer(graph, f"{name}{CHANNEL_SCALES}", ir.DataType.FLOAT, (rows,))
            product = ir.Node(
                "com.microsoft",
                "DynamicQuantizeMatMul",
                [node.inputs[0], channels, scales],
                num_outputs=1,
            )
            graph.insert_before(node, product)
            replace_value(node.outputs[0], product.outputs[0])
            graph.remove(node, safe=True)
            if not weight.uses():
                del graph.initializers[name]
            modified = True
        if modified:
            graph.opset_imports["com.microsoft"] = 1
        return ir.passes.PassResult(model, modified)
