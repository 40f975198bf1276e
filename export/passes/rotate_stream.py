"""Rotate the residual stream, for products of 8-bit activations.

Spec: ai.onnx RMSNormalization, version 23; com.microsoft SkipSimplifiedLayerNormalization and
FusedMatMul, version 1 (onnxruntime, docs/ContribOperators.md).
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortolan.export.derived import Side, derive_rotated
from ortolan.export.passes.nodes import Insert
from ortolan.export.rotation import rotation
from ortolan.export.values import (
    add_constant,
    is_weight,
    name_of,
    number,
)

_GAIN_AT: Mapping[str, int] = {"RMSNormalization": 1, "SkipSimplifiedLayerNormalization": 2}
"""Norms that a rotation of their input commutes with, but for the gain at this input."""

_SUM = 3
"""Output of a SkipSimplifiedLayerNormalization: the sum of its first two inputs."""


def rotate_stream(graph: ir.Graph, names: Container[str]) -> Mapping[str, str]:
    """Multiply the residual stream by an orthogonal matrix Q, which changes no output.

        embedding ▶ Q ─┬─▶ norm ▶ product ▶ ... ▶ product ▶ Add ─┬─▶ ... ─▶ norm ▶ Qᵀ ▶ gain ▶ head
                       └───────────────────────────────────▶─────┘

    Gains of norms and Q are folded into the weights, biases included: `Q` into the products that
    read the stream, and its inverse into those that add to it. A channel with outliers is spread
    over all of them, so that codes of 8 bits lose less (Ashkboos et al. 2024, "QuaRot"). Keys and
    values do not change.

    Rewrites a graph with one residual stream that only norms read; returns the weights' new names.
    """
    stream = _follow(graph, names)
    if stream is None:
        return {}
    (entry,) = stream.entries
    width = _width(entry)
    _enter(graph, entry, width)
    ones = add_constant(graph, f"ones_{width}", np.ones(width, np.float32))
    renamed: dict[str, str] = {}

    def fold(node: ir.Node, place: int, side: Side, gain: ir.Value | None = None) -> None:
        weight = node.inputs[place]
        if weight is None:
            raise ValueError(f"{node.name}: this product has no weight")
        new = derive_rotated(graph, weight, side, gain)
        node.replace_input_with(place, new)
        renamed[name_of(weight)] = name_of(new)
        if not weight.uses():
            del graph.initializers[name_of(weight)]

    for norm in stream.norms:
        place = _GAIN_AT[norm.op_type]
        gain = norm.inputs[place]
        norm.replace_input_with(place, ones)
        if norm is stream.last:
            _leave(graph, norm, gain, width)
        else:
            for product in norm.outputs[0].consumers():
                fold(product, 1, "inputs", gain)
        if gain is not None and not gain.uses() and gain.is_initializer():
            del graph.initializers[name_of(gain)]
    for product in stream.products:
        fold(product, 1, "outputs")
    for bias in stream.biases:
        fold(*bias, "outputs")
    return renamed


@dataclass
class _Stream:
    """The residual stream of a graph.

    Attributes:
        entries: values that other nodes compute, such as the embedding.
        products: nodes whose outputs are added to it.
        biases: nodes that add a vector to such an output, and the place of the vector.
        last: the norm before the head.
    """

    entries: list[ir.Value] = field(default_factory=list)
    norms: dict[ir.Node, None] = field(default_factory=dict)
    products: list[ir.Node] = field(default_factory=list)
    biases: dict[tuple[ir.Node, int], None] = field(default_factory=dict)
    last: ir.Node | None = None


class _NotOneStreamError(Exception):
    """A node reads the stream in a way that a rotation changes."""


def _follow(graph: ir.Graph, names: Container[str]) -> _Stream | None:
    """Find everything that the inputs of norms before products are connected to by sums."""
    stream, seen = _Stream(), set[ir.Value]()
    ahead = [
        value
        for node in graph
        if node.op_type in _GAIN_AT and any(_is_product(use, names) for use in _users(node))
        for value in node.inputs[: _GAIN_AT[node.op_type]]
    ]
    try:
        while ahead:
            value = ahead.pop()
            if value is None or value in seen:
                continue
            seen.add(value)
            ahead += _before(value, stream, names)
            for use in value.uses():
                ahead += _after(use.node, use.idx, stream)
            if value.is_graph_output():
                raise _NotOneStreamError
        others = [n for n in stream.norms if not all(_is_product(u, names) for u in _users(n))]
    except _NotOneStreamError:
        return None
    if len(stream.entries) != 1 or len(others) > 1:
        return None
    if any(norm.outputs[0].is_graph_output() for norm in stream.norms):
        return None  # a head reads the stream
    read = [use for norm in stream.norms if norm not in others for use in _users(norm)]
    folded = [node.inputs[1] for node in (*read, *stream.products)]
    if len(set(folded)) < len(folded):
        return None  # layers that share weights
    if others:
        (stream.last,) = others
    return stream


def _before(value: ir.Value, stream: _Stream, names: Container[str]) -> list[ir.Value | None]:
    """The values of the stream that another one is computed from."""
    node = value.producer()
    if node is not None and node.op_type in _THROUGH and _THROUGH[node.op_type](node, value):
        return _joined(node, stream)
    if node is not None and _is_product(node, names):
        stream.products.append(node)
    else:
        stream.entries.append(value)
    return []


def _after(node: ir.Node, place: int, stream: _Stream) -> list[ir.Value | None]:
    """The values of the stream that a node computes from one."""
    operator = node.op_type
    if operator in _THROUGH and _THROUGH[operator](node, node.outputs[-1]):
        if operator in _GAIN_AT:
            stream.norms[node] = None
        return [*_joined(node, stream), node.outputs[-1]]
    if operator == "RMSNormalization" and place == 0 and _is_plain_norm(node):
        stream.norms[node] = None
        return []
    raise _NotOneStreamError


def _joined(node: ir.Node, stream: _Stream) -> list[ir.Value | None]:
    """The inputs of a node that are of the stream; a bias is noted instead."""
    inputs: list[ir.Value | None] = []
    for place in range(min(len(node.inputs), 2)):
        value = node.inputs[place]
        if value is not None and is_weight(value, axes=1):
            stream.biases[node, place] = None
        elif value is not None and number(value) is None and not _is_pick(node, place):
            inputs.append(value)
    return inputs


def _is_pick(node: ir.Node, place: int) -> bool:
    return node.op_type == "GatherND" and place == 1


def _is_sum(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node adds two values of the stream, or a bias to one."""
    shapes = [v.shape for v in node.inputs if v is not None and not is_weight(v, axes=1)]
    # products before a bias have no shape
    return all(shape is None or shape == value.shape for shape in shapes)


