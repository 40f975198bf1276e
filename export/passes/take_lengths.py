"""Let a decoder take the lengths of its rows in place of an attention mask.

The opposite of `take_mask`. Spec: GroupQueryAttention of com.microsoft, version 1.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import insert_node
from ortolan.export.passes.take_mask import MASK
from ortolan.export.values import insert_constant
from ortolan.runtime.bundle.interface import IDS, LOGITS, STEP_INPUTS

_SEQLENS, _TOTAL = 5, 6
"""Places of the lengths among the inputs of GroupQueryAttention."""

_BY_ELEMENT = {"Add", "Cast", "Div", "Mul", "Softcap", "Sub", "Tanh"}
"""Operators between the head and the logits."""

_HEADS = {"FusedMatMul", "Gemm", "MatMul", "MatMulNBits"}


class TakeLengths(ir.passes.InPlacePass):
    """Give attention the lengths of the contract, and compute only the logits that are wanted.

    Case 1: the graph has an attention mask and logits of a known head: rewrite. What read the mask
        remains without readers.
    Case 2: otherwise: keep.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph = model.graph
        mask = next((value for value in graph.inputs if value.name == MASK), None)
        head = _head(graph)
        if mask is None or head is None:
            return ir.passes.PassResult(model, False)  # Case 2
        lengths = _input(STEP_INPUTS[1], ["batch"], ir.DataType.INT32)
        total = _input(STEP_INPUTS[2], [], ir.DataType.INT32)
        positions = _input(STEP_INPUTS[3], ["batch", "rows"], ir.DataType.INT64)
        for node in graph:
            if node.op_type == "GroupQueryAttention":
                node.replace_input_with(_SEQLENS, lengths)
                node.replace_input_with(_TOTAL, total)
        last = insert_constant(graph, head, np.array([-1]))
        places = insert_node(graph, head, "Unsqueeze", [positions, last])
        hidden = head.inputs[0]
        wanted = insert_node(graph, head, "GatherND", [hidden, places], {"batch_dims": 1})
        head.replace_input_with(0, wanted)
        ids = next(place for place, value in enumerate(graph.inputs) if value.name == IDS)
        for place, value in enumerate((lengths, total, positions)):
            graph.inputs.insert(ids + 1 + place, value)
        return ir.passes.PassResult(model, True)


def _input(name: str, axes: list[str], dtype: ir.DataType) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(axes), type=ir.TensorType(dtype))


def _head(graph: ir.Graph) -> ir.Node | None:
    """The product whose result, changed element by element at most, is the logits."""
    value = next((value for value in graph.outputs if value.name == LOGITS), None)
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _BY_ELEMENT:
        source = node.inputs[0]
        node = None if source is None else source.producer()
    return node if node is not None and node.op_type in _HEADS else None
