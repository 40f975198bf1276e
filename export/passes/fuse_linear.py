"""Fuse a product with a transposed weight into one node that reads the weight as stored.

Spec: com.microsoft.FusedMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, NodePass, insert_node, replace_node
from ortolan.export.values import producer


class FuseLinear(NodePass):
    """Replace MatMul(x, Transpose(w)) with FusedMatMul(x, w, transB=1).

    A checkpoint stores `(out, in)`. Read as stored, a weight is copied row by row at export, an
    embedding and a tied head share one table, and onnxruntime does not fold a transposed copy into
    memory. Both forms are equally fast: the weight is packed at load.

    Case 1: w is an initializer whose two axes are swapped: rewrite.
    Case 2: otherwise: keep.
    """

    operators = ("MatMul",)
    writes_contrib = True

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        transpose = producer(node.inputs[1], "Transpose")
        weight = None if transpose is None else transpose.inputs[0]
        if transpose is None or weight is None or not weight.is_initializer():
            return False  # Case 2
        if tuple(transpose.attributes.get_ints("perm", ())) != (1, 0):
            return False  # Case 2
        inputs = [node.inputs[0], weight]
        fused = insert_node(graph, node, "FusedMatMul", inputs, {"transB": 1}, domain=CONTRIB)
        replace_node(graph, node, fused)
        if not transpose.outputs[0].uses():
            graph.remove(transpose, safe=True)
        return True
