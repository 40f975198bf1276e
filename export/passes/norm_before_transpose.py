"""Norm heads before their axis is moved.

Spec: ai.onnx LayerNormalization, version 17, and RMSNormalization, version 23.
"""

import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass
from ortolan.export.values import producer


class NormBeforeTranspose(NodePass):
    """Replace norm(Transpose(x)) with Transpose(norm(x)).

    The transpositions before and after attention then meet, and only the rotation by positions
    is left between them.

    Case 1: a norm over the last axis, which stays in its place: rewrite.
    Case 2: otherwise: keep.
    """

    operators = ("LayerNormalization", "RMSNormalization")

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        transpose = producer(node.inputs[0], "Transpose")
        axes = () if transpose is None else transpose.attributes.get_ints("perm", ())
        last = len(axes) - 1
        if transpose is None or not axes or axes[-1] != last:
            return False  # Case 2
        if node.attributes.get_int("axis", -1) not in (-1, last) or len(node.outputs) > 1:
            return False  # Case 2
        x, normed = transpose.inputs[0], node.outputs[0]
        moved = ir.node("Transpose", [normed], {"perm": axes})
        moved.outputs[0].shape, moved.outputs[0].type = normed.shape, normed.type
        normed.replace_all_uses_with(moved.outputs[0], replace_graph_outputs=True)
        # That gave the new node its own result to read.
        moved.replace_input_with(0, normed)
        graph.insert_after(node, moved)
        node.replace_input_with(0, x)
        normed.shape = None if x is None else x.shape
        return True
