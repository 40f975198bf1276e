"""Add a number to a weight once, at export.

Spec: ai.onnx Add.
"""

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.passes.nodes import NodePass, insert_node, replace_node
from ortolan.export.values import is_weight, number, producer


class FoldOffsets(NodePass):
    """Replace Add(w, number) with an initializer, as for Gemma's norms: x * (1 + w).

    Case 1: w is an initializer without data: rewrite.
    Case 2: w is the cast of one: rewrite, and cast the sum.
    Case 3: otherwise: keep.
    """

    operators = ("Add",)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        offsets = [offset for value in node.inputs if (offset := number(value)) is not None]
        others = [value for value in node.inputs if value is not None and number(value) is None]
        (out,) = node.outputs
        if len(offsets) != 1 or len(others) != 1 or out.is_graph_output():
            return False  # Case 3
        cast = producer(others[0], "Cast")
        weight = others[0] if cast is None else cast.inputs[0]
        if weight is None or not is_weight(weight):
            return False  # Case 3
        total = derive(graph, [weight], offset=offsets[0])
        if cast is None:
            out.replace_all_uses_with(total)
            graph.remove(node, safe=True)
        else:
            # Case 2
            replace_node(
                graph, node, insert_node(graph, node, "Cast", [total], dict(cast.attributes))
            )
        return True
