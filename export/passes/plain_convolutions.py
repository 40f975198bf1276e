"""Convolutions that continue a text, of standard operators.

Spec: com.microsoft.CausalConvWithState, version 1 (onnxruntime, docs/ContribOperators.md). No body
can take its place: a convolution by channel says how many channels there are.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.values import insert_constant, replace_value, static_shape

_END = np.iinfo(np.int64).max


class PlainConvolutions(ir.passes.InPlacePass):
    """Every node becomes three: tokens before and new ones are joined, cut, and convolved."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        nodes = [node for node in model.graph if node.op_type == "CausalConvWithState"]
        for node in nodes:
            _rewrite(model.graph, node)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _rewrite(graph: ir.Graph, node: ir.Node) -> None:
    x, weight, bias, before = node.inputs
    if x is None or weight is None or before is None:
        raise TypeError(f"{node.name}: expected a convolution with its state")
    channels, _, taps = static_shape(weight)
    join = ir.Node("", "Concat", [before, x], [ir.AttrInt64("axis", 2)], num_outputs=1)
    graph.insert_before(node, join)
    limits = [insert_constant(graph, node, np.array([each])) for each in (1 - taps, _END, 2)]
    (reach,) = join.outputs
    last = ir.Node("", "Slice", [reach, *limits], num_outputs=1)
    given = [reach, weight] if bias is None else [reach, weight, bias]
    convolve = ir.Node("", "Conv", given, [ir.AttrInt64("group", channels)], num_outputs=1)
    for old, made in zip(node.outputs, (convolve, last), strict=True):
        graph.insert_before(node, made)
        replace_value(old, made.outputs[0])
    graph.remove(node, safe=True)
