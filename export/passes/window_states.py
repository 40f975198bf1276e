"""Let layers with a sliding window forget what lies before it (docs/adr/0038).

Spec: com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md). Its CPU
kernel takes the positions of the rotation from an input, so a row's keys may lie anywhere.

Shape letters: B batch, S new tokens.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ortolan.export.passes.nodes import Insert
from ortolan.runtime.bundle.interface import STEP_INPUTS, WINDOW_STARTS
from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.bundle.source import IDS

_LAST, _TOTAL, _POSITIONS, _BIAS = 5, 6, 9, 10
"""Places of the node's inputs."""


def start_windows(graph: ir.Graph, states: Iterable[State]) -> None:
    """Count the tokens of some states from `window_starts` on.

    last      = seqlens_k - window_starts           (B,)
    total     = max(last) + 1                       ()
    positions = seqlens_k + 1 - S, ..., seqlens_k   (B, S), for the rotation
    """
    values = _values(graph)
    nodes = {node for state in states for node in _readers(values, state)}
    if nodes:
        last, total, positions = _add_lengths(graph, values)
        for node in nodes:
            node.replace_input_with(_LAST, last)
            node.replace_input_with(_TOTAL, total)
            if node.attributes.get_int("do_rotary", 0):
                node.resize_inputs(max(len(node.inputs), _POSITIONS + 1))
                node.replace_input_with(_POSITIONS, positions)


def make_whole(model: ir.Model) -> None:
    """Undo `start_windows`, for runtimes without an input for windows.

    Case 1: the graph has the input `window_starts`: its attention reads the lengths of rows again.
    Case 2: otherwise: keep.
    """
    graph = model.graph
    values = _values(graph)
    starts = values.get(WINDOW_STARTS)
    if starts is None:
        return  # Case 2
    windowed = {output for use in starts.uses() for output in use.node.outputs}
    for node in graph:
        if node.op_type == "GroupQueryAttention" and node.inputs[_LAST] in windowed:
            node.replace_input_with(_LAST, values[STEP_INPUTS[1]])
            node.replace_input_with(_TOTAL, values[STEP_INPUTS[2]])
            if len(node.inputs) > _POSITIONS:
                node.replace_input_with(_POSITIONS, None)
    common.RemoveUnusedNodesPass()(model)
    graph.inputs.remove(starts)


def windows_of(graph: ir.Graph, states: Iterable[State]) -> dict[str, int]:
    """Windows of the states that only fused attention with a window reads, by their names.

    Several layers may share a state; then it is the largest of their windows.
    """
    values = _values(graph)
    windows: dict[str, int] = {}
    for state in states:
        if state.update != "append":
            continue
        sizes = [_window(node) for node in _readers(values, state)]
        if sizes and min(sizes) > 0:
            windows[state.name] = max(sizes)
    return windows


def _values(graph: ir.Graph) -> Mapping[str | None, ir.Value]:
    return {value.name: value for value in (*graph.inputs, *graph.outputs)}


def _readers(values: Mapping[str | None, ir.Value], state: State) -> set[ir.Node]:
    """The nodes that read a state, before or after its new tokens."""
    past, present = values[state.input], values[state.output]
    return {use.node for value in (past, present) for use in value.uses()}


def _window(node: ir.Node) -> int:
    """The window of an attention node; 0 if it has none, or is another node."""
    if node.op_type != "GroupQueryAttention" or len(node.inputs) <= _TOTAL:
        return 0
    others = [node.inputs[place] for place in (_POSITIONS, _BIAS) if place < len(node.inputs)]
    has_others = any(value is not None for value in others)  # a bias has a column for every token
    return 0 if has_others else max(node.attributes.get_int("local_window_size", -1), 0)


def _add_lengths(
    graph: ir.Graph, values: Mapping[str | None, ir.Value]
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Add the input `window_starts`, and `last`, `total` and `positions` before all nodes."""
    ids, lengths = values[IDS], values[STEP_INPUTS[1]]
    starts = ir.val(WINDOW_STARTS, shape=lengths.shape, type=lengths.type)
    graph.inputs.insert(len(STEP_INPUTS), starts)
    new = Insert(graph, graph[0])
    one = new.constant([1])
    last = new.Sub(lengths, starts)
    total = new.Add(new.ReduceMax(last, keepdims=0), np.array(1, np.int32))
    newest = new.Cast(lengths, to=ir.DataType.INT64)
    if ids.shape is not None and ids.shape[1] == 1:
        return last, total, new.Unsqueeze(newest, one)
    count = new.Shape(ids, start=1, end=2)
    # rows of a first call may be shorter than it
    oldest = new.Max(new.Sub(new.Add(newest, one), count), [0])
    steps = new.Range(new.constant(0), new.Squeeze(count), 1)
    return last, total, new.Add(new.Unsqueeze(oldest, one), steps)
