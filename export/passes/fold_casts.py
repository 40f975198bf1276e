"""Write constants in the type that their readers need.

Spec: ai.onnx Cast and CastLike.
"""

import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass, insert_node, replace_node
from ortolan.export.values import producer

LARGEST = 8
"""Elements of a constant that is cast."""


class FoldCasts(NodePass):
    """Replace Cast(constant) and CastLike(constant, x) with a constant.

    The exporter casts every number in a sum to the type of the other operand. onnxruntime folds
    few of these casts, and the fixed cost of a node dominates the step of a small model.

    Case 1: a constant of at most 8 elements, to a known type: rewrite.
    Case 2: otherwise: keep.
    """

    operators = ("Cast", "CastLike")

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        constant = producer(node.inputs[0], "Constant")
        # Reading the tensor also names it, which is part of the bundle's bytes: even if it stays.
        tensor = None if constant is None else ir.convenience.get_const_tensor(constant.outputs[0])
        dtype = _target(node)
        if tensor is None or tensor.size > LARGEST or dtype is None:
            return False  # Case 2
        cast = ir.tensor(tensor.numpy().astype(dtype.numpy()), dtype=dtype)
        replace_node(graph, node, insert_node(graph, node, "Constant", [], {"value": cast}))
        return True


def _target(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes.get_int("to"))
    like = node.inputs[1]
    return None if like is None else like.dtype
