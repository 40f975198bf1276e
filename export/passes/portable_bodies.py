"""Bodies of standard operators for the custom nodes, for tools that lack the kernels.

A model-local function of the same domain and name as a node gives the node a meaning anywhere.
onnxruntime prefers its own kernel, so a portable bundle runs there as fast as any. No body
calls another, and the runtime accepts only these (`ortolan.runtime.bundle.functions`).

Each body covers what `ortolan.modeling.layers.ops` and the passes emit, not the whole operator.
They are written in ONNX's own text syntax, so their bytes depend on no tool's version.

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

# Positions (B, S): a step as long as its total starts every row at 0. Heads (B, H + 2K, S, D).
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

# The first channels turn, as many as the tables are wide.
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

# A text without a cache, all of it at once: queries and keys have the same positions, and those
# after a row's length are seen by none.
_WHOLE = """
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
    given_window = Constant <value_int: int = @local_window_size> ()
    is_windowed = Greater (given_window, zero)
    unbounded = Constant <value_int = 4611686018427387904> ()
    window = Where (is_windowed, given_window, unbounded)
    not_too_old = Less (distance, window)
    in_window = And (reached, not_too_old)
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

# Keys and values into the buffer; then every slot up to the own position is seen, as far back
# as the window reaches. A window of -1 is none.
_ATTEND = """
    present_key = TensorScatter <axis = 2> (past_key, k, past)
    present_value = TensorScatter <axis = 2> (past_value, v, past)
    capacity_1d = Shape <start = 2, end = 3> (past_key)
    capacity = Squeeze (capacity_1d)
    slots = Range (zero, capacity, one)
    outer_axes = Constant <value_ints = [1, 3]> ()
    positions_4d = Unsqueeze (positions, outer_axes)
    distance = Sub (positions_4d, slots)
    not_later = GreaterOrEqual (distance, zero)
    given_window = Constant <value_int: int = @local_window_size> ()
    is_windowed = Greater (given_window, zero)
    unbounded = Constant <value_int = 4611686018427387904> ()
    window = Where (is_windowed, given_window, unbounded)
    not_too_old = Less (distance, window)
    seen = And (not_later, not_too_old)
    attended = Attention <scale: float = @scale, softcap: float = @softcap>
        (q, present_key, present_value, seen)
    by_token = Transpose <perm = [0, 2, 1, 3]> (attended)
    merged = Constant <value_ints = [0, 0, -1]> ()
    output = Reshape (by_token, merged)
"""

# The same where the bias says how many slots there are: the longest row.
_ATTEND_BIASED = """
    present_key = TensorScatter <axis = 2> (past_key, k, past)
    present_value = TensorScatter <axis = 2> (past_value, v, past)
    start_1d = Constant <value_ints = [0]> ()
    axis_two = Constant <value_ints = [2]> ()
    longest_1d = Unsqueeze (longest, start_1d)
    keys = Slice (present_key, start_1d, longest_1d, axis_two)
    values = Slice (present_value, start_1d, longest_1d, axis_two)
    slots = Range (zero, longest, one)
    outer_axes = Constant <value_ints = [1, 3]> ()
    positions_4d = Unsqueeze (positions, outer_axes)
    distance = Sub (positions_4d, slots)
    not_later = GreaterOrEqual (distance, zero)
    given_window = Constant <value_int: int = @local_window_size> ()
    is_windowed = Greater (given_window, zero)
    unbounded = Constant <value_int = 4611686018427387904> ()
    window = Where (is_windowed, given_window, unbounded)
    not_too_old = Less (distance, window)
    seen = And (not_later, not_too_old)
"""

_ATTEND_WHOLE = """
    attended = Attention <scale: float = @scale, softcap: float = @softcap> (q, k, v, seen)
"""

# Where nothing is seen, less than any score can make up for.
_ADD_BIAS = """
    least = Constant <value_float = -inf> ()
    never = CastLike (least, attention_bias)
    mask = Where (seen, attention_bias, never)
"""

_ATTEND_MASK = """
    attended = Attention <scale: float = @scale, softcap: float = @softcap> (q, {keys}, mask)
"""

_MERGE = """
    by_token = Transpose <perm = [0, 2, 1, 3]> (attended)
    merged = Constant <value_ints = [0, 0, -1]> ()
    output = Reshape (by_token, merged)
"""

_ATTRIBUTES = "num_heads, kv_num_heads, scale, do_rotary, local_window_size, softcap"
_CACHED = "query, key, value, past_key, past_value, seqlens_k, total"


