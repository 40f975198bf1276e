"""Products and table look-ups read weights of a few bits, by standard operators alone.

Spec: ai.onnx DequantizeLinear, version 21 and later, blocked. onnxruntime turns a
DequantizeLinear whose only reader is a MatMul into the kernel of MatMulNBits.

Shape letters: N rows of a weight, K its columns, G groups of a row.
"""

from collections.abc import Mapping

import onnx_ir as ir

from ortolan.export.passes.weight_readers import lower_readers
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, static_shape, type_of

COLUMNS, COLUMN_SCALES, COLUMN_ZEROS = ".columns", ".column_scales", ".column_zeros"
"""What a product reads: `(K, N)`, `(G, N)` and `(G, N)`, by suffix of the weight's name."""

ROWS, ROW_SCALES, ROW_ZEROS = ".rows", ".row_scales", ".row_zeros"
"""What a look-up reads, a byte for each value: `(N, K)`, `(N, G)` and `(N, G)`."""

DTYPES = {
    (4, True): ir.DataType.INT4,
    (4, False): ir.DataType.UINT4,
    (8, True): ir.DataType.INT8,
    (8, False): ir.DataType.UINT8,
}
"""By bits and symmetry: without zero points, codes are signed."""


class QuantizePortable(ir.passes.InPlacePass):
    """Every reader of a quantized weight takes it through DequantizeLinear.

    Case 1: FusedMatMul(x, w, transB=1) becomes MatMul(x, DequantizeLinear(columns of w)).
    Case 2: Gather(w, ids) becomes DequantizeLinear of what is gathered from rows and scales. No
        runtime gathers half bytes, so 4-bit codes take a byte each.
    Case 3: the weight is not in the plan: the nodes stay.
    """

    def __init__(self, plan: Mapping[str, Scheme]) -> None:
        self.plan = plan

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = lower_readers(model.graph, self.plan, product=_product, look_up=_look_up)
        return ir.passes.PassResult(model, modified)


def _product(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
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
    product = ir.Node("", "MatMul", [node.inputs[0], wide], num_outputs=1)
    graph.insert_before(node, product)
    return product.outputs[0]


def _look_up(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    rows, columns = static_shape(weight)
    dtype, grid = DTYPES[8, scheme.symmetric], (rows, scheme.groups(columns))
    name = weight.name
    tables = [
        add_initializer(graph, f"{name}{ROWS}", dtype, (rows, columns)),
        add_initializer(graph, f"{name}{ROW_SCALES}", type_of(weight), grid),
    ]
    if not scheme.symmetric:
        tables.append(add_initializer(graph, f"{name}{ROW_ZEROS}", dtype, grid))
    taken = []
    for table in tables:
        gather = ir.Node("", "Gather", [table, node.inputs[1]], num_outputs=1)
        graph.insert_before(node, gather)
        taken.append(gather.outputs[0])
    return _dequantize(graph, node, taken, scheme, axis=2)


def _dequantize(
    graph: ir.Graph, before: ir.Node, inputs: list[ir.Value], scheme: Scheme, *, axis: int
) -> ir.Value:
    node = ir.Node(
        "",
        "DequantizeLinear",
        inputs,
        [ir.AttrInt64("axis", axis), ir.AttrInt64("block_size", scheme.group)],
        num_outputs=1,
    )
    graph.insert_before(before, node)
    return node.outputs[0]
