"""Let attention rotate queries and keys itself, straight from their projections.

Spec: com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md); its
kernel accepts what `modeling.layers.nodes.fits_kernel` says.
"""

from collections.abc import Sequence

import onnx_ir as ir

from ortolan.export.passes.nodes import Insert
from ortolan.export.passes.rotations import Reading, Rotation, read_map
from ortolan.export.passes.token_maps import TokenMap, TokenMaps
from ortolan.export.values import add_initializer

_QUERY, _KEY, _VALUE = 0, 1, 2
_COS, _SIN = 7, 8
"""Places of the node's inputs."""

_OWN = {"Reshape", "Slice"}
"""Operators that this pass writes itself."""

Operands = dict[int, tuple[TokenMap, Reading]]
"""How the node's operands are computed, by input."""


def rotary_into_attention(graph: ir.Graph, positions: int) -> bool:
    """Move what lies between projections and GroupQueryAttention into the node.

        x -> Reshape -> Transpose -> Mul, Add, ... -> Transpose -> Reshape -> attention
        x ----------------------------------------> attention(cos, sin, do_rotary=1)

    Case 1: queries and keys are rotated alike by their positions: the node does it, with tables.
    Case 2: queries and keys are at most moved, there and back: the node reads what was moved. In
        both cases, a factor of the queries goes into the node's scale.
    Case 3: values are moved there and back: as case 2.
    Case 4: queries, keys and values are all the channels of one tensor: the node reads that.
    Case 5: otherwise, such as a rotation that the kernel does not have: keep.
    """
    maps, rotations, changes = TokenMaps(graph), list[Rotation](), []
    for node in graph:
        if node.op_type == "GroupQueryAttention" and None not in node.inputs[:3]:
            operands = _read(node, maps, rotations, positions)
            if operands:
                changes.append((node, operands))
    for node, operands in changes:
        _rewrite(graph, node, operands, rotations)
    return bool(changes)


def _read(node: ir.Node, maps: TokenMaps, rotations: list[Rotation], positions: int) -> Operands:
    """The operands that the node can compute itself; a new rotation is noted."""
    heads = [node.attributes.get_int(name) for name in ("num_heads", "kv_num_heads")]
    operands: Operands = {}
    # Keys first: the tables are read from them, because queries may be scaled.
    for place, count in ((_KEY, heads[1]), (_QUERY, heads[0]), (_VALUE, heads[1])):
        value = node.inputs[place]
        vectors = None if value is None else maps.find(value)
        if vectors is None:
            continue
        width = _width(node, place)
        key = operands[_KEY][1].rotation if _KEY in operands else None
        reading = read_map(
            vectors,
            width=width,
            head_dim=width // count,
            positions=positions,
            # Queries most likely rotate like the keys that they meet.
            candidates=rotations if key is None else [key, *rotations],
            # Cached keys must keep their scale: other nodes may read them.
            may_scale=place == _QUERY,
        )
        if reading is None or not _fits(reading, width // count):
            continue
        rotation = reading.rotation
        if rotation is not None and not any(rotation is other for other in rotations):
            rotations.append(rotation)
        operands[place] = (vectors, reading)
    agreeing = _agreeing(node, operands)
    is_done = all(vectors.operators <= _OWN for vectors, _ in agreeing.values())
    return {} if is_done else agreeing


def _fits(reading: Reading, head_dim: int) -> bool:
    """Whether the kernel can rotate like this."""
    rotation = reading.rotation
    return rotation is None or (rotation.rotated % 16 == 0 and head_dim % 16 == 0)


def _agreeing(node: ir.Node, operands: Operands) -> Operands:
    """The operands that one node can compute: it rotates queries and keys alike, not values."""
    rotates = bool(node.attributes.get_int("do_rotary", 0))
    values = {
        place: (vectors, reading)
        for place, (vectors, reading) in operands.items()
        if place == _VALUE and reading.rotation is None
    }
    if not {_QUERY, _KEY} <= operands.keys():
        return values
    query, key = operands[_QUERY][1].rotation, operands[_KEY][1].rotation
    if query is not key or (rotates and query is not None):
        return values
    return {_KEY: operands[_KEY], _QUERY: operands[_QUERY], **values}


def _rewrite(
    graph: ir.Graph, node: ir.Node, operands: Operands, rotations: Sequence[Rotation]
) -> None:
    whole = _whole(node, operands)
    for place, (vectors, reading) in operands.items():
        if whole is None:
            value = _channels(graph, node, place, vectors, reading.first)
        else:
            value = whole if place == _QUERY else None
        node.replace_input_with(place, value)
    if _QUERY not in operands:
        return
    _, query = operands[_QUERY]
    if query.scale != 1:
        scale = node.attributes.get_float("scale") * query.scale
        node.attributes.add(ir.AttrFloat32("scale", scale))
    if query.rotation is not None:
        number = next(i for i, r in enumerate(rotations) if r is query.rotation)
        _add_tables(graph, node, query.rotation, number)


def _whole(node: ir.Node, operands: Operands) -> ir.Value | None:
    """Case 4: the tensor whose channels are queries, keys and values in order, and no others."""
    if not {_QUERY, _KEY, _VALUE} <= operands.keys():
        return None
    (vectors, _), first = operands[_QUERY], 0
    for place in (_QUERY, _KEY, _VALUE):
        other, reading = operands[place]
        if other.start is not vectors.start or reading.first != first:
            return None
        first += _width(node, place)
    is_flat = vectors.start.shape is not None and len(vectors.start.shape) == 3
    return vectors.start if is_flat and first == vectors.width else None


def _channels(
    graph: ir.Graph, node: ir.Node, place: int, vectors: TokenMap, first: int
) -> ir.Value | None:
    """The channels of a map's start that become an operand, `(B, S, N)`."""
    operand, value, width = node.inputs[place], vectors.start, _width(node, place)
    if operand is None or value.shape is None:
        return operand
    new = Insert(graph, node)
    if len(value.shape) != 3:
        value = new.Reshape(value, [0, 0, vectors.width])
        _describe(value, operand, vectors.width)
    if width < vectors.width:
        value = new.Slice(value, [first], [first + width], [-1])
        _describe(value, operand, width)
    return value


def _describe(value: ir.Value, like: ir.Value, width: int) -> None:
    """Give a value the type and shape of another one, with other channels."""
    if like.shape is not None:
        value.shape = ir.Shape([*like.shape[:2], width])
    value.type = like.type


def _width(node: ir.Node, place: int) -> int:
    """Channels of queries, keys or values."""
    value = node.inputs[place]
    width = None if value is None or value.shape is None else value.shape[-1]
    if not isinstance(width, int):
        raise ValueError(f"{node.name}: expected a fixed number of channels, got {width}")
    return width


def _add_tables(graph: ir.Graph, node: ir.Node, rotation: Rotation, number: int) -> None:
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
