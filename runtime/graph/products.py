"""Products: nodes that multiply by a weight or look up its rows, each as a separate graph.

Such a graph runs one weight through the same kernel as the whole graph does, on numbers that the
caller chooses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.graph.tensors import dtype_of

PRODUCT_INPUT, PRODUCT_OUTPUT = "x", "y"
"""Names of the input and the output of a product's graph."""

CODE_STEP, CODE_MIDDLE = 1 / 127, 128
"""Step of the 8-bit codes of activations between -1 and 1, and the code of 0."""

_UINT8, _INT64 = 2, 7
_OUTSIDE = 1

_LOOK_UPS = frozenset({"Gather", "GatherBlockQuantized"})

_BIASES = {"Gemm": 2, "DynamicQuantizeMatMul": 4, "MatMulNBits": 5, "MatMulIntegerToFloat": 6}
"""Index of the optional bias, which is left out."""

_FLAGS = {
    "MatMul": frozenset[str](),
    "FusedMatMul": frozenset({"transB"}),
    "Gemm": frozenset({"transA", "transB"}),
    "DynamicQuantizeMatMul": frozenset[str](),
    "MatMulIntegerToFloat": frozenset[str](),
    "MatMulNBits": frozenset({"K", "N", "bits", "block_size", "accuracy_level"}),
    "Gather": frozenset({"axis"}),
    "GatherBlockQuantized": frozenset({"bits", "block_size", "gather_axis", "quantize_axis"}),
}
"""Supported operators and attributes; a node with others is not a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A weight `(outputs, inputs)` and the node that multiplies by it or looks up its rows.

    Attributes:
        weight: name of the initializer with its values or codes.
        reads: names of all initializers that the node reads, except the bias.
        operator: operator of the node.
        outputs: rows of the weight.
        inputs: columns of the weight.
        by_columns: whether the initializer is stored as `(inputs, outputs)`.
        looks_up: whether the input is row indices instead of numbers to multiply.
        reads_codes: whether the input is codes of `CODE_STEP` and `CODE_MIDDLE`.
        whole_range: whether the kernel rounds its input by the range of the whole call.
        dtype: type of a product's output, and of an input that is not codes.
        graph: the node alone, as a serialized ModelProto whose `PRODUCT_INPUT` is `(rows, inputs)`,
            uint8 if it reads codes, or int64 `(rows,)`.
    """

    weight: str
    reads: tuple[str, ...]
    operator: str
    outputs: int
    inputs: int
    by_columns: bool
    looks_up: bool
    reads_codes: bool
    whole_range: bool
    dtype: str
    graph: bytes


def products(data: bytes) -> Iterator[Product]:
    """Yield the products of a graph, one per weight and operator."""
    seen = set()
    for _, product in placed_products(parse_model(data)):
        if (product.weight, product.operator) not in seen:
            seen.add((product.weight, product.operator))
            yield product


def placed_products(model: Any) -> Iterator[tuple[Any, Product]]:
    """Yield every node that is a product, with its description."""
    outside = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.data_location == _OUTSIDE
    }
    dequantizers = {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type == b"DequantizeLinear" and all(name in outside for name in node.input)
    }
    for node in model.graph.node:
        product = _product(model, node, outside, dequantizers)
        if product is not None:
            yield node, product


