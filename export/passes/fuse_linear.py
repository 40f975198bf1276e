"""A product with a transposed weight becomes one node that reads the weight as it is stored.

Spec: com.microsoft.FusedMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

import onnx_ir as ir

from ortolan.export.values import replace_value


class FuseLinear(ir.passes.InPlacePass):
    """MatMul(x, Transpose(w)) becomes FusedMatMul(x, w, transB=1).

    A checkpoint stores `(out, in)`. Read like this, a weight is copied row by row on export, an
    embedding and a tied head share one table, and onnxruntime does not fold a transposed
    copy into memory. Both forms run at the same speed: the weight is packed at load.

    Case 1: the weight is an initializer, its two axes swapped: rewritten.
    Case 2: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "MatMul" and _rewrite(model.graph, node):
                modified = True
        if modified:
            model.graph.opset_imports["com.microsoft"] = 1
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    transpose = node.inputs[1].producer() if node.inputs[1] is not None else None
    if transpose is None or transpose.op_type != "Transpose":
        return False  # Case 2
    weight = transpose.inputs[0]
    swapped = tuple(transpose.attributes.get_ints("perm", ())) == (1, 0)
    if weight is None or not weight.is_initializer() or not swapped:
        return False  # Case 2
    fused = ir.Node(
        "com.microsoft",
        "FusedMatMul",
        [node.inputs[0], weight],
        [ir.AttrInt64("transB", 1)],
        num_outputs=1,
    )
    graph.insert_before(node, fused)
    replace_value(node.outputs[0], fused.outputs[0])
    graph.remove(node, safe=True)
    if not transpose.outputs[0].uses():
        graph.remove(transpose, safe=True)
    return True
