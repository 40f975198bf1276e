"""Let a decoder take an attention mask in place of lengths.

Spec: GroupQueryAttention of com.microsoft, version 1; ReduceSum, ArgMax and GatherElements of
ai.onnx.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import insert_node
from ortolan.export.values import insert_constant
from ortolan.runtime.bundle.interface import LOGITS, STEP_INPUTS
from ortolan.runtime.bundle.source import IDS

MASK = "attention_mask"
"""Input that replaces the lengths, int64 `(batch, total)`: 1 for tokens, 0 for padding."""

_LENGTHS, _TOTAL, _POSITIONS = STEP_INPUTS[1:]


class TakeMask(ir.passes.InPlacePass):
    """Compute lengths and the last position of each row from an attention mask.

    The tokens of a row become adjacent at its start, where the cache expects them, so padding may
    be on either side:

        input_ids    [[pad, pad, 5, 6, 7]]  ─►  [[5, 6, 7, pad, pad]]
        mask         [[  0,   0, 1, 1, 1]]  ─►  seqlens_k [2], logit position [2]

    The logits are those of the last token of each row, `(batch, 1, vocabulary)`.

    Case 1: the graph has the inputs of a decoder step: replace all but the ids.
    Case 2: otherwise: keep.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph = model.graph
        inputs = {value.name: value for value in graph.inputs}
        if not set(STEP_INPUTS) <= inputs.keys():
            return ir.passes.PassResult(model, False)  # Case 2
        mask = ir.Value(
            name=MASK, shape=ir.Shape(["batch", "total"]), type=ir.TensorType(ir.DataType.INT64)
        )
        front = _Front(graph, inputs[IDS], mask)
        for name, value in (
            (_LENGTHS, front.last_of_row()),
            (_TOTAL, front.total()),
            (_POSITIONS, front.last_of_call()),
        ):
            inputs[name].replace_all_uses_with(value)
            graph.inputs.remove(inputs[name])
        front.align_ids()
        graph.inputs.insert(1, mask)
        for output in graph.outputs:
            if output.name == LOGITS and output.shape is not None:
                output.shape = ir.Shape([output.shape[0], 1, output.shape[2]])
        return ir.passes.PassResult(model, True)


class _Front:
    """Nodes in front of a graph."""

    def __init__(self, graph: ir.Graph, ids: ir.Value, mask: ir.Value) -> None:
        self._graph, self._ids, self._before = graph, ids, graph[0]
        self._users = list(ids.uses())
        self._mask = self._node("Cast", mask, to=ir.DataType.INT32)
        self._mask_shape = self._node("Shape", mask)
        self._ids_shape = self._node("Shape", ids)
        self._first, self._second = self._constant([0]), self._constant([1])
        self._one = self._constant([1], np.int32)
        self._new_tokens = self._node("Gather", self._ids_shape, self._second)
        start = self._node("Neg", self._new_tokens)
        end = self._constant([np.iinfo(np.int64).max])
        self._new_mask = self._node("Slice", self._mask, start, end, self._second)

    def last_of_row(self) -> ir.Value:
        """Position of the last token of each row, int32 `(batch,)`."""
        count = self._node("ReduceSum", self._mask, self._second, keepdims=0)
        return self._node("Sub", count, self._one)

    def total(self) -> ir.Value:
        """Width of the mask, an int32 scalar."""
        width = self._node("Gather", self._mask_shape, self._constant(1))
        return self._node("Cast", width, to=ir.DataType.INT32)

    def last_of_call(self) -> ir.Value:
        """Place of the last token of each row among its new tokens, int64 `(batch, 1)`."""
        count = self._node("ReduceSum", self._new_mask, self._second, keepdims=1)
        last = self._node("Sub", count, self._one)
        return self._node("Cast", last, to=ir.DataType.INT64)

    def align_ids(self) -> None:
        """Rotate each row so that its first token comes first."""
        first = self._node("ArgMax", self._new_mask, axis=1, keepdims=1)
        size = self._node("Squeeze", self._new_tokens, self._first)
        places = self._node("Range", self._constant(0), size, self._constant(1))
        rotated = self._node("Mod", self._node("Add", places, first), size)
        ids = self._node("GatherElements", self._ids, rotated, axis=1)
        ids.shape, ids.type = self._ids.shape, self._ids.type
        for user, place in self._users:
            user.replace_input_with(place, ids)

    def _node(self, operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        return insert_node(self._graph, self._before, operator, inputs, attributes)

    def _constant(self, value: int | list[int], dtype: type[np.integer] = np.int64) -> ir.Value:
        return insert_constant(self._graph, self._before, np.array(value, dtype))
