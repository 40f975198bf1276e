"""A residual sum and the norm of it become one node.

Spec: com.microsoft.SkipSimplifiedLayerNormalization, version 1 (onnxruntime,
docs/ContribOperators.md).
"""

import onnx_ir as ir

from ortolan.export.values import replace_value


class FuseSkipNorm(ir.passes.InPlacePass):
    """RMSNormalization(Add(a, b)) becomes SkipSimplifiedLayerNormalization(a, b).

    The fused node gives the norm and the sum, which the next residual needs. Where a step of a
    small model is dominated by what a node costs at least, one node less a sublayer counts.

    Case 1: the norm is over the last axis of the sum of two tensors of one shape: rewritten.
    Case 2: anything else, a bias among the two, more than three axes or a weight of the norm that
        depends on an input included: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "RMSNormalization" and _rewrite(model.graph, node):
                modified = True
        if modified:
            # A weight of ones is computed, perhaps after the sum.
            model.graph.sort()
            model.graph.opset_imports["com.microsoft"] = 1
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    add = node.inputs[0].producer() if node.inputs[0] is not None else None
    if add is None or add.op_type != "Add" or node.attributes.get_int("axis", -1) != -1:
        return False  # Case 2
    a, b = add.inputs
    if a is None or b is None or a.shape is None or b.shape is None or a.shape != b.shape:
        return False  # Case 2
    if len(a.shape) > 3 or not _is_fixed(node.inputs[1]):
        return False  # Case 2
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    fused = ir.Node(
        "com.microsoft",
        "SkipSimplifiedLayerNormalization",
        [a, b, node.inputs[1]],
        [ir.AttrFloat32("epsilon", epsilon)],
        num_outputs=4,
    )
    # Where the sum was computed: every reader of it comes later.
    graph.insert_before(add, fused)
    replace_value(node.outputs[0], fused.outputs[0])
    replace_value(add.outputs[0], fused.outputs[3])
    # Mean and inverse deviation, which have no reader: a name would make them outputs.
    fused.outputs[1].name = fused.outputs[2].name = ""
    graph.remove(node, safe=True)
    graph.remove(add, safe=True)
    return True


def _is_fixed(value: ir.Value | None) -> bool:
    """Whether a value is the same in every run."""
    if value is None or value.is_initializer():
        return True
    producer = value.producer()
    return producer is not None and all(map(_is_fixed, producer.inputs))
