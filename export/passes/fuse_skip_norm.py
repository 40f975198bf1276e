"""Fuse a residual sum and the norm of it into one node.

Spec: com.microsoft.SkipSimplifiedLayerNormalization, version 1 (onnxruntime,
docs/ContribOperators.md).
"""

import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, NodePass, replace_node
from ortolan.export.values import producer


class FuseSkipNorm(NodePass):
    """Replace RMSNormalization(Add(a, b)) with SkipSimplifiedLayerNormalization(a, b).

    The fused node returns the norm and the sum, which the next residual needs. The fixed cost of a
    node dominates the step of a small model, so one node less in each sublayer counts.

    Case 1: a norm over the last axis of the sum of two tensors of one shape: rewrite.
    Case 2: otherwise, such as a sum with a bias, more than three axes, or a norm whose weight
        depends on an input: keep.
    """

    operators = ("RMSNormalization",)
    writes_contrib = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        result = super().call(model)
        if result.modified:
            # A computed weight of ones may come after the sum.
            model.graph.sort()
        return result

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        add = producer(node.inputs[0], "Add")
        if add is None or node.attributes.get_int("axis", -1) != -1:
            return False  # Case 2
        a, b = add.inputs
        if a is None or b is None or a.shape is None or b.shape is None or a.shape != b.shape:
            return False  # Case 2
        if len(a.shape) > 3 or not _is_fixed(node.inputs[1]):
            return False  # Case 2
        fused = ir.node(
            "SkipSimplifiedLayerNormalization",
            [a, b, node.inputs[1]],
            {"epsilon": node.attributes.get_float("epsilon", 1e-5)},
            domain=CONTRIB,
            num_outputs=4,
        )
        # In the place of the sum: every reader of it comes later.
        graph.insert_before(add, fused)
        normed, mean, deviation, total = fused.outputs
        replace_node(graph, node, normed)
        replace_node(graph, add, total)
        # These have no reader: a name would make them outputs.
        mean.name = deviation.name = ""
        return True


def _is_fixed(value: ir.Value | None) -> bool:
    """Whether a value is the same in every run."""
    if value is None or value.is_initializer():
        return True
    node = value.producer()
    return node is not None and all(map(_is_fixed, node.inputs))
