"""A number that is added to a weight is added once, on export."""

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.values import is_weight, number


class FoldOffsets(ir.passes.InPlacePass):
    """Add(w, number) becomes an initializer, such as for the norms of Gemma: x * (1 + w).

    Case 1: w is an initializer without data: rewritten.
    Case 2: anything else: the node stays.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "Add" and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    weights = [value for value in node.inputs if value is not None and is_weight(value)]
    offsets = [offset for value in node.inputs if (offset := number(value)) is not None]
    (out,) = node.outputs
    if len(weights) != 1 or len(offsets) != 1 or out.is_graph_output():
        return False  # Case 2
    out.replace_all_uses_with(derive(graph, weights, offset=offsets[0]))
    graph.remove(node, safe=True)
    return True