def _attention(inputs: str, *parts: str) -> str:
    return f"""
<domain: "com.microsoft", opset_import: ["" : 24]>
GroupQueryAttention <{_ATTRIBUTES}> ({inputs}) => (output, present_key, present_value)
{{{"".join(parts)}}}
"""


def _whole(inputs: str, *parts: str) -> str:
    return f"""
<domain: "com.microsoft", opset_import: ["" : 24]>
GroupQueryAttention <{_ATTRIBUTES}, causal> ({_CACHED}{inputs}) => (output)
{{{"".join((_WHOLE, *parts, _MERGE))}}}
"""


_BIAS = ", cos, sin, position_ids, attention_bias"


def _apart(text: str) -> str:
    """The body of a node whose queries, keys and values are three inputs."""
    parts = [f"{name}_part" for name in ("query", "key", "value")]
    given = text.replace("(query, key, value,", f"({', '.join(parts)},")
    joined = f"query = Concat <axis = -1> ({', '.join(parts)})"
    return given.replace("{", f"{{\n    {joined}", 1)


def _interleaved(text: str) -> str:
    """The body of a rotary node that turns neighbouring channels."""
    declared = text.replace("softcap", "softcap, rotary_interleaved", 1)
    return declared.replace("RotaryEmbedding (", "RotaryEmbedding <interleaved = 1> (")


_HALVES = {
    "FusedMatMul": _FUSED_MATMUL,
    "GroupQueryAttention": _attention(_CACHED, _STEP, _PLAIN, _ATTEND),
    "GroupQueryAttention, biased": _attention(
        f"{_CACHED}{_BIAS}",
        _STEP,
        _PLAIN,
        _ATTEND_BIASED,
        _ADD_BIAS,
        _ATTEND_MASK.format(keys="keys, values"),
        _MERGE,
    ),
    "GroupQueryAttention, rotary": _attention(f"{_CACHED}, cos, sin", _STEP, _ROTARY, _ATTEND),
    "GroupQueryAttention, whole": _whole("", _PLAIN, _ATTEND_WHOLE),
    "GroupQueryAttention, whole, biased": _whole(
        _BIAS, _PLAIN, _ADD_BIAS, _ATTEND_MASK.format(keys="k, v")
    ),
    "GroupQueryAttention, whole, rotary": _whole(", cos, sin", _ROTARY, _ATTEND_WHOLE),
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
"""The text of each body. The attention of a stack is of one kind in every layer.

`whole` is without a cache, `biased` has what distances add to the scores, `interleaved` turns
neighbouring channels; queries, keys and values are side by side, or `apart`.
"""

_KEY, _PAST_KEY, _COS, _ATTENTION_BIAS, _SINKS = 1, 3, 7, 10, 11
"""Inputs of an attention node, by their place."""


def body(name: str) -> FunctionProto:
    """The function of that name in `BODIES`."""
    return onnx.parser.parse_function(BODIES[name])


def attach_bodies(model: ModelProto) -> None:
    """Give every custom node of a finished graph its body, in place.

    Raises:
        ExportError: one operator is used in two ways, for which it cannot have two bodies.
    """
    nodes = [node for node in model.graph.node if node.domain == "com.microsoft"]
    names = sorted({_body_name(node) for node in nodes})
    if not BODIES.keys() >= set(names):
        raise ExportError(
            f"attention: expected kinds that standard operators are known for in a portable graph, "
            f"got {'; '.join(sorted(set(names) - BODIES.keys()))}. Choose --attention fused."
        )
    operators = [name.partition(",")[0] for name in names]
    if len(set(operators)) < len(operators):
        raise ExportError(
            f"attention: expected one kind of each operator in a portable graph, got "
            f"{'; '.join(names)}. Choose --attention fused, or leave --attention-maps out."
        )
    model.functions.extend(body(name) for name in names)


def _body_name(node: NodeProto) -> str:
    """The body of a node in `BODIES`."""
    if node.op_type != "GroupQueryAttention":
        return node.op_type
    given = [bool(name) for name in node.input] + [False] * _SINKS
    kinds = {
        "whole": not given[_PAST_KEY],
        "biased": given[_ATTENTION_BIAS],
        "rotary": given[_COS],
        "interleaved": any(attribute.name == "rotary_interleaved" for attribute in node.attribute),
        "apart": given[_KEY],
        "sinks": given[_SINKS],
    }
    return ", ".join([node.op_type, *(kind for kind, holds in kinds.items() if holds)])
