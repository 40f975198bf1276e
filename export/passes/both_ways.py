"""Let the new tokens of a call attend to each other in both directions (docs/adr/0046).

Spec: com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md). With
`causal=0` its CPU kernel attends to every token of a row. It then accepts no window, but a bias.

Shape letters: S new tokens, T tokens attended to.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortolan.export.errors import OptionError
from ortolan.export.passes.nodes import Insert

_TOTAL, _BIAS = 6, 10
"""Places of the node's inputs."""


def see_both_ways(graph: ir.Graph) -> None:
    """Rewrite the attention of a decoder's graph for one row of vectors that see each other.

    Case 1: without a window: `causal=0`.
    Case 2: with a window W: also the bias `(1, 1, S, T)` of 0, or -inf where the token lies W or
        more before the query, which is at place `T - S + s`.
    """
    nodes = [node for node in graph if node.op_type == "GroupQueryAttention"]
    _check(graph, nodes)
    biases: dict[tuple[ir.Value, int], ir.Value] = {}
    for node in nodes:
        node.attributes["causal"] = ir.AttrInt64("causal", 0)
        window = node.attributes.get_int("local_window_size", -1)
        if window < 0:
            continue  # Case 1
        node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", -1)
        total = node.inputs[_TOTAL]
        query = node.inputs[0]
        if total is None or query is None or query.dtype is None:
            raise TypeError("expected attention after a cache")
        if (total, window) not in biases:
            dtype = query.dtype.numpy()
            biases[total, window] = _bias(graph, nodes[0], total, window, dtype)
        node.resize_inputs(max(len(node.inputs), _BIAS + 1))
        node.replace_input_with(_BIAS, biases[total, window])


def _check(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    others = {node.op_type for node in graph if node.op_type == "Attention"}
    if any(len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None for node in nodes):
        others.add("GroupQueryAttention with a bias")
    if others or not nodes:
        raise OptionError(
            "The vectors of this model's images see each other, which needs onnxruntime's fused "
            f"attention in every layer (got {', '.join(sorted(others)) or 'none'}). Add "
            "--text-only."
        )


def _bias(
    graph: ir.Graph, before: ir.Node, total: ir.Value, window: int, dtype: np.dtype[Any]
) -> ir.Value:
    """The bias of a window."""
    new = Insert(graph, before)
    count = new.Squeeze(new.Shape(before.inputs[0], start=1, end=2))
    end = new.Cast(total, to=ir.DataType.INT64)
    queries_S = new.Range(new.Sub(end, count), end, 1)
    nearest_S1 = new.Unsqueeze(new.Sub(queries_S, window - 1), [1])
    far_ST = new.Less(new.Range(0, end, 1), nearest_S1)
    bias_ST = new.Where(far_ST, np.array(-np.inf, dtype), np.array(0.0, dtype))
    return new.Unsqueeze(bias_ST, [0, 1])
