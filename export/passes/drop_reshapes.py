"""Drop views that change nothing, and give the others their shape as numbers.

Spec: ai.onnx Reshape, version 14 and later.
"""

from itertools import zip_longest

import onnx_ir as ir

from ortolan.export.passes.nodes import Insert, NodePass, axes_of
from ortolan.export.values import producer


class DropReshapes(NodePass):
    """Simplify Reshape by the names that the trace gives to all axes that vary.

    Case 1: the input comes from another Reshape: skip that one.
    Case 2: the shape is that of the input: drop the node.
    Case 3: at most one axis varies that does not stay in its place: write the shape as numbers,
        with 0 for an axis that stays and -1 for the one that varies.
    Case 4: otherwise: keep.
    """

    operators = ("Reshape",)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        modified = False
        earlier = producer(node.inputs[0], "Reshape")
        if earlier is not None:
            # Case 1
            node.replace_input_with(0, earlier.inputs[0])
            modified = True
        before, after = axes_of(node.inputs[0]), axes_of(node.outputs[0])
        if before is None or after is None:
            return modified  # Case 4
        if before == after and node.inputs[0] is not None and not node.outputs[0].is_graph_output():
            # Case 2
            node.outputs[0].replace_all_uses_with(node.inputs[0])
            graph.remove(node, safe=True)
            return True
        numbers = [
            axis if isinstance(axis, int) else 0 if axis == same else -1
            for axis, same in zip_longest(after, before[: len(after)])
        ]
        shape = node.inputs[1]
        is_constant = shape is not None and ir.convenience.get_const_tensor(shape) is not None
        if is_constant and not modified:
            return False  # Case 4
        if numbers.count(-1) > 1 or 0 in [axis for axis in after if isinstance(axis, int)]:
            return modified  # Case 4
        # Case 3
        node.replace_input_with(1, Insert(graph, node).constant(numbers))
        node.attributes.pop("allowzero", None)
        return True
