"""Heads are normed before their axis is moved.

Spec: ai.onnx LayerNormalization, version 17, and RMSNormalization, version 23.
"""

import onnx_ir as ir

from ortolan.export.values import producer


class NormBeforeTranspose(ir.passes.InPlacePass):
    """norm(Transpose(x)) becomes Transpose(norm(x)).

    The transpositions before and after attention then meet, and what lies between them is all that
    positions do.

    Case 1: the last axis stays where it is, and the norm is over it alone: rewritten.
    Case 2: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type in ("LayerNormalization", "RMSNormalization"):
                modified = _rewrite(model.graph, node) or modified
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    transpose = producer(node.inputs[0], "Transpose")
    axes = () if transpose is None else transpose.attributes.get_ints("perm", ())
    last = len(axes) - 1
    if transpose is None or not axes or axes[-1] != last:
        return False  # Case 2
    if node.attributes.get_int("axis", -1) not in (-1, last) or len(node.outputs) > 1:
        return False  # Case 2
    x, normed = transpose.inputs[0], node.outputs[0]
    moved = ir.Node("", "Transpose", [normed], [ir.AttrInt64s("perm", axes)], num_outputs=1)
    moved.outputs[0].shape, moved.outputs[0].type = normed.shape, normed.type
    normed.replace_all_uses_with(moved.outputs[0], replace_graph_outputs=True)
    # The loop above gave the new node its own result to read.
    moved.replace_input_with(0, normed)
    graph.insert_after(node, moved)
    node.replace_input_with(0, x)
    normed.shape = None if x is None else x.shape
    return True
