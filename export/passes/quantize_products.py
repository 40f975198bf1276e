"""Multiply 8-bit activations by 8-bit weights, for prefill.

Spec: com.microsoft.MatMulIntegerToFloat, version 1 (onnxruntime, docs/ContribOperators.md);
ai.onnx QuantizeLinear, version 24.
"""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, Insert, visit
from ortolan.export.values import (
    add_constant,
    add_initializer,
    replace_value,
    static_shape,
)
from ortolan.runtime.graph.products import CODE_MIDDLE, CODE_STEP

CHANNELS, CHANNEL_SCALES = ".channels", ".channel_scales"
"""Suffixes of the initializers that replace a weight."""

_SMALLEST = 1e-30
"""Replaces the largest value of a row of zeros."""


def quantize_products(graph: ir.Graph, names: Container[str]) -> bool:
    """Replace FusedMatMul(x, w, transB=1) with a product of 8-bit integers.

        x ──▶ Abs ▶ ReduceMax ▶ Max ──▶ reach ──────────────┐
        └───▶ Div(x, reach) ▶ QuantizeLinear ▶ MatMulIntegerToFloat ▶ Mul(reach) ▶ y

    Every row of activations is divided by its largest magnitude, so that a row of outliers does
    not coarsen the others, and no row depends on another. All products of x share its codes.
    Weights have one scale for each output. With many tokens this is 1.5 times as fast as low-bit
    weights, with few tokens slower.

    Case 1: w is among the names: rewrite.
    Case 2: otherwise: keep.
    """
    coded: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def rewrite(graph: ir.Graph, node: ir.Node) -> bool:
        x, weight = node.inputs[:2]
        name = None if weight is None else weight.name
        if x is None or weight is None or name is None or name not in names:
            return False  # Case 2
        if x not in coded:
            coded[x] = _codes(graph, node, x)
        codes, reach = coded[x]
        rows, columns = static_shape(weight)
        step, middle = _grid(graph)
        channels = add_initializer(graph, f"{name}{CHANNELS}", ir.DataType.INT8, (columns, rows))
        inputs = [
            codes,
            channels,
            step,
            add_initializer(graph, f"{name}{CHANNEL_SCALES}", ir.DataType.FLOAT, (rows,)),
            middle,
        ]
        new = Insert(graph, node)
        product = new.MatMulIntegerToFloat(*inputs, domain=CONTRIB)
        product.shape, product.type = node.outputs[0].shape, node.outputs[0].type
        replace_value(node.outputs[0], new.Mul(product, reach))
        graph.remove(node, safe=True)
        if not weight.uses():
            del graph.initializers[name]
        return True

    return visit(graph, ("FusedMatMul",), rewrite, writes_contrib=True)


def _codes(graph: ir.Graph, before: ir.Node, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Codes of x `(..., K)`, and the largest magnitude of each row `(..., 1)`."""
    new = Insert(graph, before)
    last = new.constant([-1])
    smallest = add_constant(graph, "smallest_reach", np.array(_SMALLEST, np.float32))
    reach = new.Max(new.ReduceMax(new.Abs(x), last, keepdims=1), smallest)
    return new.QuantizeLinear(new.Div(x, reach), *_grid(graph)), reach


def _grid(graph: ir.Graph) -> list[ir.Value]:
    """Step and middle of the codes of activations between -1 and 1."""
    return [
        add_constant(graph, "code_step", np.array(CODE_STEP, np.float32)),
        add_constant(graph, "code_middle", np.array(CODE_MIDDLE, np.uint8)),
    ]
