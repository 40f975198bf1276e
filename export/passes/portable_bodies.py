"""Bodies of standard operators for the custom nodes, for tools that lack the kernels.

A model-local function with the domain and name of a node gives the node a meaning anywhere.
onnxruntime prefers its own kernel, so a portable bundle runs there as fast as any. No body calls
another: the runtime refuses functions that do.

A body covers what `ortolan.modeling.layers.ops` and the passes emit, not the whole operator. The
bodies are written in ONNX's own text syntax, so their bytes depend on no tool's version. An
attention body is put together from sections:

    cached:  _STEP,  _PLAIN or _ROTARY, _SCATTER, _SLOTS, _SEEN, then the scores, _MERGE
    whole:   _WHOLE, _PLAIN or _ROTARY,                          then the scores, _MERGE

Shape letters: B batch, S new tokens, H query heads, K key/value heads, D head width,
C cache capacity.
"""

import onnx.parser
from onnx import FunctionProto, ModelProto, NodeProto

from ortolan.export.errors import ExportError

_FUSED_MATMUL = """
<domain: "com.microsoft", opset_import: ["" : 24]>
FusedMatMul <transB> (a, b) => (y)
{
    transposed = Transpose <perm = [1, 0]> (b)
    y = MatMul (a, transposed)
}
"""

_SKIP_NORM = """
<domain: "com.microsoft", opset_import: ["" : 24]>
SkipSimplifiedLayerNormalization <epsilon> (input, skip, gamma) => (output, mean, inverse, sum)
{
    sum = Add (input, skip)
    output = RMSNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma)
    last_axis = Constant <value_ints = [-1]> ()
    mean = ReduceMean (sum, last_axis)
    squares = Mul (sum, sum)
    mean_square = ReduceMean (squares, last_axis)
    least = Constant <value_float: float = @epsilon> ()
    variance = Add (mean_square, least)
    deviation = Sqrt (variance)
    inverse = Reciprocal (deviation)
}
"""

# Positions (B, S) and heads (B, H + 2K, S, D). A step with as many new tokens as its longest row
# has in all is a prompt: every row starts at 0.
_STEP = """
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    axis_one = Constant <value_ints = [1]> ()
    new_1d = Shape <start = 1, end = 2> (query)
    new = Squeeze (new_1d)
    last = Cast <to = 7> (seqlens_k)
    length = Add (last, one)
    past_if_any = Sub (length, new)
    past_if_none = Sub (past_if_any, past_if_any)
    longest = Cast <to = 7> (total)
    is_prompt = Equal (longest, new)
    past = Where (is_prompt, past_if_none, past_if_any)
    steps = Range (zero, new, one)
    past_column = Unsqueeze (past, axis_one)
    positions = Add (past_column, steps)

    kv_heads = Shape <start = 1, end = 2> (past_key)
    width = Shape <start = 3, end = 4> (past_key)
    kept = Constant <value_ints = [0, 0, -1]> ()
    split_shape = Concat <axis = 0> (kept, width)
    split = Reshape (query, split_shape)
    heads = Transpose <perm = [0, 2, 1, 3]> (split)
    all_heads = Shape <start = 1, end = 2> (heads)
    all_but_keys = Sub (all_heads, kv_heads)
    q_heads = Sub (all_but_keys, kv_heads)
    parts = Concat <axis = 0> (q_heads, kv_heads, kv_heads)
"""

_PLAIN = """
    q, k, v = Split <axis = 1> (heads, parts)
"""

# The first channels of a head rotate, twice as many as the tables are wide.
_ROTARY = """
    q_before, k_before, v = Split <axis = 1> (heads, parts)
    half = Shape <start = 1, end = 2> (cos)
    turned = Add (half, half)
    unturned = Sub (width, turned)
    channels = Concat <axis = 0> (turned, unturned)
    q_turn, q_rest = Split <axis = 3> (q_before, channels)
    k_turn, k_rest = Split <axis = 3> (k_before, channels)
    q_turned = RotaryEmbedding (q_turn, cos, sin, positions)
    k_turned = RotaryEmbedding (k_turn, cos, sin, positions)
    q = Concat <axis = 3> (q_turned, q_rest)
    k = Concat <axis = 3> (k_turned, k_rest)
"""

# No token further back than the window; a window of -1 reaches to the start.
_WINDOW = """
    given_window = Constant <value_int: int = @local_window_size> ()
    is_windowed = Greater (given_window, zero)
    unbounded = Constant <value_int = 4611686018427387904> ()
    window = Where (is_windowed, given_window, unbounded)
    not_too_old = Less (distance, window)
"""

