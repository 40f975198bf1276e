"""Carry keys and values from step to step as 8-bit codes.

Spec: com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md). Its
kernel divides new values, and new keys after their rotation, by the scale of their head and
channel, rounds half to even, stores -128 to 127, and computes attention with what it has stored.

Shape letters: K key/value heads, D head width.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ortolan.export.errors import OptionError
from ortolan.export.values import add_initializer, name_of, static_shape
from ortolan.runtime.bundle.manifest import State

_KEY, _VALUE, _COS = 3, 4, 7
_KEY_SCALE, _VALUE_SCALE = 12, 13
"""Places of the node's inputs."""

_PRESENT_KEY, _PRESENT_VALUE = 1, 2
"""Places of its outputs."""

_BITS = 8


@dataclass(frozen=True, slots=True)
class Turned:
    """Number of channels of cached keys, from the first, that were rotated by their positions.

    Neighbors are a pair if they are interleaved; else the two halves are paired.
    """

    channels: int
    interleaved: bool


def quantize_cache(graph: ir.Graph, states: Iterable[State]) -> None:
    """Store the states that grow as codes, and give their attention nodes scales `(K, 1, D)`.

    The scales are initializers without data, named by `scale_name`.
    """
    growing = [state for state in states if state.update == "append"]
    values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    for state in growing:
        past, present = values[state.input], values[state.output]
        _check(state, past, present)
        for value in (past, present):
            value.type = ir.TensorType(ir.DataType.INT8)
        # The layers that share these keys read `present`.
        for node in {use.node for value in (past, present) for use in value.uses()}:
            is_key = node.inputs[_KEY] in (past, present)
            _add_scale(graph, node, state, is_key=is_key)
            _add_present(node, _PRESENT_KEY if is_key else _PRESENT_VALUE, present)


def scale_name(state: State) -> str:
    """The initializer with the scales of a state."""
    return f"{state.input}.scale"


def turned_keys(graph: ir.Graph, states: Iterable[State]) -> dict[str, Turned | None]:
    """How the node rotates the keys of each state, by its name.

    None if the node does not rotate them: another node before it may.
    """
    by_input = {state.input: state for state in states if state.update == "append"}
    turned: dict[str, Turned | None] = {}
    for node in graph:
        past = node.inputs[_KEY] if _is_cached(node) else None
        state = by_input.get("" if past is None else name_of(past))
        if state is not None:
            turned[state.name] = _turned(node)
    return turned


def _turned(node: ir.Node) -> Turned | None:
    cos = node.inputs[_COS] if len(node.inputs) > _COS else None
    if cos is None or not node.attributes.get_int("do_rotary", 0):
        return None
    is_interleaved = bool(node.attributes.get_int("rotary_interleaved", 0))
    return Turned(2 * static_shape(cos)[1], is_interleaved)


def _check(state: State, past: ir.Value, present: ir.Value) -> None:
    """Refuse a state that anything but fused attention reads or writes."""
    producer = present.producer()
    nodes = [use.node for value in (past, present) for use in value.uses()]
    others = [node for node in [producer, *nodes] if node is None or not _is_cached(node)]
    if others or not any(use.node is producer for use in past.uses()):
        kinds = {"nothing" if node is None else node.op_type for node in others} or {"other nodes"}
        raise OptionError(
            f"cache: {state.name!r} is read or written by {', '.join(sorted(kinds))}. Only "
            "onnxruntime's fused attention computes from an 8-bit KV cache. Leave --cache out."
        )


def _is_cached(node: ir.Node) -> bool:
    return (
        node.op_type == "GroupQueryAttention"
        and len(node.inputs) > _VALUE
        and node.inputs[_KEY] is not None
    )


def _add_scale(graph: ir.Graph, node: ir.Node, state: State, *, is_key: bool) -> None:
    _, heads, _, width = state.shape
    shape = (int(heads), 1, int(width))
    scale = add_initializer(graph, scale_name(state), ir.DataType.FLOAT, shape)
    if len(node.inputs) <= _VALUE_SCALE:
        node.resize_inputs(_VALUE_SCALE + 1)
    node.replace_input_with(_KEY_SCALE if is_key else _VALUE_SCALE, scale)
    node.attributes.add(ir.AttrInt64("kv_cache_bit_width", _BITS))
    node.attributes.add(ir.AttrString(f"{'k' if is_key else 'v'}_quant_type", "PER_CHANNEL"))


def _add_present(node: ir.Node, place: int, present: ir.Value) -> None:
    """Declare the output of the extended codes, which the kernel needs even without a reader.

    A layer that reads the keys of another has none so far.
    """
    if len(node.outputs) <= place:
        node.resize_outputs(place + 1)
    output = node.outputs[place]
    if output.name is None:
        output.name = f"{name_of(node.outputs[0])}.{name_of(present)}"
    output.shape, output.type = present.shape, present.type
