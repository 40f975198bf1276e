"""Choose between booleans with logic; onnxruntime has no Where for them.

Spec: ai.onnx Where, version 16.
"""

import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass, insert_node, replace_node


class SelectBooleans(NodePass):
    """Replace Where of booleans.

    Case 1: Where(c, a, b) with booleans a and b: Or(And(c, a), And(Not(c), b)).
    Case 2: any other type: keep.
    """

    operators = ("Where",)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        condition, one, other = node.inputs
        if node.outputs[0].dtype != ir.DataType.BOOL:
            return False
        chosen = insert_node(graph, node, "And", [condition, one])
        negated = insert_node(graph, node, "Not", [condition])
        rest = insert_node(graph, node, "And", [negated, other])
        either = insert_node(graph, node, "Or", [chosen, rest])
        for value in (chosen, negated, rest, either):
            value.dtype = ir.DataType.BOOL
        either.shape = node.outputs[0].shape
        replace_node(graph, node, either)
        return True