# Whole sequences without a cache. Queries and keys have the same positions, and padding after the
# end of a row is seen by none.
_WHOLE = (
    """
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    new_1d = Shape <start = 1, end = 2> (query)
    new = Squeeze (new_1d)
    steps = Range (zero, new, one)
    last = Cast <to = 7> (seqlens_k)
    outer_axes = Constant <value_ints = [1, 2, 3]> ()
    last_4d = Unsqueeze (last, outer_axes)
    is_text = LessOrEqual (steps, last_4d)
    query_axes = Constant <value_ints = [1]> ()
    query_steps = Unsqueeze (steps, query_axes)
    distance = Sub (query_steps, steps)
    not_later = GreaterOrEqual (distance, zero)
    given_causal = Constant <value_int: int = @causal> ()
    sees_all = Equal (given_causal, zero)
    reached = Or (not_later, sees_all)
"""
    + _WINDOW
    + """    in_window = And (reached, not_too_old)
    seen = And (in_window, is_text)

    first_axis = Constant <value_ints = [0]> ()
    q_count = Constant <value_int: int = @num_heads> ()
    kv_count = Constant <value_int: int = @kv_num_heads> ()
    q_heads = Unsqueeze (q_count, first_axis)
    kv_heads = Unsqueeze (kv_count, first_axis)
    parts = Concat <axis = 0> (q_heads, kv_heads, kv_heads)
    kv_pairs = Add (kv_heads, kv_heads)
    all_heads = Add (q_heads, kv_pairs)
    kept = Constant <value_ints = [0, 0]> ()
    unknown = Constant <value_ints = [-1]> ()
    split_shape = Concat <axis = 0> (kept, all_heads, unknown)
    split = Reshape (query, split_shape)
    heads = Transpose <perm = [0, 2, 1, 3]> (split)
    width = Shape <start = 3, end = 4> (heads)
    no_offset = Sub (last, last)
    no_offset_column = Unsqueeze (no_offset, query_axes)
    positions = Add (no_offset_column, steps)
"""
)

# New keys and values into the buffers.
_SCATTER = """
    present_key = TensorScatter <axis = 2> (past_key, k, past)
    present_value = TensorScatter <axis = 2> (past_value, v, past)
"""

_SLOTS = """
    capacity_1d = Shape <start = 2, end = 3> (past_key)
    capacity = Squeeze (capacity_1d)
    slots = Range (zero, capacity, one)
"""

# A bias has as many slots as the longest row.
_BIASED_SLOTS = """
    start_1d = Constant <value_ints = [0]> ()
    axis_two = Constant <value_ints = [2]> ()
    longest_1d = Unsqueeze (longest, start_1d)
    keys = Slice (present_key, start_1d, longest_1d, axis_two)
    values = Slice (present_value, start_1d, longest_1d, axis_two)
    slots = Range (zero, longest, one)
"""

# A token sees every slot up to its own position, as far back as the window reaches.
_SEEN = (
    """
    outer_axes = Constant <value_ints = [1, 3]> ()
    positions_4d = Unsqueeze (positions, outer_axes)
    distance = Sub (positions_4d, slots)
    not_later = GreaterOrEqual (distance, zero)
"""
    + _WINDOW
    + """
    seen = And (not_later, not_too_old)
"""
)

# Slots that are not seen get -inf, which no score can outweigh.
_ADD_BIAS = """
    least = Constant <value_float = -inf> ()
    never = CastLike (least, attention_bias)
    mask = Where (seen, attention_bias, never)
"""

_MERGE = """
    by_token = Transpose <perm = [0, 2, 1, 3]> (attended)
    merged = Constant <value_ints = [0, 0, -1]> ()
    output = Reshape (by_token, merged)
"""


def _attend(inputs: str) -> str:
    return f"""
    attended = Attention <scale: float = @scale, softcap: float = @softcap> ({inputs})
"""


_ATTRIBUTES = "num_heads, kv_num_heads, scale, do_rotary, local_window_size, softcap"
_CACHED = "query, key, value, past_key, past_value, seqlens_k, total"


def _cached(inputs: str, *parts: str) -> str:
    return f"""
<domain: "com.microsoft", opset_import: ["" : 24]>
GroupQueryAttention <{_ATTRIBUTES}> ({_CACHED}{inputs}) => (output, present_key, present_value)
{{{"".join((_STEP, *parts, _MERGE))}}}
"""


