"""Read low-bit weights in products and look-ups.

Spec: com.microsoft.MatMulNBits and com.microsoft.GatherBlockQuantized, version 1 (onnxruntime,
docs/ContribOperators.md); ai.onnx DequantizeLinear, version 21 and later, blocked. onnxruntime
replaces a DequantizeLinear whose only reader is a MatMul with the kernel of MatMulNBits.

Shape letters: N rows of a weight, K its columns, G groups of a row.
"""

from collections.abc import Mapping
from typing import Literal

import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, Insert, replace_node, visit
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, static_shape, type_of

ACCURACY_LEVELS = {ir.DataType.FLOAT: 4}
"""Accuracy level by the type of the activations. Level 4 rounds float32 to 8 bits, because the CPU
has no other fast kernels for 8-bit weights. 16-bit types are for GPUs, which have no levels."""

CODES, TABLE, SCALES, ZEROS, MINIMUMS = ".codes", ".table", ".scales", ".zeros", ".minimums"
"""Suffixes of the initializers that replace a weight. `.table` is `.codes` in another shape."""

COLUMNS, COLUMN_SCALES, COLUMN_ZEROS = ".columns", ".column_scales", ".column_zeros"
"""Suffixes of those of a portable product: `(K, N)`, `(G, N)` and `(G, N)`."""

ROWS, ROW_SCALES, ROW_ZEROS = ".rows", ".row_scales", ".row_zeros"
"""Suffixes of those of a portable look-up, one byte a value: `(N, K)`, `(N, G)` and `(N, G)`."""

DTYPES = {
    (4, True): ir.DataType.INT4,
    (4, False): ir.DataType.UINT4,
    (8, True): ir.DataType.INT8,
    (8, False): ir.DataType.UINT8,
}
"""Types of portable codes by bits and symmetry: without zero points, they are signed."""

_SUMMED = "ortolan.summed"
"""Key of the group size in the metadata of a node that splits its input into groups to sum. It is
never written to a file."""


def quantize_weights(
    graph: ir.Graph,
    plan: Mapping[str, Scheme],
    form: Literal["fused", "portable", "web"] = "fused",
) -> bool:
    """Give every reader of a low-bit weight codes, scales and any zero points.

    Case 1: FusedMatMul(x, w, transB=1) becomes MatMulNBits.
    Case 2: Gather(w, ids) becomes GatherBlockQuantized, over the same bytes as case 1 if the head
        shares the embedding's table.
    Case 3: case 2 where groups do not divide the width: the padding of the rows is cut off.
    Case 4: the weight is not in the plan: keep.
    Case 5: case 1 with a minimum for each group: add the sums of x over the groups, times the
        minimums.

            x -> MatMulNBits -----------------------> Add -> y
              -> Reshape -> ReduceSum -> MatMul(m) -/

    Case 6: portable or for the web, FusedMatMul(x, w, transB=1) becomes
        MatMul(x, DequantizeLinear(columns of w)).
    Case 7: portable, Gather(w, ids) becomes DequantizeLinear of the gathered rows and scales. No
        runtime gathers half bytes, so a 4-bit code takes one byte.

    A weight that loses its last reader is dropped.
    """
    product = _product if form == "fused" else _portable_product
    look_up = _portable_look_up if form == "portable" else _look_up

    def rewrite(graph: ir.Graph, node: ir.Node) -> bool:
        place, replace = (1, product) if node.op_type == "FusedMatMul" else (0, look_up)
        weight = node.inputs[place]
        name = None if weight is None else weight.name
        if weight is None or name is None or name not in plan:
            return False  # Case 4
        replace_node(graph, node, replace(graph, node, weight, plan[name]))
        if not weight.uses():
            del graph.initializers[name]
        return True

    return visit(graph, ("FusedMatMul", "Gather"), rewrite, writes_contrib=form != "portable")


