"""Share the sizes of tensors, and simplify the views that are computed from them.

Spec: ai.onnx Reshape, version 14 and later, and Shape, version 15 and later.
"""

from itertools import zip_longest

import onnx_ir as ir

from ortolan.export.passes.nodes import GraphPass, Insert, axes_of, rule
from ortolan.export.values import producer


@rule("Reshape")
def drop_reshapes(graph: ir.Graph, node: ir.Node) -> bool:
    """Simplify Reshape by the names that the trace gives to all axes that vary.

    Case 1: the input comes from another Reshape: skip that one.
    Case 2: the shape is that of the input: drop the node.
    Case 3: at most one axis varies that does not stay in its place: write the shape as numbers,
        with 0 for an axis that stays and -1 for the one that varies.
    Case 4: otherwise: keep.
    """
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


@GraphPass
def share_shapes(graph: ir.Graph) -> bool:
    """Replace Shape nodes over axes of the same names and sizes with the first of them.

    The trace names every axis that varies, so equal names are equal sizes. Every layer then shares
    what is computed from sizes.

    Case 1: every axis has a size or a name, and an earlier node reads the same: rewrite.
    Case 2: otherwise: keep.
    """
    first: dict[tuple[str, ...], ir.Value] = {}
    modified = False
    for node in list(graph):
        axes = _axes(node) if node.op_type == "Shape" else None
        if axes is None:
            continue  # Case 2
        if axes not in first:
            first[axes] = node.outputs[0]
            continue
        node.outputs[0].replace_all_uses_with(first[axes], replace_graph_outputs=True)
        graph.remove(node, safe=True)
        modified = True
    return modified


def _axes(node: ir.Node) -> tuple[str, ...] | None:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end")
    axes = value.shape[start:end]
    sizes = [axis if isinstance(axis, int) else axis.value for axis in axes]
    return None if None in sizes else tuple(map(str, sizes))
