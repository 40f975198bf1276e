"""Bounds on what a graph alone can cost, whatever its inputs are.

    readers of one value     onnxruntime's load time grows with their square
    values joined into one   thirty doublings turn one value into a billion of it
    integer divisors         a kernel that divides by 0 or -1 ends the process
    sizes from constants     Expand, Tile, ... allocate what a constant says
    constants of constants   onnxruntime computes them while it loads the graph

Sizes that depend on inputs are not known here. The memory plan bounds requests, and the first load
in a subprocess catches the rest (`ortolan.runtime.verification`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortolan.runtime import limits
from ortolan.runtime.graph.element_types import Node
from ortolan.runtime.graph.schema import RefusedError, check_count, text

_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})

_DIVISIONS = frozenset({"ai.onnx::Div", "ai.onnx::Mod"})

_SIZES_AT: Mapping[str, int] = {
    "ai.onnx::ConstantOfShape": 0,
    "ai.onnx::Expand": 1,
    "ai.onnx::OneHot": 1,
    "ai.onnx::Pad": 1,
    "ai.onnx::Tile": 1,
}
"""Operators whose output size is the value of an input, and the index of that input."""

_RANGE = "ai.onnx::Range"

_ELEMENTWISE = frozenset(
    f"ai.onnx::{name}"
    for name in (
        *("Add", "And", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where"),
    )
)

_OF_FIRST = frozenset(
    f"ai.onnx::{name}"
    for name in (
        *(
            "CastLike",
            "DequantizeLinear",
            "LayerNormalization",
            "QuantizeLinear",
            "RMSNormalization",
        ),
        *("ReduceMax", "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "TopK"),
        "Unsqueeze",
    )
)
"""Operators with at most as many output elements as their first input has."""


_CASTS = frozenset({"ai.onnx::Cast", "ai.onnx::CastLike"})

_DTYPES = {1: ("<f4", "float_data"), 6: ("<i4", "int32_data"), 7: ("<i8", "int64_data")}
"""Element types of constants that hold sizes: NumPy type of raw bytes, name of the typed field."""

Numbers = tuple[float, ...]


_CONCAT = "ai.onnx::Concat"

_TAKES_PARTS = frozenset(
    f"ai.onnx::{name}"
    for name in (
        *("ArgMax", "Attention", "Conv", "Einsum", "Gather", "GatherElements", "GatherND", "Gemm"),
        *("MatMul", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum", "Shape", "Slice", "Split"),
        "TopK",
    )
)
"""Operators that return a part of their input, or something of another size."""


class _Size(NamedTuple):
    """Upper bound of a constant's elements, and its shape if known."""

    elements: int
    dims: tuple[int, ...] | None = None


def check_bounds(graph: Any, nodes: Sequence[Node]) -> None:
    """Check the bounds above."""
    _check_readers(nodes)
    _check_joins(nodes)
    numbers = _short_constants(graph, nodes)
    parts = {
        name: [number for part in node.message.input for number in numbers.get(part, ())]
        for node in nodes
        if node.operator == _CONCAT
        for name in node.message.output
    }
    for node in nodes:
        if node.operator in _DIVISIONS:
            _check_division(node, numbers)
        elif node.operator in _SIZES_AT:
            name = _sizes_of(node)
            _check_size(node.operator, _product(numbers.get(name, parts.get(name, ()))))
        elif node.operator == _RANGE:
            _check_size(_RANGE, _range_count(node, numbers) or 0)
    _check_computed_at_load(graph, nodes, numbers)


def _sizes_of(node: Node) -> bytes:
    """The name of the input that holds the sizes; empty if it is left out."""
    name: bytes = b"".join(node.message.input[_SIZES_AT[node.operator] :][:1])
    return name


def _check_readers(nodes: Iterable[Node]) -> None:
    readers = Counter(name for node in nodes for name in node.message.input if name)
    for name, count in readers.most_common(1):
        check_count(f"readers of {text(name)!r}", count, limits.MAX_READERS)


def _check_joins(nodes: Iterable[Node]) -> None:
    """Bound how many copies of a value can be joined, with no part taken in between."""
    joined: dict[bytes, int] = {}
    for node in nodes:
        counts = [joined.get(name, 1) for name in node.message.input if name]
        if node.operator == _CONCAT:
            count = sum(counts)
            check_count("values joined into one", count, limits.MAX_JOINED)
        elif node.operator in _TAKES_PARTS or node.operator.startswith("com.microsoft"):
            continue
        else:
            count = max(counts, default=1)
        if count > 1:
            joined.update((name, count) for name in node.message.output)


def _check_division(node: Node, numbers: Mapping[bytes, Numbers]) -> None:
    if not _INTEGERS.intersection(node.input_types[:1]):
        return
    divisors = numbers.get(node.message.input[1]) if len(node.message.input) == 2 else None
    if not divisors or not {0, -1}.isdisjoint(divisors):
        got = "computed ones" if divisors is None else str(list(divisors)[:8])
        raise RefusedError(f"constant divisors other than 0 and -1 of {node.operator}", got)


def _check_size(operator: str, count: int) -> None:
    check_count(f"elements from one {operator} of constants", count, limits.MAX_ASKED)


