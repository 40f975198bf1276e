"""Spell out convolutions that continue a sequence with standard operators.

Spec: com.microsoft.CausalConvWithState, version 1 (onnxruntime, docs/ContribOperators.md). A body
cannot replace the node: a depthwise Conv needs the number of channels as an attribute.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass, insert_node
from ortolan.export.values import insert_constant, replace_value, static_shape

_END = np.iinfo(np.int64).max


class PlainConvolutions(NodePass):
    """Replace every CausalConvWithState with Concat, Conv and Slice.

    state, x -> Concat -> Conv -> y
                Concat -> Slice -> new state
    """

    operators = ("CausalConvWithState",)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        x, weight, bias, state = node.inputs
        if x is None or weight is None or state is None:
            raise TypeError(f"{node.name}: expected a convolution with its state")
        channels, _, taps = static_shape(weight)
        joined = insert_node(graph, node, "Concat", [state, x], {"axis": 2})
        bounds = [insert_constant(graph, node, np.array([n])) for n in (1 - taps, _END, 2)]
        inputs = [joined, weight] if bias is None else [joined, weight, bias]
        convolved = insert_node(graph, node, "Conv", inputs, {"group": channels})
        replace_value(node.outputs[0], convolved)
        replace_value(node.outputs[1], insert_node(graph, node, "Slice", [joined, *bounds]))
        graph.remove(node, safe=True)
        return True