def _is_skip(node: ir.Node, value: ir.Value) -> bool:
    return len(node.outputs) > _SUM and value is node.outputs[_SUM] and _is_plain_norm(node)


def _is_multiple(node: ir.Node, value: ir.Value) -> bool:
    return any(number(operand) is not None for operand in node.inputs)


_THROUGH: Mapping[str, Callable[[ir.Node, ir.Value], bool]] = {
    "Add": _is_sum,
    "GatherND": lambda node, value: node.attributes.get_int("batch_dims", 0) == 1,
    "Mul": _is_multiple,
    "SkipSimplifiedLayerNormalization": _is_skip,
}
"""Operators by which values of the stream become another one, with a condition on the node."""


def _is_plain_norm(node: ir.Node) -> bool:
    gain = node.inputs[_GAIN_AT[node.op_type]]
    is_last = node.attributes.get_int("axis", -1) == -1
    return is_last and gain is not None and is_weight(gain, axes=1)


def _is_product(node: ir.Node, names: Container[str]) -> bool:
    weight = node.inputs[1] if node.op_type == "FusedMatMul" else None
    return weight is not None and weight.name is not None and weight.name in names


def _users(norm: ir.Node) -> list[ir.Node]:
    return list(norm.outputs[0].consumers())


def _width(value: ir.Value) -> int:
    width = None if value.shape is None else value.shape[-1]
    if not isinstance(width, int):
        raise ValueError(f"{value.name}: the width of this value is unknown")
    return width


def _next(graph: ir.Graph, value: ir.Value) -> ir.Node:
    """The node after that which computes a value."""
    nodes = list(graph)
    node = value.producer()
    return nodes[0 if node is None else nodes.index(node) + 1]


def _enter(graph: ir.Graph, entry: ir.Value, width: int) -> None:
    """Rotate the entry of the stream."""
    new = Insert(graph, _next(graph, entry))
    readers = [(use.node, use.idx) for use in entry.uses()]
    signs = add_constant(graph, f"signs_{width}", rotation(width).signs.numpy())
    turned = _mixed(graph, new, new.Mul(entry, signs), width)
    turned.shape, turned.type = entry.shape, entry.type
    for reader, place in readers:
        reader.replace_input_with(place, turned)


def _leave(graph: ir.Graph, norm: ir.Node, gain: ir.Value | None, width: int) -> None:
    """Rotate a norm back, and multiply by its gain."""
    out = norm.outputs[0]
    readers = [(use.node, use.idx) for use in out.uses()]
    new = Insert(graph, _next(graph, out))
    signs = add_constant(graph, f"signs_{width}", rotation(width).signs.numpy())
    straight = new.Mul(_mixed(graph, new, out, width), signs)
    whole = new.Mul(straight, gain)
    whole.shape, whole.type = out.shape, out.type
    for reader, place in readers:
        reader.replace_input_with(place, whole)


def _mixed(graph: ir.Graph, new: Insert, x: ir.Value, width: int) -> ir.Value:
    """The product of x, `(B, S, K)`, and A ⊗ B."""
    _, left, right = rotation(width)
    factors = [
        add_constant(graph, f"hartley_{len(factor)}", factor.numpy()) for factor in (left, right)
    ]
    split, joined = new.constant([0, 0, len(left), len(right)]), new.constant([0, 0, width])
    tiles = new.MatMul(new.Reshape(x, split), factors[1])
    return new.Reshape(new.MatMul(factors[0], tiles), joined)
