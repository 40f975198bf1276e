"""Nodes that read a weight: a product with it, or a look-up of its rows."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ortolan.export.scheme import Scheme
from ortolan.export.values import replace_value

Lower = Callable[[ir.Graph, ir.Node, ir.Value, Scheme], ir.Value]
"""Inserts what replaces a node that reads a weight, and gives its result."""


def lower_readers(
    graph: ir.Graph, plan: Mapping[str, Scheme], *, product: Lower, look_up: Lower
) -> bool:
    """Replace every reader of a weight of a plan.

    Args:
        graph: changed in place; weights that nothing reads any more are dropped.
        plan: the scheme of each weight.
        product: for FusedMatMul(x, w).
        look_up: for Gather(w, ids).

    Returns:
        Whether there was such a node.
    """
    modified = False
    for node in list(graph):
        if node.op_type == "FusedMatMul":
            weight, lower = node.inputs[1], product
        elif node.op_type == "Gather":
            weight, lower = node.inputs[0], look_up
        else:
            continue
        name = weight.name if weight is not None else None
        if weight is None or name is None or name not in plan:
            continue
        replace_value(node.outputs[0], lower(graph, node, weight, plan[name]))
        graph.remove(node, safe=True)
        if not weight.uses():
            del graph.initializers[name]
        modified = True
    return modified