def _product(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    new, x, name, dtype = Insert(graph, node), node.inputs[0], weight.name, type_of(weight)
    rows, columns = static_shape(weight)
    groups = scheme.groups(columns)
    shape = (rows, groups, scheme.group * scheme.bits // 8)
    codes = add_initializer(graph, f"{name}{CODES}", ir.DataType.UINT8, shape)
    attributes = {"K": columns, "N": rows, "bits": scheme.bits, "block_size": scheme.group}
    if dtype in ACCURACY_LEVELS:
        attributes["accuracy_level"] = ACCURACY_LEVELS[dtype]
    inputs = [x, codes, *_grid(graph, weight, scheme)]
    product = new.MatMulNBits(*inputs, domain=CONTRIB, **attributes)
    if not scheme.minimums or x is None:
        return product
    # Case 5
    minimums = add_initializer(graph, f"{name}{MINIMUMS}", dtype, (groups, rows))
    sums = _group_sums(Insert(graph, product.producer()), x, groups, scheme.group)
    return new.Add(product, new.MatMul(sums, minimums))


def _look_up(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    rows, columns = static_shape(weight)
    width = scheme.groups(columns) * scheme.group
    shape = (rows, width * scheme.bits // 8)
    table = add_initializer(graph, f"{weight.name}{TABLE}", ir.DataType.UINT8, shape)
    new, inputs = Insert(graph, node), [table, node.inputs[1], *_grid(graph, weight, scheme)]
    axes = {"gather_axis": 0, "quantize_axis": 1}
    gathered = new.GatherBlockQuantized(
        *inputs, domain=CONTRIB, bits=scheme.bits, block_size=scheme.group, **axes
    )
    # Case 3
    return gathered if width == columns else new.Slice(gathered, [0], [columns], [-1])


def _portable_product(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    new, stored = Insert(graph, node), _stored(graph, weight, scheme, by_row=False)
    wide = new.DequantizeLinear(*stored, axis=0, block_size=scheme.group)
    return new.MatMul(node.inputs[0], wide)


def _portable_look_up(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> ir.Value:
    new, stored = Insert(graph, node), _stored(graph, weight, scheme, by_row=True)
    gathered = [new.Gather(table, node.inputs[1]) for table in stored]
    return new.DequantizeLinear(*gathered, axis=2, block_size=scheme.group)


def _group_sums(new: Insert, x: ir.Value, groups: int, group: int) -> ir.Value:
    """The sums of `(..., K)` over its groups, `(..., G)`, shared by all products of x."""
    for user in x.consumers():
        if user.meta.get(_SUMMED) == group:
            (total,) = user.outputs[0].consumers()
            return total.outputs[0]
    axes = 3 if x.shape is None else len(x.shape)
    shape, last = new.constant([0] * (axes - 1) + [groups, group]), new.constant([-1])
    split = new.Reshape(x, shape)
    if (node := split.producer()) is not None:
        node.meta[_SUMMED] = group
    return new.ReduceSum(split, last, keepdims=0)


def _grid(graph: ir.Graph, weight: ir.Value, scheme: Scheme) -> list[ir.Value]:
    """Scales, in the type of the activations, and any zero points: one of each for a group."""
    rows, columns = static_shape(weight)
    groups = scheme.groups(columns)
    name = weight.name
    scales = add_initializer(graph, f"{name}{SCALES}", type_of(weight), (rows, groups))
    if scheme.symmetric:
        return [scales]
    packed = -(-groups * scheme.bits // 8)
    zeros = add_initializer(graph, f"{name}{ZEROS}", ir.DataType.UINT8, (rows, packed))
    return [scales, zeros]


def _stored(graph: ir.Graph, weight: ir.Value, scheme: Scheme, *, by_row: bool) -> list[ir.Value]:
    """Codes, scales and any zero points of a portable weight."""
    rows, columns = static_shape(weight)
    shape, grid = (rows, columns), (rows, scheme.groups(columns))
    suffixes, bits = (ROWS, ROW_SCALES, ROW_ZEROS), 8
    if not by_row:
        shape, grid = shape[::-1], grid[::-1]
        suffixes, bits = (COLUMNS, COLUMN_SCALES, COLUMN_ZEROS), scheme.bits
    codes, scales, zeros = (f"{weight.name}{suffix}" for suffix in suffixes)
    dtype = DTYPES[bits, scheme.symmetric]
    stored = [
        add_initializer(graph, codes, dtype, shape),
        add_initializer(graph, scales, type_of(weight), grid),
    ]
    return stored if scheme.symmetric else [*stored, add_initializer(graph, zeros, dtype, grid)]
