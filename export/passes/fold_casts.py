"""Constants are written in the type that their readers want.

Spec: ai.onnx Cast and CastLike.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.values import replace_value


class FoldCasts(ir.passes.InPlacePass):
    """Cast(Constant) and CastLike(Constant, x) become a Constant.

    The exporter casts every number of a sum to the type of the other side. onnxruntime folds few
    of these, and a step of a small model is dominated by what a node costs at least.

    Case 1: the constant is a number or a vector, and the type is known: rewritten.
    Case 2: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type in ("Cast", "CastLike") and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    source = node.inputs[0]
    values = None if source is None else _constant(source)
    dtype = _target(node)
    if values is None or dtype is None:
        return False  # Case 2
    tensor = ir.tensor(values.astype(dtype.numpy()), dtype=dtype)
    constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1)
    graph.insert_before(node, constant)
    replace_value(node.outputs[0], constant.outputs[0])
    graph.remove(node, safe=True)
    return True


def _constant(value: ir.Value) -> np.ndarray | None:
    """The small constant that a value is."""
    producer = value.producer()
    if producer is None or producer.op_type != "Constant":
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size > 8 else tensor.numpy()


def _target(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes.get_int("to"))
    like = node.inputs[1]
    return None if like is None else like.dtype
