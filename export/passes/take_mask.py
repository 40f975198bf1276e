"""Let a decoder take an attention mask in place of lengths.

Spec: GroupQueryAttention of com.microsoft, version 1; ReduceSum, ArgMax and GatherElements of
ai.onnx.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import Insert
from ortolan.runtime.bundle.interface import LOGITS, STEP_INPUTS
from ortolan.runtime.bundle.source import IDS

MASK = "attention_mask"
"""Input that replaces the lengths, int64 `(batch, total)`: 1 for tokens, 0 for padding."""

_END = np.iinfo(np.int64).max


def take_mask(graph: ir.Graph) -> None:
    """Compute lengths and the last position of each row from an attention mask.

    The tokens of a row become adjacent at its start, where the cache expects them, so padding may
    be on either side:

        input_ids    [[pad, pad, 5, 6, 7]]  ─►  [[5, 6, 7, pad, pad]]
        mask         [[  0,   0, 1, 1, 1]]  ─►  seqlens_k [2], logit position [2]

    The logits are those of the last token of each row, `(batch, 1, vocabulary)`.

    Case 1: the graph has the inputs of a decoder step: replace all but the ids.
    Case 2: otherwise: keep.
    """
    inputs = {value.name: value for value in graph.inputs}
    if not set(STEP_INPUTS) <= inputs.keys():
        return  # Case 2
    mask = ir.val(MASK, ir.DataType.INT64, ["batch", "total"])
    for name, value in zip(STEP_INPUTS[1:], _lengths(graph, inputs[IDS], mask), strict=True):
        inputs[name].replace_all_uses_with(value)
        graph.inputs.remove(inputs[name])
    graph.inputs.insert(1, mask)
    for output in graph.outputs:
        if output.name == LOGITS and output.shape is not None:
            output.shape = ir.Shape([output.shape[0], 1, output.shape[2]])


def _lengths(graph: ir.Graph, ids: ir.Value, mask: ir.Value) -> tuple[ir.Value, ...]:
    """Insert the nodes; return lengths, the total length and the places of logits.

    Rotates each row of ids, so that its first token comes first.
    """
    new, readers = Insert(graph, graph[0]), list(ids.uses())
    mask = new.Cast(mask, to=ir.DataType.INT32)
    count = new.Gather(new.Shape(ids), [1])
    new_mask = new.Slice(mask, new.Neg(count), [_END], [1])
    lengths = new.Sub(new.ReduceSum(mask, [1], keepdims=0), np.array([1], np.int32))
    total = new.Cast(new.Gather(new.Shape(mask), 1), to=ir.DataType.INT32)
    last = new.Sub(new.ReduceSum(new_mask, [1], keepdims=1), np.array([1], np.int32))
    size = new.Squeeze(count, [0])
    steps = new.Range(0, size, 1)
    first = new.ArgMax(new_mask, axis=1, keepdims=1)
    rotated = new.GatherElements(ids, new.Mod(new.Add(steps, first), size), axis=1)
    rotated.shape, rotated.type = ids.shape, ids.type
    for reader, place in readers:
        reader.replace_input_with(place, rotated)
    return lengths, total, new.Cast(last, to=ir.DataType.INT64)
