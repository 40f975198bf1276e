"""Checks that the device has a kernel for every node, by the runtime's table of kernels.

The device need not be present. Shape arithmetic (ids, lengths, positions) may run anywhere.
"""

from collections.abc import Mapping

import onnx_ir as ir

from ortolan.export.errors import PlacementError
from ortolan.export.settings import Plan
from ortolan.export.values import static_shape, type_of
from ortolan.runtime.inspect.placement import Misplaced, place

LISTED = 8
"""Maximum number of node kinds in an error."""


def check_placement(graphs: Mapping[str, ir.Model], plan: Plan) -> None:
    """Reject graphs that do not fit their device.

    Nothing is checked for the CPU, where the export runs the graphs anyway, nor for WebGPU, whose
    kernels the runtime asks onnxruntime for at load.
    """
    if plan.device == "cpu" or plan.is_for_webgpu:
        return
    data = {role: without_weights(graph) for role, graph in graphs.items()}
    misplaced = place(data, plan.device).misplaced
    on_cpu = all(nodes.fallback == "cpu" for nodes in misplaced)
    if not misplaced or (on_cpu and plan.options.allow_cpu_nodes):
        return
    more = f" and {len(misplaced) - LISTED} more kinds" if len(misplaced) > LISTED else ""
    listed = ", ".join(map(_name, misplaced[:LISTED])) + more
    advice = (
        "Pass --allow-cpu-nodes to run them on the CPU, with copies there and back in every step."
        if on_cpu
        else "The CPU lacks some of them too: choose another --precision."
    )
    raise PlacementError(f"{plan.device} has no kernel for {listed}. {advice}")


def without_weights(graph: ir.Model) -> bytes:
    """The graph as an ONNX file with weights in another file, which need not exist yet."""
    copy = graph.clone()
    for name, value in copy.graph.initializers.items():
        shape = ir.Shape(static_shape(value))
        value.const_value = ir.ExternalTensor("w", 0, 0, type_of(value), shape=shape, name=name)
    data: bytes = ir.to_proto(copy).SerializeToString()
    return data


def _name(nodes: Misplaced) -> str:
    return f"{nodes.graph}: {nodes.count} x {nodes.operator} in {nodes.dtype}"
