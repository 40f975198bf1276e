"""Whether a device has a kernel for every node that computes.

By the runtime's table of kernels, without the device. Shape arithmetic (ids, lengths, positions)
may be computed anywhere.
"""

from collections.abc import Mapping

import onnx_ir as ir

from ortolan.export.errors import PlacementError
from ortolan.export.settings import Plan
from ortolan.export.values import static_shape, type_of
from ortolan.runtime.inspect.placement import Misplaced, place

LISTED = 8
"""Kinds of nodes that an error names."""


def check_placement(graphs: Mapping[str, ir.Model], plan: Plan) -> None:
    """Refuse graphs that leave the device they are made for.

    The CPU's own are loaded and run by the export, which shows more than a table.

    Args:
        graphs: by role, as they will be written.
        plan: the device, and whether nodes may be computed on the CPU beside it.

    Raises:
        PlacementError: lists the nodes without a kernel.
    """
    if plan.device == "cpu":
        return
    data = {role: without_weights(graph) for role, graph in graphs.items()}
    misplaced = place(data, plan.device).misplaced
    on_cpu = all(each.fallback == "cpu" for each in misplaced)
    if not misplaced or (on_cpu and plan.options.allow_cpu_nodes):
        return
    more = f" and {len(misplaced) - LISTED} more kinds" if len(misplaced) > LISTED else ""
    listed = ", ".join(map(_name, misplaced[:LISTED])) + more
    advice = (
        "Give --allow-cpu-nodes to compute these on the CPU, with copies there and back in "
        "every step."
        if on_cpu
        else "The CPU has none for all of them either: choose another --precision."
    )
    raise PlacementError(
        f"placement: expected a kernel of {plan.device} for every node that computes, got "
        f"none for {listed}. {advice}"
    )


def without_weights(graph: ir.Model) -> bytes:
    """The graph as an ONNX file whose weights lie in another one, which is not there yet."""
    copy = graph.clone()
    for name, value in copy.graph.initializers.items():
        shape = ir.Shape(static_shape(value))
        value.const_value = ir.ExternalTensor("w", 0, 0, type_of(value), shape=shape, name=name)
    data: bytes = ir.to_proto(copy).SerializeToString()
    return data


def _name(nodes: Misplaced) -> str:
    return f"{nodes.graph}: {nodes.count} x {nodes.operator} in {nodes.dtype}"
