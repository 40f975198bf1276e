"""Attention takes queries and keys as they are projected, and rotates them itself.

Spec: com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md); what
its kernel takes: `modeling.layers.lowering.fits_kernel`.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.rotations import Reading, Rotation, read_map
from ortolan.export.passes.token_maps import TokenMap, TokenMaps
from ortolan.export.values import add_initializer, insert_constant

_QUERY, _KEY, _VALUE = 0, 1, 2
_COS, _SIN = 7, 8
"""Inputs of the node."""

_LEFT = {"Reshape", "Slice"}
"""Operators that this pass writes itself."""

Parts = dict[int, tuple[TokenMap, Reading]]
"""What enters a node, by input."""


class RotaryIntoAttention(ir.passes.InPlacePass):
    """What lies between projections and GroupQueryAttention becomes part of the node.

    Case 1: queries and keys are rotated by their positions, alike: the node does it by tables.
    Case 2: they are moved at most, there and back: the node takes what was moved. A factor of the
        queries, in both cases, becomes one of the node's scale.
    Case 3: values are moved there and back: as case 2.
    Case 4: queries, keys and values are all the channels of one tensor: the node takes that.
    Case 5: anything else, or a rotation that the kernel does not take: the nodes stay.

    Args:
        positions: rows of the tables.
    """

    def __init__(self, positions: int) -> None:
        self.positions = positions

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph, maps = model.graph, TokenMaps(model.graph)
        found: list[Rotation] = []
        changes = []
        for node in graph:
            if node.op_type == "GroupQueryAttention" and None not in node.inputs[:3]:
                parts = self._read(node, maps, found)
                if parts:
                    changes.append((node, parts))
        for node, parts in changes:
            _rewrite(graph, node, parts, found)
        return ir.passes.PassResult(model, modified=bool(changes))

    def _read(self, node: ir.Node, maps: TokenMaps, found: list[Rotation]) -> Parts:
        """What enters the node as queries, keys and values, by input, where it can be taken."""
        heads = [node.attributes.get_int(name) for name in ("num_heads", "kv_num_heads")]
        parts: Parts = {}
        # Keys first: the tables are theirs, and queries may be scaled as well.
        for place, count in ((_KEY, heads[1]), (_QUERY, heads[0]), (_VALUE, heads[1])):
            value = node.inputs[place]
            vectors = None if value is None else maps.find(value)
            if vectors is None:
                continue
            width = _width(node, place)
            reading = read_map(
                vectors,
                width=width,
                head_dim=width // count,
                positions=self.positions,
                # Queries are compared with the keys that they meet first of all.
                known=_rotations(found, parts.get(_KEY)),
                # The keys in the cache stay what they were: other nodes may read them.
                may_scale=place == _QUERY,
            )
            if reading is None or not _takes(reading, width // count):
                continue
            rotation = reading.rotation
            if rotation is not None and not any(rotation is each for each in found):
                found.append(rotation)
            parts[place] = (vectors, reading)
        agreeing = _agreeing(node, parts)
        is_done = all(vectors.operators <= _LEFT for vectors, _ in agreeing.values())
        return {} if is_done else agreeing


def _rotations(found: list[Rotation], key: tuple[TokenMap, Reading] | None) -> list[Rotation]:
    rotation = None if key is None else key[1].rotation
    return found if rotation is None else [rotation, *found]


def _takes(reading: Reading, head_dim: int) -> bool:
    """Whether the kernel rotates like this."""
    rotation = reading.rotation
    return rotation is None or (rotation.rotated % 16 == 0 and head_dim % 16 == 0)


def _agreeing(node: ir.Node, parts: Parts) -> Parts:
    """The parts that one node can do: queries and keys are turned alike, values are not."""
    values = {place: part for place, part in parts.items() if place == _VALUE}
    if values and values[_VALUE][1].rotation is not None:
        del parts[_VALUE]
        values = {}
    if not {_QUERY, _KEY} <= parts.keys():
        return values
    query, key = parts[_QUERY][1].rotation, parts[_KEY][1].rotation
    rotates = bool(node.attributes.get_int("do_rotary", 0))
    is_agreed = query is key and not (rotates and query is not None)
    return parts if is_agreed else values


def _rewrite(graph: ir.Graph, node: ir.Node, parts: Parts, found: list[Rotation]) -> None:
    whole = _whole(node, parts)
    for place, (vectors, reading) in parts.items():
        if whole is None:
            node.replace_input_with(place, _taken(graph, node, place, vectors, reading.first))
        else:
            node.replace_input_with(place, whole if place == _QUERY else None)
    if _QUERY not in parts:
        return
    factor = parts[_QUERY][1].scale
    if factor != 1:
        scale = node.attributes.get_float("scale")
        node.attributes.add(ir.AttrFloat32("scale", scale * factor))
    rotation = parts[_QUERY][1].rotation
    if rotation is not None:
        _give_tables(graph, node, rotation, next(i for i, r in enumerate(found) if r is rotation))


def _whole(node: ir.Node, parts: Parts) -> ir.Value | None:
    """The tensor whose channels are queries, keys and values in order, and nothing else."""
    if not {_QUERY, _KEY, _VALUE} <= parts.keys():
        return None
    (vectors, _), first = parts[_QUERY], 0
    for place in (_QUERY, _KEY, _VALUE):
        its, reading = parts[place]
        if its.start is not vectors.start or reading.first != first:
            return None
        first += _width(node, place)
    flat = vectors.start.shape is not None and len(vectors.start.shape) == 3
    return vectors.start if flat and first == vectors.width else None


def _taken(
    graph: ir.Graph, node: ir.Node, place: int, vectors: TokenMap, first: int
) -> ir.Value | None:
    """Some channels of what a map begins with, `(B, S, N)`."""
    given, value, width = node.inputs[place], vectors.start, _width(node, place)
    if given is None or value.shape is None:
        return given
    if len(value.shape) != 3:
        flat = insert_constant(graph, node, np.array([0, 0, vectors.width]))
        value = _insert(graph, node, "Reshape", [value, flat], given, vectors.width)
    if width < vectors.width:
        bounds = [insert_constant(graph, node, np.array([n])) for n in (first, first + width, -1)]
        value = _insert(graph, node, "Slice", [value, *bounds], given, width)
    return value


def _insert(
    graph: ir.Graph,
    node: ir.Node,
    operator: str,
    inputs: list[ir.Value],
    like: ir.Value,
    width: int,
) -> ir.Value:
    """A value like another one, but for its channels."""
    made = ir.Node("", operator, inputs, num_outputs=1)
    graph.insert_before(node, made)
    (value,) = made.outputs
    if like.shape is not None:
        value.shape = ir.Shape([*like.shape[:2], width])
    value.type = like.type
    return value


def _width(node: ir.Node, place: int) -> int:
    """Channels of queries, keys or values."""
    value = node.inputs[place]
    width = None if value is None or value.shape is None else value.shape[-1]
    if not isinstance(width, int):
        raise ValueError(f"{node.name}: expected channels that are known, got {width}")
    return width


def _give_tables(graph: ir.Graph, node: ir.Node, rotation: Rotation, number: int) -> None:
    suffix = f".{number}" if number else ""
    dtype = node.outputs[0].dtype or ir.DataType.FLOAT
    node.resize_inputs(max(len(node.inputs), _SIN + 1))
    for place, name, table in (
        (_COS, f"rotary_cos{suffix}", rotation.cos),
        (_SIN, f"rotary_sin{suffix}", rotation.sin),
    ):
        value = add_initializer(graph, name, dtype, table.shape)
        value.const_value = ir.tensor(table.astype(dtype.numpy()), dtype=dtype, name=name)
        node.replace_input_with(place, value)
    node.attributes.add(ir.AttrInt64("do_rotary", 1))
    if rotation.interleaved:
        node.attributes.add(ir.AttrInt64("rotary_interleaved", 1))