def _product(
    model: Any, node: Any, outside: Mapping[bytes, Any], dequantizers: Mapping[bytes, Any]
) -> Product | None:
    operator = node.op_type.decode()
    flags = {attribute.name.decode(): attribute.i for attribute in node.attribute}
    if operator not in _FLAGS or not flags.keys() <= _FLAGS[operator] or flags.get("transA"):
        return None
    looks_up = operator in _LOOK_UPS
    place, free = (0, 1) if looks_up else (1, 0)
    dequantizer = dequantizers.get(node.input[place])
    weight = outside.get(node.input[place] if dequantizer is None else dequantizer.input[0])
    read = [*_read(node, free), *([] if dequantizer is None else dequantizer.input)]
    read = [name for name in read if dequantizer is None or name != dequantizer.output[0]]
    if weight is None or node.input[free] in outside or any(name not in outside for name in read):
        return None
    sizes = _sizes(operator, flags, weight, is_blocks=dequantizer is not None)
    typed = outside[read[_SCALED[operator]]] if operator in _SCALED else weight
    if dequantizer is not None:
        typed = outside[dequantizer.input[1]]
    if sizes is None or _FLOATS.isdisjoint({typed.data_type}):
        return None
    outputs, inputs, by_columns = sizes
    return Product(
        weight=weight.name.decode(),
        reads=tuple(name.decode() for name in read),
        operator=operator,
        outputs=outputs,
        inputs=inputs,
        by_columns=by_columns,
        looks_up=looks_up,
        reads_codes=operator == "MatMulIntegerToFloat",
        whole_range=operator == "DynamicQuantizeMatMul",
        dtype=dtype_of(weight.name.decode(), typed.data_type)[0],
        graph=_single_node_graph(
            model, node, dequantizer, [outside[name] for name in read], free, typed.data_type
        ),
    )


_SCALED = {
    "MatMulNBits": 1,
    "GatherBlockQuantized": 1,
    "DynamicQuantizeMatMul": 1,
    "MatMulIntegerToFloat": 2,
}
"""Index of the scales among the tensors that a node reads, where outputs have their type."""

_FLOATS = frozenset({1, 10, 16})
"""float32, float16, bfloat16."""


def _read(node: Any, free: int) -> list[bytes]:
    """Inputs of a node, without its activations and its bias."""
    bias = _BIASES.get(node.op_type.decode())
    return [name for place, name in enumerate(node.input) if name and place not in (free, bias)]


def _sizes(
    operator: str, flags: Mapping[str, int], weight: Any, *, is_blocks: bool
) -> tuple[int, int, bool] | None:
    """Outputs, inputs, and whether the weight is stored by columns; `None` for other axes."""
    dims = list(weight.dims)
    if operator == "MatMulNBits":
        return flags["N"], flags["K"], False
    if len(dims) != 2:
        return None
    if operator == "GatherBlockQuantized":
        is_by_rows = flags.get("gather_axis", 0) == 0 and flags.get("quantize_axis", 1) == 1
        return (dims[0], dims[1] * 8 // flags.get("bits", 4), False) if is_by_rows else None
    if operator == "Gather":
        return (dims[0], dims[1], False) if flags.get("axis", 0) == 0 and not is_blocks else None
    if flags.get("transB"):
        return dims[0], dims[1], False
    return dims[1], dims[0], True


def _single_node_graph(
    model: Any, node: Any, dequantizer: Any | None, weights: list[Any], free: int, dtype: int
) -> bytes:
    """A graph of one node, and of the node that dequantizes its weight, if any."""
    single = type(model)(ir_version=model.ir_version)
    single.opset_import.extend(model.opset_import)
    graph = single.graph
    graph.name = b"product"
    graph.initializer.extend(weights)
    if dequantizer is not None:
        graph.node.add().CopyFrom(dequantizer)
    copy = graph.node.add()
    copy.CopyFrom(node)
    copy.input[free] = PRODUCT_INPUT.encode()
    bias = _BIASES.get(node.op_type.decode())
    if bias is not None and bias < len(copy.input):
        copy.input[bias] = b""
    copy.output[0] = PRODUCT_OUTPUT.encode()
    looks_up = free == 1
    entering = _UINT8 if node.op_type == b"MatMulIntegerToFloat" else dtype
    for values, name, element, rank in (
        (graph.input, PRODUCT_INPUT, _INT64 if looks_up else entering, 1 if looks_up else 2),
        (graph.output, PRODUCT_OUTPUT, dtype, 2),
    ):
        value = values.add(name=name.encode())
        value.type.tensor_type.elem_type = element
        for axis in range(rank):
            value.type.tensor_type.shape.dim.add(dim_param=f"{name}{axis}".encode())
    data: bytes = single.SerializeToString()
    return data
