"""Views that change nothing go, and the others say their shape in numbers.

Spec: ai.onnx Reshape, version 14 and later.
"""

from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from ortolan.export.values import insert_constant, producer


class DropReshapes(ir.passes.InPlacePass):
    """Reshape by the names of the axes, which the trace gives to all that vary.

    Case 1: of another Reshape: takes what that one takes.
    Case 2: to the shape that its input has: dropped.
    Case 3: at most one axis varies otherwise than in the input: to numbers, where an axis that
        stays in its place is 0, and the one that varies -1.
    Case 4: anything else: the node stays.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "Reshape" and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    modified = False
    before = producer(node.inputs[0], "Reshape")
    if before is not None:
        # Case 1
        node.replace_input_with(0, before.inputs[0])
        modified = True
    given, wanted = _axes(node.inputs[0]), _axes(node.outputs[0])
    if given is None or wanted is None:
        return modified  # Case 4
    if given == wanted and node.inputs[0] is not None and not node.outputs[0].is_graph_output():
        # Case 2
        node.outputs[0].replace_all_uses_with(node.inputs[0])
        graph.remove(node, safe=True)
        return True
    numbers = [
        axis if isinstance(axis, int) else 0 if axis == same else -1
        for axis, same in zip_longest(wanted, given[: len(wanted)])
    ]
    shape = node.inputs[1]
    is_written = shape is not None and ir.convenience.get_const_tensor(shape) is not None
    if is_written and not modified:
        return False  # Case 4
    if numbers.count(-1) > 1 or 0 in [axis for axis in wanted if isinstance(axis, int)]:
        return modified  # Case 4
    # Case 3
    node.replace_input_with(1, insert_constant(graph, node, np.array(numbers)))
    node.attributes.pop("allowzero", None)
    return True


def _axes(value: ir.Value | None) -> list[int | str] | None:
    """Sizes and names of the axes of a value; None where one has neither."""
    if value is None or value.shape is None:
        return None
    axes = [axis if isinstance(axis, int) else axis.value for axis in value.shape]
    return None if None in axes else [axis for axis in axes if axis is not None]
