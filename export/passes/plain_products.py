"""Products as MatMul, for devices without a kernel for FusedMatMul.

Spec: com.microsoft.FusedMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.passes.nodes import NodePass, insert_node, replace_node
from ortolan.export.values import is_weight


class PlainProducts(NodePass):
    """Replace FusedMatMul(x, w, transB=1) with MatMul(x, w').

    w' is w stored `(in, out)`. A head that is tied to the embedding gets a table of its own, since
    the embedding reads rows of the other one.
    """

    operators = ("FusedMatMul",)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        x, weight = node.inputs
        if x is None or weight is None or not is_weight(weight, axes=2):
            return False
        columns = derive(graph, [weight], transposed=True)
        replace_node(graph, node, insert_node(graph, node, "MatMul", [x, columns]))
        return True
