"""Read low-bit weights in products and look-ups, with standard operators only.

Spec: ai.onnx DequantizeLinear, version 21 and later, blocked. onnxruntime replaces a
DequantizeLinear whose only reader is a MatMul with the kernel of MatMulNBits.

Shape letters: N rows of a weight, K its columns, G groups of a row.
"""

from collections.abc import Sequence

import onnx_ir as ir

from ortolan.export.passes.nodes import insert_node
from ortolan.export.passes.quantize_weights import QuantizeWeights
from ortolan.export.passes.weight_readers import QuantizeReaders
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, static_shape, type_of

COLUMNS, COLUMN_SCALES, COLUMN_ZEROS = ".columns", ".column_scales", ".column_zeros"
"""Suffixes of the initializers that a product reads: `(K, N)`, `(G, N)` and `(G, N)`."""

ROWS, ROW_SCALES, ROW_ZEROS = ".rows", ".row_scales", ".row_zeros"
"""Suffixes of those that a look-up reads, one byte a value: `(N, K)`, `(N, G)` and `(N, G)`."""

DTYPES = {
    (4, True): ir.DataType.INT4,
    (4, False): ir.DataType.UINT4,
    (8, True): ir.DataType.INT8,
    (8, False): ir.DataType.UINT8,
}
"""Types of codes by bits and symmetry: without zero points, they are signed."""


class QuantizePortable(QuantizeReaders):
    """Put DequantizeLinear between every low-bit weight and its readers.

    Case 1: FusedMatMul(x, w, transB=1) becomes MatMul(x, DequantizeLinear(columns of w)).
    Case 2: Gather(w, ids) becomes DequantizeLinear of the gathered rows and scales. No runtime
        gathers half bytes, so a 4-bit code takes one byte.
    Case 3: the weight is not in the plan: keep.
    """

    def _product(
        self, graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme
    ) -> ir.Value:
        rows, columns = static_shape(weight)
        dtype, grid = DTYPES[scheme.bits, scheme.symmetric], (scheme.groups(columns), rows)
        name = weight.name
        stored = [
            add_initializer(graph, f"{name}{COLUMNS}", dtype, (columns, rows)),
            add_initializer(graph, f"{name}{COLUMN_SCALES}", type_of(weight), grid),
        ]
        if not scheme.symmetric:
            stored.append(add_initializer(graph, f"{name}{COLUMN_ZEROS}", dtype, grid))
        wide = _dequantize(graph, node, stored, scheme, axis=0)
        return insert_node(graph, node, "MatMul", [node.inputs[0], wide])

    def _look_up(
        self, graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme
    ) -> ir.Value:
        rows, columns = static_shape(weight)
        dtype, grid = DTYPES[8, scheme.symmetric], (rows, scheme.groups(columns))
        name = weight.name
        tables = [
            add_initializer(graph, f"{name}{ROWS}", dtype, (rows, columns)),
            add_initializer(graph, f"{name}{ROW_SCALES}", type_of(weight), grid),
        ]
        if not scheme.symmetric:
            tables.append(add_initializer(graph, f"{name}{ROW_ZEROS}", dtype, grid))
        gathered = [insert_node(graph, node, "Gather", [t, node.inputs[1]]) for t in tables]
        return _dequantize(graph, node, gathered, scheme, axis=2)


class QuantizeForWeb(QuantizePortable):
    """Like `QuantizePortable`, but look up rows by GatherBlockQuantized, which reads half bytes."""

    writes_contrib = True
    _look_up = QuantizeWeights._look_up


def _dequantize(
    graph: ir.Graph, before: ir.Node, inputs: Sequence[ir.Value], scheme: Scheme, *, axis: int
) -> ir.Value:
    attributes = {"axis": axis, "block_size": scheme.group}
    return insert_node(graph, before, "DequantizeLinear", inputs, attributes)