def _product(numbers: Iterable[float]) -> int:
    return math.prod(int(abs(number)) or 1 for number in numbers if math.isfinite(number))


# --- constants ----------------------------------------------------------------------------------


def _short_constants(graph: Any, nodes: Iterable[Node]) -> dict[bytes, Numbers]:
    """Values of the constants that are short enough to hold sizes."""
    constants: dict[bytes, Numbers | None] = {
        tensor.name: _numbers_of(tensor) for tensor in graph.initializer if not tensor.data_location
    }
    for node in nodes:
        message = node.message
        if node.operator == "ai.onnx::Constant":
            (attribute,) = message.attribute
            numbers: Numbers | None = (attribute.i,)
            if attribute.HasField("t"):
                numbers = _numbers_of(attribute.t)
            elif attribute.name == b"value_ints":
                numbers = tuple(attribute.ints[: limits.MAX_TENSOR_RANK])
            elif attribute.name == b"value_float":
                numbers = (attribute.f,)
        elif node.operator in _CASTS and message.input:
            numbers = constants.get(message.input[0])
        else:
            continue
        constants.update((name, numbers) for name in message.output)
    return {name: numbers for name, numbers in constants.items() if numbers is not None}


def _numbers_of(tensor: Any) -> Numbers | None:
    kind = _DTYPES.get(tensor.data_type)
    if kind is None or math.prod(tensor.dims) > limits.MAX_TENSOR_RANK:
        return None
    dtype, field = kind
    if tensor.raw_data:
        return tuple(np.frombuffer(tensor.raw_data, dtype).tolist())
    return tuple(getattr(tensor, field))


# --- computed while the graph is loaded ---------------------------------------------------------


def _check_computed_at_load(
    graph: Any, nodes: Iterable[Node], numbers: Mapping[bytes, Numbers]
) -> None:
    """Bound the total elements of values that depend on constants alone."""
    sizes = {
        tensor.name: _Size(math.prod(tensor.dims), tuple(tensor.dims))
        for tensor in graph.initializer
    }
    weights = sum(size.elements for size in sizes.values())
    most = limits.MAX_COMPUTED_AT_LOAD + limits.MAX_COMPUTED_PER_WEIGHT * weights
    total = 0
    for node in nodes:
        inputs = [name for name in node.message.input if name]
        if node.operator == "ai.onnx::Constant":
            size = _Size(_constant_count(node.message))
        elif inputs and all(name in sizes for name in inputs):
            size = _output_size(node, [sizes[name] for name in inputs], numbers)
            total += size.elements * len(node.message.output)
            check_count("elements computed from constants", total, most)
        else:
            continue
        sizes.update((name, size) for name in node.message.output if name)


def _constant_count(message: Any) -> int:
    (attribute,) = message.attribute
    if attribute.HasField("t"):
        return math.prod(attribute.t.dims)
    return max(1, len(attribute.ints), len(attribute.floats))


def _output_size(node: Node, inputs: Sequence[_Size], numbers: Mapping[bytes, Numbers]) -> _Size:
    """Upper bound of an output of a node whose inputs are constants."""
    operator, first = node.operator, inputs[0]
    if operator in _SIZES_AT or operator == _RANGE:
        return _Size(_stated_size(node, first, numbers))
    if operator == _CONCAT:
        return _Size(sum(size.elements for size in inputs))
    if operator == "ai.onnx::Gather" and len(inputs) == 2:
        axis = next((a.i for a in node.message.attribute if a.name == b"axis"), 0)
        if first.dims and -len(first.dims) <= axis < len(first.dims) and first.dims[axis]:
            return _Size(first.elements // first.dims[axis] * inputs[1].elements)
    if operator in _OF_FIRST:
        return _Size(first.elements)
    if len(inputs) == 1:
        return first
    if operator in _ELEMENTWISE:
        dims = [size.dims if size.elements != 1 else () for size in inputs]
        try:
            shape = np.broadcast_shapes(*(sizes for sizes in dims if sizes is not None))
        except ValueError:
            shape = ()
        if None not in dims:
            return _Size(math.prod(shape), shape)
    return _Size(math.prod(size.elements for size in inputs))


def _stated_size(node: Node, first: _Size, numbers: Mapping[bytes, Numbers]) -> int:
    """Elements of an output whose size is the value of a constant."""
    if node.operator == _RANGE:
        count = _range_count(node, numbers)
    else:
        sizes = numbers.get(_sizes_of(node))
        count = None if sizes is None else _product(sizes) * first.elements
    if count is None:
        raise RefusedError(f"constants in the graph as sizes of {node.operator}", "computed ones")
    return count


def _range_count(node: Node, numbers: Mapping[bytes, Numbers]) -> int | None:
    """Elements of a range with constant ends; `None` for other ranges."""
    ends: list[Numbers] = [numbers.get(name, ()) for name in node.message.input]
    if len(ends) != 3 or any(len(end) != 1 for end in ends):
        return None
    (start,), (limit,), (step,) = ends
    if not step or not all(map(math.isfinite, (start, limit, step))):
        return 0
    return max(0, math.ceil((limit - start) / step))
