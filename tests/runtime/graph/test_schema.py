from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from tests.runtime.graph_changes import DATA, checked, error_of

from ortolan.runtime import limits
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph import schema as onnx_schema
from ortolan.runtime.graph.summary import GraphSummary


def message_pairs() -> list[tuple[Any, Any]]:
    """Pair every message of the trimmed schema with that of onnx."""
    pairs = {"Model": (onnx_schema.parse_model(DATA).DESCRIPTOR, ModelProto.DESCRIPTOR)}
    pending = list(pairs.values())
    for ours, theirs in pending:
        for field in ours.fields:
            if field.message_type is not None and field.message_type.name not in pairs:
                pair = (field.message_type, theirs.fields_by_name[field.name].message_type)
                pairs[field.message_type.name] = pair
                pending.append(pair)
    return list(pairs.values())


def test_trimmed_schema_agrees_with_onnx() -> None:
    same_on_the_wire = {"string": "bytes", "enum": "int32", "message": "bytes"}

    def described(field: Any) -> tuple[int, bool, str]:
        names = {
            getattr(field, name): name.removeprefix("TYPE_").lower()
            for name in dir(field)
            if name.startswith("TYPE_")
        }
        return field.number, field.is_repeated, names[field.type]

    pairs = message_pairs()
    assert len(pairs) == 13
    for ours, theirs in pairs:
        for field in ours.fields:
            number, repeated, kind = described(theirs.fields_by_name[field.name])
            kinds = {kind, same_on_the_wire.get(kind, kind)}
            assert described(field)[:2] == (number, repeated), field.full_name
            assert described(field)[2] in kinds, field.full_name
        for oneof in ours.oneofs:
            expected = [field.number for field in theirs.oneofs_by_name[oneof.name].fields]
            assert [field.number for field in oneof.fields] == sorted(expected)


@pytest.mark.parametrize("bomb", ["empty nodes", "packed numbers"])
def test_small_file_that_would_fill_the_memory_is_rejected(bomb: str) -> None:
    def framed(*fields: int, data: bytes) -> bytes:
        for field in reversed(fields):
            # ModelProto fields, by their numbers, around the data
            data = bytes([field << 3 | 2]) + varint(len(data)) + data
        return data

    def varint(number: int) -> bytes:
        groups = [number >> shift & 0x7F for shift in range(0, 28, 7)]
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    many = limits.MAX_GRAPH_FIELDS
    data = {
        "empty nodes": framed(7, data=b"\x0a\x00" * many),
        "packed numbers": framed(7, 5, 1, data=b"\x01" * many),
    }[bomb]
    assert "protobuf fields" in error_of(data)


def test_deep_subgraphs_do_not_exhaust_the_stack() -> None:
    graph = b""
    for _ in range(2000):
        # GraphProto.node.attribute.g, one around the other
        for key in (b"\x32", b"\x2a", b"\x0a"):
            length = len(graph)
            size = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
            graph = key + size + graph
    length = len(graph)
    data = b"\x3a" + bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + graph
    assert "subgraph" in error_of(data + b"\x42\x02\x10\x18")


@pytest.mark.parametrize("length", range(0, len(DATA), 25))
def test_torn_graph_is_rejected(length: int) -> None:
    error_of(DATA[:length])


@settings(deadline=None)
@given(st.data())
def test_random_changes_raise_only_graph_errors(data: st.DataObject) -> None:
    mutant = bytearray(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutant) - 1))
        length = data.draw(st.integers(0, 4))
        mutant[position : position + length] = data.draw(st.binary(max_size=4))
    try:
        summary = checked(bytes(mutant))
    except GraphError:
        return
    assert isinstance(summary, GraphSummary)
