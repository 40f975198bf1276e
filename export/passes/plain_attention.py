"""Attention as products and a softmax, for devices without a kernel for it.

    q · kᵀ -> softcap -> + bias -> seen or lowest -> Softmax -> · v

Spec: ai.onnx Attention, TensorScatter and RotaryEmbedding, version 24, 24 and 23;
com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md).

Shape letters: B batch, S new tokens, T keys, C cache capacity, H query heads, K key/value heads,
D head width, U value width, R rotated channels.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass, axes_of, insert_node, replace_node
from ortolan.export.values import insert_constant, replace_value, static_shape, type_of

_Key = tuple[object, ...]


class PlainAttention(NodePass):
    """Spell out attention that WebGPU has no kernel for.

    Case 1: Attention without a cache of its own: rewrite.
    Case 2: GroupQueryAttention that sees later tokens or has a softcap, without sinks: rewrite.
        WebGPU refuses the first and ignores the second.
    Case 3: TensorScatter along the second-last axis: becomes ScatterND.
    Case 4: otherwise: keep.
    """

    operators = ("Attention", "GroupQueryAttention", "TensorScatter")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        self._shared: dict[_Key, ir.Value] = {}  # all layers read the same masks and positions
        return super().call(model)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        if node.op_type == "Attention":
            return self._attention(graph, node)
        if node.op_type == "TensorScatter":
            return self._scatter(graph, node)
        return self._self_attention(graph, node)

    def _attention(self, graph: ir.Graph, node: ir.Node) -> bool:
        q, k, v, mask, past_key, past_value, lengths = _padded(node.inputs, 7)
        if q is None or k is None or v is None or past_key is not None or past_value is not None:
            return False  # Case 4
        is_bool = mask is not None and mask.dtype == ir.DataType.BOOL
        heads, kv_heads = (_known((axes_of(x) or (0, 0))[1]) for x in (q, k))
        if not heads or not kv_heads or (is_bool and lengths is not None):
            return False  # Case 4
        seen = mask if is_bool else None
        if lengths is not None:
            seen = self._inside(graph, node, lengths, k)
        bias = None if is_bool else mask
        replace_node(graph, node, _attend(graph, node, (q, k, v), (heads, kv_heads), bias, seen))
        return True

    def _self_attention(self, graph: ir.Graph, node: ir.Node) -> bool:
        query, key, value, past_key, past_value, last, total, cos, sin, _, bias, sinks = _padded(
            node.inputs, 12
        )
        is_causal = bool(node.attributes.get_int("causal", 1))
        if (is_causal and not node.attributes.get_float("softcap", 0.0)) or sinks is not None:
            return False  # Case 4
        if query is None or last is None or total is None:
            raise TypeError(f"{node.name}: expected queries and lengths")
        counts = [node.attributes.get_int(name) for name in ("num_heads", "kv_num_heads")]
        q, k, v = _heads(graph, node, (query, key, value), counts)
        start = None if past_key is None else self._start(graph, node, query, last, total)
        positions = self._positions(graph, node, query, start)
        if cos is not None and sin is not None:
            tables = cos, sin, positions
            q, k = (
                _rotated(graph, node, x, tables, n) for x, n in zip((q, k), counts, strict=True)
            )
        if past_key is not None and past_value is not None and start is not None:
            k = self._scattered(graph, node, past_key, k, start)
            v = self._scattered(graph, node, past_value, v, start)
        if is_causal:
            window = node.attributes.get_int("local_window_size", -1)
            seen = self._visible(graph, node, positions, k, window)
        else:
            seen = self._inside(graph, node, last, query, axis=1, inclusive=True)
        out_BHSD = _attend(graph, node, (q, k, v), (counts[0], counts[1]), bias, seen)
        out_BSHD = insert_node(graph, node, "Transpose", [out_BHSD], {"perm": [0, 2, 1, 3]})
        shape = insert_constant(graph, node, np.array([0, 0, -1]))
        for old, present in zip(node.outputs[1:], (k, v), strict=False):
            replace_value(old, present)
        replace_node(graph, node, insert_node(graph, node, "Reshape", [out_BSHD, shape]))
        return True

    def _scatter(self, graph: ir.Graph, node: ir.Node) -> bool:
        past, new, start = _padded(node.inputs, 3)
        axes = None if past is None else axes_of(past)
        if past is None or new is None or start is None or axes is None:
            return False  # Case 4
        if node.attributes.get_int("axis", -2) % len(axes) != len(axes) - 2:
            return False  # Case 4
        replace_node(graph, node, self._scattered(graph, node, past, new, start))
        return True

    def _scattered(
        self, graph: ir.Graph, node: ir.Node, past: ir.Value, new: ir.Value, start: ir.Value
    ) -> ir.Value:
        """`ScatterND(past, places, new)`, which writes in place as TensorScatter does."""
        key = (start, (axes_of(past) or (past,))[1:-2], axes_of(new))
        if key not in self._shared:
            self._shared[key] = _places(graph, node, new, start, len(axes_of(past) or ()) - 1)
        return insert_node(graph, node, "ScatterND", [past, self._shared[key], new])

    def _start(
        self, graph: ir.Graph, node: ir.Node, x: ir.Value, last: ir.Value, total: ir.Value
    ) -> ir.Value:
        """Tokens before a step, int64 `(B,)`: none in a prompt, whose rows are padded."""
        key = ("start", last, (axes_of(x) or (x, x))[1])
        if key not in self._shared:
            new = _size(graph, node, x, 1)
            one, zero = (insert_constant(graph, node, np.array(n, np.int64)) for n in (1, 0))
            length = insert_node(graph, node, "Add", [_as_int64(graph, node, last), one])
            before = insert_node(graph, node, "Sub", [length, new])
            is_prompt = insert_node(graph, node, "Equal", [_as_int64(graph, node, total), new])
            self._shared[key] = insert_node(graph, node, "Where", [is_prompt, zero, before])
        return self._shared[key]

    def _visible(
        self, graph: ir.Graph, node: ir.Node, positions: ir.Value, keys: ir.Value, window: int
    ) -> ir.Value:
        """Keys that a token may see, bool `(B, 1, S, T)`: itself and what the window reaches."""
        key = ("visible", positions, window)
        if key not in self._shared:
            columns = _unsqueezed(graph, node, positions, (1, 3))
            slots = _range(graph, node, keys, 2)
            distance = insert_node(graph, node, "Sub", [columns, slots])
            zero = insert_constant(graph, node, np.array(0, np.int64))
            seen = insert_node(graph, node, "GreaterOrEqual", [distance, zero])
            if window > 0:
                most = insert_constant(graph, node, np.array(window, np.int64))
                near = insert_node(graph, node, "Less", [distance, most])
                seen = insert_node(graph, node, "And", [seen, near])
            self._shared[key] = seen
        return self._shared[key]

    def _inside(
        self,
        graph: ir.Graph,
        node: ir.Node,
        lengths: ir.Value,
        keys: ir.Value,
        *,
        axis: int = 2,
        inclusive: bool = False,
    ) -> ir.Value:
        """Keys that are not padding, bool `(B, 1, 1, T)`.

        Args:
            graph: to insert into.
            node: to insert before.
            lengths: of each row `(B,)`, or the last position if `inclusive`.
            keys: has the T keys along `axis`.
            axis: of `keys`.
            inclusive: whether `lengths` are positions.
        """
        key = (lengths, (axes_of(keys) or (keys,) * (axis + 1))[axis])
        if key not in self._shared:
            steps = _range(graph, node, keys, axis)
            columns = _unsqueezed(graph, node, _as_int64(graph, node, lengths), (1, 2, 3))
            comparison = "LessOrEqual" if inclusive else "Less"
            self._shared[key] = insert_node(graph, node, comparison, [steps, columns])
        return self._shared[key]

    def _positions(
        self, graph: ir.Graph, node: ir.Node, x: ir.Value, start: ir.Value | None
    ) -> ir.Value:
        """Positions of the tokens of `(B, S, ...)`, int64 `(B, S)`."""
        key = ("positions", start, (axes_of(x) or (x, x))[:2])
        if key not in self._shared:
            steps = _range(graph, node, x, 1)
            if start is None:
                shape = insert_node(graph, node, "Shape", [x], {"start": 0, "end": 2})
                self._shared[key] = insert_node(graph, node, "Expand", [steps, shape])
            else:
                column = _unsqueezed(graph, node, start, [1])
                self._shared[key] = insert_node(graph, node, "Add", [column, steps])
        return self._shared[key]


def _attend(
    graph: ir.Graph,
    node: ir.Node,
    qkv: Sequence[ir.Value],
    heads: tuple[int, int],
    bias: ir.Value | None,
    seen: ir.Value | None,
) -> ir.Value:
    """Softmax attention, `(B, H, S, U)`.

    Args:
        graph: to insert into.
        node: to insert before; has the scale and the softcap.
        qkv: queries `(B, H, S, D)`, keys `(B, K, T, D)` and values `(B, K, T, U)`.
        heads: H and K.
        bias: added to the scores, `(B | 1, H | 1, S, T)`.
        seen: bool `(B | 1, 1, S | 1, T)`.
    """
    q, k, v = qkv
    dtype = type_of(node.outputs[0])
    if heads[0] > heads[1]:
        order = insert_constant(graph, node, np.arange(heads[0]) * heads[1] // heads[0])
        k, v = (insert_node(graph, node, "Gather", [x, order], {"axis": 1}) for x in (k, v))
    scale = _number(graph, node, node.attributes.get_float("scale"), dtype)
    k_BHDT = insert_node(graph, node, "Transpose", [k], {"perm": [0, 1, 3, 2]})
    scaled = insert_node(graph, node, "Mul", [q, scale])
    scores = insert_node(graph, node, "MatMul", [scaled, k_BHDT])
    cap = node.attributes.get_float("softcap", 0.0)
    if cap:
        limit = _number(graph, node, cap, dtype)
        scores = insert_node(graph, node, "Div", [scores, limit])
        scores = insert_node(graph, node, "Tanh", [scores])
        scores = insert_node(graph, node, "Mul", [scores, limit])
    if bias is not None:
        scores = insert_node(graph, node, "Add", [scores, bias])
    if seen is not None:
        lowest = _number(graph, node, float(np.finfo(dtype.numpy()).min), dtype)
        scores = insert_node(graph, node, "Where", [seen, scores, lowest])
    weights = insert_node(graph, node, "Softmax", [scores], {"axis": -1})
    return insert_node(graph, node, "MatMul", [weights, v])


def _heads(
    graph: ir.Graph, node: ir.Node, qkv: Sequence[ir.Value | None], counts: Sequence[int]
) -> list[ir.Value]:
    """Queries, keys and values by heads, from three values or from one; `counts` are H and K."""
    query, key, value = qkv
    numbers = [counts[0], counts[1], counts[1]]
    if query is not None and key is not None and value is not None:
        return [
            _split_heads(graph, node, x, number)
            for x, number in zip((query, key, value), numbers, strict=True)
        ]
    if query is None:
        raise TypeError(f"{node.name}: expected queries")
    joined = _split_heads(graph, node, query, sum(numbers))
    sizes = insert_constant(graph, node, np.array(numbers))
    parts = ir.node("Split", [joined, sizes], {"axis": 1}, num_outputs=3)
    graph.insert_before(node, parts)
    return list(parts.outputs)


def _split_heads(graph: ir.Graph, node: ir.Node, x: ir.Value, count: int) -> ir.Value:
    """`(B, S, N * D)` to `(B, N, S, D)`."""
    shape = insert_constant(graph, node, np.array([0, 0, count, -1]))
    apart = insert_node(graph, node, "Reshape", [x, shape])
    return insert_node(graph, node, "Transpose", [apart], {"perm": [0, 2, 1, 3]})


def _rotated(
    graph: ir.Graph,
    node: ir.Node,
    x_BNSD: ir.Value,
    tables: tuple[ir.Value, ir.Value, ir.Value],
    count: int,
) -> ir.Value:
    """Heads turned by their positions; `tables` are cosines, sines and positions."""
    attributes = {
        "interleaved": node.attributes.get_int("rotary_interleaved", 0),
        "num_heads": count,
        "rotary_embedding_dim": 2 * static_shape(tables[0])[1],
    }
    return insert_node(graph, node, "RotaryEmbedding", [x_BNSD, *tables], attributes)


def _places(
    graph: ir.Graph, node: ir.Node, new: ir.Value, start_B: ir.Value, places: int
) -> ir.Value:
    """Indices `(*new.shape[:-1], places)` of what is written: the token lies `start` further."""
    shape = insert_node(graph, node, "Shape", [new], {"start": 0, "end": places})
    columns = []
    for axis in range(places):
        others = [n for n in range(places) if n != axis]
        index = _unsqueezed(graph, node, _range(graph, node, new, axis), others)
        if axis == places - 1:
            first = _unsqueezed(graph, node, start_B, range(1, places))
            index = insert_node(graph, node, "Add", [index, first])
        whole = insert_node(graph, node, "Expand", [index, shape])
        columns.append(_unsqueezed(graph, node, whole, [places]))
    return insert_node(graph, node, "Concat", columns, {"axis": -1})


def _range(graph: ir.Graph, node: ir.Node, x: ir.Value, axis: int) -> ir.Value:
    """Numbers of the places along an axis, int64."""
    zero, one = (insert_constant(graph, node, np.array(n, np.int64)) for n in (0, 1))
    return insert_node(graph, node, "Range", [zero, _size(graph, node, x, axis), one])


def _size(graph: ir.Graph, node: ir.Node, x: ir.Value, axis: int) -> ir.Value:
    size = insert_node(graph, node, "Shape", [x], {"start": axis, "end": axis + 1})
    return insert_node(graph, node, "Squeeze", [size])


def _unsqueezed(graph: ir.Graph, node: ir.Node, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    at = insert_constant(graph, node, np.array(axes, np.int64))
    return insert_node(graph, node, "Unsqueeze", [x, at])


def _as_int64(graph: ir.Graph, node: ir.Node, x: ir.Value) -> ir.Value:
    return insert_node(graph, node, "Cast", [x], {"to": ir.DataType.INT64})


def _number(graph: ir.Graph, node: ir.Node, value: float, dtype: ir.DataType) -> ir.Value:
    return insert_constant(graph, node, np.array(value, dtype.numpy()))


def _known(axis: int | str) -> int:
    """The size of an axis; 0 if it varies."""
    return axis if isinstance(axis, int) else 0


def _padded(inputs: Sequence[ir.Value | None], count: int) -> list[ir.Value | None]:
    """As many inputs as the operator may have."""
    return [*inputs, *[None] * (count - len(inputs))]
