"""Products: nodes that multiply by a weight or look up its rows, each as a separate graph.

Such a graph runs one weight through the same kernel as the whole graph does, on numbers that the
caller chooses.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.graph.tensors import dtype_of

PRODUCT_INPUT, PRODUCT_OUTPUT = "x", "y"
"""Names of the input and the output of a product's graph."""

CODE_STEP, CODE_MIDDLE = 1 / 127, 128
"""Step of the 8-bit codes of activations between -1 and 1, and the code of 0."""

_UINT8, _INT64 = 2, 7

_FLOATS = frozenset({1, 10, 16})
"""float32, float16, bfloat16."""

_OUTSIDE = 1


class _Form(NamedTuple):
    """A supported operator: its attributes, and indices of its inputs.

    `scales` is an index among the tensors that a node reads, where outputs have the scales' type.
    """

    flags: Set[str] = frozenset()
    weight: int = 1
    bias: int | None = None
    scales: int | None = None


_BLOCK_FLAGS = {"K", "N", "bits", "block_size", "accuracy_level"}
_LOOK_UP_FLAGS = {"bits", "block_size", "gather_axis", "quantize_axis"}

_FORMS = {
    "MatMul": _Form(),
    "FusedMatMul": _Form({"transB"}),
    "Gemm": _Form({"transA", "transB"}, bias=2),
    "DynamicQuantizeMatMul": _Form(bias=4, scales=1),
    "MatMulIntegerToFloat": _Form(bias=6, scales=2),
    "MatMulNBits": _Form(_BLOCK_FLAGS, bias=5, scales=1),
    "Gather": _Form({"axis"}, weight=0),
    "GatherBlockQuantized": _Form(_LOOK_UP_FLAGS, weight=0, scales=1),
}
"""Supported operators; a node with other attributes is not a product. Biases are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A weight `(outputs, inputs)` and the node that multiplies by it or looks up its rows.

    Attributes:
        weight: name of the initializer with its values or codes.
        reads: names of all initializers that the node reads, except the bias.
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
    form = _FORMS.get(operator)
    flags = {attribute.name.decode(): attribute.i for attribute in node.attribute}
    if form is None or not flags.keys() <= form.flags or flags.get("transA"):
        return None
    free = 1 - form.weight
    reads = [
        name for place, name in enumerate(node.input) if name and place not in (free, form.bias)
    ]
    dequantizer = dequantizers.get(node.input[form.weight])
    if dequantizer is not None:
        reads = [*(name for name in reads if name != dequantizer.output[0]), *dequantizer.input]
    weight = outside.get(node.input[form.weight] if dequantizer is None else dequantizer.input[0])
    if weight is None or node.input[free] in outside or not outside.keys() >= set(reads):
        return None
    sizes = _sizes(operator, flags, weight, is_blocks=dequantizer is not None)
    typed = weight if form.scales is None else outside[reads[form.scales]]
    if dequantizer is not None:
        typed = outside[dequantizer.input[1]]
    if sizes is None or typed.data_type not in _FLOATS:
        return None
    outputs, inputs, by_columns = sizes
    nodes = [node] if dequantizer is None else [dequantizer, node]
    return Product(
        weight=weight.name.decode(),
        reads=tuple(name.decode() for name in reads),
        operator=operator,
        outputs=outputs,
        inputs=inputs,
        by_columns=by_columns,
        looks_up=form.weight == 0,
        reads_codes=operator == "MatMulIntegerToFloat",
        whole_range=operator == "DynamicQuantizeMatMul",
        dtype=dtype_of(weight.name.decode(), typed.data_type)[0],
        graph=_part(model, form, nodes, [outside[name] for name in reads], typed.data_type),
    )


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


def _part(model: Any, form: _Form, nodes: list[Any], weights: list[Any], dtype: int) -> bytes:
    """A graph of a product alone, and of the node that dequantizes its weight, if any."""
    part = type(model)(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    graph = part.graph
    graph.name = b"product"
    graph.initializer.extend(weights)
    graph.node.extend(nodes)
    product, looks_up = graph.node[-1], form.weight == 0
    product.input[1 - form.weight] = PRODUCT_INPUT.encode()
    if form.bias is not None and form.bias < len(product.input):
        product.input[form.bias] = b""
    product.output[0] = PRODUCT_OUTPUT.encode()
    entering = _UINT8 if product.op_type == b"MatMulIntegerToFloat" else dtype
    for values, name, element, rank in (
        (graph.input, PRODUCT_INPUT, _INT64 if looks_up else entering, 1 if looks_up else 2),
        (graph.output, PRODUCT_OUTPUT, dtype, 2),
    ):
        value = values.add(name=name.encode())
        value.type.tensor_type.elem_type = element
        for axis in range(rank):
            value.type.tensor_type.shape.dim.add(dim_param=f"{name}{axis}".encode())
    data: bytes = part.SerializeToString()
    return data