def _whole(inputs: str, *parts: str) -> str:
    return f"""
<domain: "com.microsoft", opset_import: ["" : 24]>
GroupQueryAttention <{_ATTRIBUTES}, causal> ({_CACHED}{inputs}) => (output)
{{{"".join((_WHOLE, *parts, _MERGE))}}}
"""


_TABLES = ", cos, sin"
_BIAS = ", cos, sin, position_ids, attention_bias"


def _apart(text: str) -> str:
    """The body of a node with queries, keys and values in three inputs."""
    names = ", ".join(f"{name}_part" for name in ("query", "key", "value"))
    renamed = text.replace("(query, key, value,", f"({names},")
    return renamed.replace("{", f"{{\n    query = Concat <axis = -1> ({names})", 1)


def _interleaved(text: str) -> str:
    """The body of a rotary node that pairs neighboring channels."""
    declared = text.replace("softcap", "softcap, rotary_interleaved", 1)
    return declared.replace("RotaryEmbedding (", "RotaryEmbedding <interleaved = 1> (")


_SLOTS_SEEN = (_SCATTER, _SLOTS, _SEEN, _attend("q, present_key, present_value, seen"))

_HALVES = {
    "FusedMatMul": _FUSED_MATMUL,
    "GroupQueryAttention": _cached("", _PLAIN, *_SLOTS_SEEN),
    "GroupQueryAttention, biased": _cached(
        _BIAS, _PLAIN, _SCATTER, _BIASED_SLOTS, _SEEN, _ADD_BIAS, _attend("q, keys, values, mask")
    ),
    "GroupQueryAttention, rotary": _cached(_TABLES, _ROTARY, *_SLOTS_SEEN),
    "GroupQueryAttention, whole": _whole("", _PLAIN, _attend("q, k, v, seen")),
    "GroupQueryAttention, whole, biased": _whole(
        _BIAS, _PLAIN, _ADD_BIAS, _attend("q, k, v, mask")
    ),
    "GroupQueryAttention, whole, rotary": _whole(_TABLES, _ROTARY, _attend("q, k, v, seen")),
    "SkipSimplifiedLayerNormalization": _SKIP_NORM,
}

_PACKED = _HALVES | {
    f"{name}, interleaved": _interleaved(text)
    for name, text in _HALVES.items()
    if name.endswith("rotary")
}

BODIES = _PACKED | {
    f"{name}, apart": _apart(text)
    for name, text in _PACKED.items()
    if name.startswith("GroupQueryAttention") and "biased" not in name
}
"""The text of each body, by operator and kind. All layers of a model share one kind of attention.

* `whole`: without a cache.
* `biased`: adds a bias by distance to the scores.
* `rotary`: rotates queries and keys, in halves or `interleaved` (neighboring channels).
* `apart`: queries, keys and values are three inputs; else one.
"""

_KEY, _PAST_KEY, _COS, _ATTENTION_BIAS, _SINKS = 1, 3, 7, 10, 11
"""Places of an attention node's inputs."""


def body(name: str) -> FunctionProto:
    """The function of a name in `BODIES`."""
    return onnx.parser.parse_function(BODIES[name])


def attach_bodies(model: ModelProto) -> None:
    """Give every custom node of a finished graph its body, in place."""
    nodes = [node for node in model.graph.node if node.domain == "com.microsoft"]
    names = sorted({_body_name(node) for node in nodes})
    missing = sorted(set(names) - BODIES.keys())
    if missing:
        raise ExportError(
            f"attention: no standard operators are known for {'; '.join(missing)}, which a "
            "portable graph needs. Choose --attention fused."
        )
    operators = [name.partition(",")[0] for name in names]
    if len(set(operators)) < len(operators):
        raise ExportError(
            f"attention: a portable graph can have one kind of each operator (got "
            f"{'; '.join(names)}). Choose --attention fused, or leave --attention-maps out."
        )
    model.functions.extend(body(name) for name in names)


def _body_name(node: NodeProto) -> str:
    """The name in `BODIES` of the body that a node needs."""
    if node.op_type != "GroupQueryAttention":
        return node.op_type
    has = [bool(name) for name in node.input] + [False] * _SINKS
    kinds = {
        "whole": not has[_PAST_KEY],
        "biased": has[_ATTENTION_BIAS],
        "rotary": has[_COS],
        "interleaved": any(attribute.name == "rotary_interleaved" for attribute in node.attribute),
        "apart": has[_KEY],
        "sinks": has[_SINKS],
    }
    return ", ".join([node.op_type, *(kind for kind, holds in kinds.items() if holds)])
