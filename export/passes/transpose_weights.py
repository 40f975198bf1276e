"""Read a weight that is stored `(in, out)` as `(out, in)`.

Spec: com.microsoft.FusedMatMul, version 1 (onnxruntime, docs/ContribOperators.md); ai.onnx Gemm,
version 13.

Shape letters: K inputs of a product, N outputs.
"""

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.passes.nodes import CONTRIB, NodePass, insert_node
from ortolan.export.values import is_weight, only_user, producer, replace_value


class TransposeWeights(NodePass):
    """Replace MatMul(x, w) and Gemm(x, w, b) with FusedMatMul(x, w', transB=1) and Add of b.

    Every weight of a product then has a row for each output. Quantization groups values along
    rows, and products are packed by joining rows.

    Case 1: MatMul with an initializer `(K, N)`: rewrite.
    Case 2: Gemm with an initializer `(K, N)`, or `(N, K)` and transB: rewrite.
    Case 3: case 2 between a Reshape of `(..., K)` to `(-1, K)` and one back to `(..., N)`: rewrite
        without the two.
    Case 4: otherwise: keep.
    """

    operators = ("MatMul", "Gemm")
    writes_contrib = True

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        x, stored = node.inputs[:2]
        if x is None or stored is None or not is_weight(stored, axes=2) or not _is_plain(node):
            return False  # Case 4
        is_transposed = bool(node.attributes.get_int("transB", 0))
        weight = stored if is_transposed else derive(graph, [stored], transposed=True)
        last = node
        if node.op_type == "Gemm":
            flat, back = producer(x, "Reshape"), only_user(node.outputs[0], "Reshape")
            if flat is not None and back is not None and _is_there_and_back(flat, back):
                # Case 3
                x, last = flat.inputs[0], back
        out = last.outputs[0]
        product = insert_node(
            graph, last, "FusedMatMul", [x, weight], {"transB": 1}, domain=CONTRIB
        )
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            product.shape, product.type = out.shape, out.type
            product = insert_node(graph, last, "Add", [product, bias])
        replace_value(out, product)
        for removed in dict.fromkeys((last, node)):
            graph.remove(removed, safe=True)
        return True


def _is_plain(node: ir.Node) -> bool:
    """Whether a product neither scales nor transposes x."""
    scales = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    return all(scale == 1 for scale in scales) and not node.attributes.get_int("transA", 0)


def _is_there_and_back(flat: ir.Node, back: ir.Node) -> bool:
    """Whether one view flattens all axes but the last, and the other restores them."""
    x, result = flat.inputs[0], back.outputs[0]
    if x is None or x.shape is None or result.shape is None or flat.outputs[0].shape is None:
        return False
    return (
        len(flat.outputs[0].shape) == 2
        and flat.outputs[0].shape[-1] == x.shape[-1]
        and result.shape[:-1] == x.shape[:-1]
        and None not in [getattr(axis, "value", axis) for axis in x.shape]
    )
