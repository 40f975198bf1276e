"""Attention as products and a softmax, for devices without a kernel for it.

    q · kᵀ -> softcap -> + bias -> seen or lowest -> Softmax -> · v

Scores and weights are float32, whatever the type of the model is.

Spec: ai.onnx Attention, TensorScatter and RotaryEmbedding, version 24, 24 and 23;
com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md).

Shape letters: B batch, S new tokens, T keys, C cache capacity, H query heads, K key/value heads,
D head width, U value width, R rotated channels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass, axes_of, insert_node, replace_node
from ortolan.export.values import insert_constant, replace_value, static_shape, type_of

_Key = tuple[object, ...]


class _Kernels(NamedTuple):
    """Kernels for attention of a device.

    Attributes:
        without: operators that have none.
        unfit: whether the kernel of GroupQueryAttention refuses or miscalculates a node.
    """

    without: tuple[str, ...]
    unfit: Callable[[ir.Node], bool]


def _unfit_for_webgpu(node: ir.Node) -> bool:
    """A softcap is ignored, and later tokens are refused (onnxruntime-ep-webgpu 0.4)."""
    return not node.attributes.get_int("causal", 1) or bool(
        node.attributes.get_float("softcap", 0.0)
    )


def _unfit_for_cuda(node: ir.Node) -> bool:
    """It refuses a cache that is not returned; a bias is wrong in short rows, sinks are inexact.

    Source: onnxruntime-gpu 1.31.1, measured in benchmarks/results/cuda.md.
    """
    bias, sinks = _padded(node.inputs, 12)[10:]
    return len(node.outputs) < len(_RETURNED) or bias is not None or sinks is not None


_RETURNED = ("output", "present_key", "present_value")

_KERNELS: Mapping[str, _Kernels] = {
    "cuda": _Kernels((), _unfit_for_cuda),
    "webgpu": _Kernels(("Attention", "TensorScatter"), _unfit_for_webgpu),
}


class PlainAttention(NodePass):
    """Spell out attention that a GPU has no correct kernel for.

    Case 1: Attention without a cache of its own, on WebGPU: rewrite.
    Case 2: GroupQueryAttention that the device's kernel is unfit for: rewrite.
    Case 3: TensorScatter along the second-last axis, on WebGPU: becomes ScatterND.
    Case 4: otherwise: keep.
    """

    def __init__(self, device: Literal["cuda", "webgpu"]) -> None:
        super().__init__()
        self._kernels = _KERNELS[device]
        self.operators = ("GroupQueryAttention", *self._kernels.without)

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
        added = _Added(bias, seen, None)
        replace_node(graph, node, _attend(graph, node, (q, k, v), (heads, kv_heads), added))
        return True

    def _self_attention(self, graph: ir.Graph, node: ir.Node) -> bool:
        query, key, value, past_key, past_value, last, total, cos, sin, _, bias, sinks = _padded(
            node.inputs, 12
        )
        if not self._kernels.unfit(node):
            return False  # Case 4
        is_causal = bool(node.attributes.get_int("causal", 1))
        if query is None or last is None or total is None:
            raise TypeError(f"{node.name}: expected queries and lengths")
        counts = [node.attributes.get_int(name) for name in ("num_heads", "kv_num_heads")]
        start = None if past_key is None else self._start(graph, node, query, last, total)
        positions = self._positions(graph, node, query, start)
        tables = None if cos is None or sin is None else (cos, sin, positions)
        if past_key is not None and past_value is not None and len(node.outputs) == 1:
            # Another layer has written the new keys.
            q = _split_heads(graph, node, query, counts[0])
            q, k, v = _rotated(graph, node, q, tables, counts[0]), past_key, past_value
        else:
            q, k, v = _heads(graph, node, (query, key, value), counts)
            q, k = (
                _rotated(graph, node, x, tables, n) for x, n in zip((q, k), counts, strict=True)
            )
            if past_key is not None and past_value is not None and start is not None:
                k = self._scattered(graph, node, past_key, k, start)
                v = self._scattered(graph, node, past_value, v, start)
        presents = (k, v)
        if bias is not None and start is not None:
            k, v = (_first(graph, node, x, bias) for x in (k, v))
        if is_causal:
            window = node.attributes.get_int("local_window_size", -1)
            seen = self._visible(graph, node, positions, k, window)
        else:
            seen = self._inside(graph, node, last, query, axis=1, inclusive=True)
        added = _Added(bias, seen, sinks)
        out_BHSD = _attend(graph, node, (q, k, v), (counts[0], counts[1]), added)
        out_BSHD = insert_node(graph, node, "Transpose", [out_BHSD], {"perm": [0, 2, 1, 3]})
        shape = insert_constant(graph, node, np.array([0, 0, -1]))
        for old, present in zip(node.outputs[1:], presents, strict=False):
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
        """The cache `past` with `new` from `start` on, in place."""
        if "TensorScatter" not in self._kernels.without:
            return insert_node(graph, node, "TensorScatter", [past, new, start], {"axis": -2})
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
        key = ("visible", positions, window, (axes_of(keys) or (keys,) * 3)[2])
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


class _Added(NamedTuple):
    """Changes of the scores.

    Attributes:
        bias: added to them, `(B | 1, H | 1, S, T)`.
        seen: bool `(B | 1, 1, S | 1, T)`.
        sinks: scores of one more key, whose value is zero, `(H,)`.
    """

    bias: ir.Value | None
    seen: ir.Value | None
    sinks: ir.Value | None


def _attend(
    graph: ir.Graph,
    node: ir.Node,
    qkv: Sequence[ir.Value],
    heads: tuple[int, int],
    added: _Added,
) -> ir.Value:
    """Softmax attention, `(B, H, S, U)`.

    Args:
        graph: to insert into.
        node: to insert before; has the scale and the softcap.
        qkv: queries `(B, H, S, D)`, keys `(B, K, T, D)` and values `(B, K, T, U)`.
        heads: H and K.
        added: to the scores.
    """
    q, k, v = qkv
    dtype = type_of(node.outputs[0])
    if heads[0] > heads[1]:
        order = insert_constant(graph, node, np.arange(heads[0]) * heads[1] // heads[0])
        k, v = (insert_node(graph, node, "Gather", [x, order], {"axis": 1}) for x in (k, v))
    scores = _products(graph, node, q, k)
    cap = node.attributes.get_float("softcap", 0.0)
    if cap:
        limit = _number(graph, node, cap)
        scores = insert_node(graph, node, "Div", [scores, limit])
        scores = insert_node(graph, node, "Tanh", [scores])
        scores = insert_node(graph, node, "Mul", [scores, limit])
    if added.bias is not None:
        bias = _cast(graph, node, added.bias, dtype, ir.DataType.FLOAT)
        scores = insert_node(graph, node, "Add", [scores, bias])
    if added.seen is not None:
        lowest = _number(graph, node, float(np.finfo(np.float32).min))
        scores = insert_node(graph, node, "Where", [added.seen, scores, lowest])
    if added.sinks is not None:
        sinks = _cast(graph, node, added.sinks, dtype, ir.DataType.FLOAT)
        sinks_BHS1 = _sink_scores(graph, node, sinks, scores)
        scores = insert_node(graph, node, "Concat", [scores, sinks_BHS1], {"axis": -1})
    weights = insert_node(graph, node, "Softmax", [scores], {"axis": -1})
    if added.sinks is not None:
        last = insert_constant(graph, node, np.array([-1]))
        weights = _sliced(graph, node, weights, last, axis=-1)
    weights = _cast(graph, node, weights, ir.DataType.FLOAT, dtype)
    return insert_node(graph, node, "MatMul", [weights, v])


def _products(graph: ir.Graph, node: ir.Node, q: ir.Value, k: ir.Value) -> ir.Value:
    """`scale * q @ kᵀ` in float32.

    The power of two in the scale comes first, which keeps sums in the range of float16 and rounds
    nothing.
    """
    dtype = type_of(node.outputs[0])
    rest, exponent = np.frexp(node.attributes.get_float("scale"))
    power = np.array(2.0**exponent, dtype.numpy())
    k_BHDT = insert_node(graph, node, "Transpose", [k], {"perm": [0, 1, 3, 2]})
    scaled = insert_node(graph, node, "Mul", [q, insert_constant(graph, node, power)])
    scores = insert_node(graph, node, "MatMul", [scaled, k_BHDT])
    scores = _cast(graph, node, scores, dtype, ir.DataType.FLOAT)
    return insert_node(graph, node, "Mul", [scores, _number(graph, node, float(rest))])


def _sink_scores(graph: ir.Graph, node: ir.Node, sinks: ir.Value, scores: ir.Value) -> ir.Value:
    """Scores of the sinks, `(B, H, S, 1)`."""
    rows = insert_node(graph, node, "Shape", [scores], {"start": 0, "end": 3})
    one = insert_constant(graph, node, np.array([1]))
    shape = insert_node(graph, node, "Concat", [rows, one], {"axis": 0})
    column = _unsqueezed(graph, node, sinks, (1, 2))
    return insert_node(graph, node, "Expand", [column, shape])


def _first(graph: ir.Graph, node: ir.Node, buffer: ir.Value, bias: ir.Value) -> ir.Value:
    """As many keys of a buffer `(B, K, C, D)` as the bias has."""
    count = insert_node(graph, node, "Shape", [bias], {"start": 3, "end": 4})
    return _sliced(graph, node, buffer, count, axis=2)


def _sliced(graph: ir.Graph, node: ir.Node, x: ir.Value, end: ir.Value, *, axis: int) -> ir.Value:
    """The part before `end`, int64 `(1,)`, along an axis."""
    start, axes = (insert_constant(graph, node, np.array([n])) for n in (0, axis))
    return insert_node(graph, node, "Slice", [x, start, end, axes])


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
    tables: tuple[ir.Value, ir.Value, ir.Value] | None,
    count: int,
) -> ir.Value:
    """Heads turned by their positions, if `tables` are cosines, sines and positions."""
    if tables is None:
        return x_BNSD
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


def _cast(
    graph: ir.Graph, node: ir.Node, x: ir.Value, held: ir.DataType, wanted: ir.DataType
) -> ir.Value:
    return x if held == wanted else insert_node(graph, node, "Cast", [x], {"to": wanted})


def _number(graph: ir.Graph, node: ir.Node, value: float) -> ir.Value:
    return insert_constant(graph, node, np.array(value, np.float32))


def _known(axis: int | str) -> int:
    """The size of an axis; 0 if it varies."""
    return axis if isinstance(axis, int) else 0


def _padded(inputs: Sequence[ir.Value | None], count: int) -> list[ir.Value | None]:
    """As many inputs as the operator may have."""
    return [*inputs, *[None] * (count - len(inputs))]
