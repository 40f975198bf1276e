"""A product with a weight that is stored `(in, out)` reads it as `(out, in)`.

Spec: com.microsoft.FusedMatMul, version 1 (onnxruntime, docs/ContribOperators.md); ai.onnx Gemm,
version 13.

Shape letters: K inputs of a product, N outputs.
"""

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.values import is_weight, only_user, producer, replace_value


class TransposeWeights(ir.passes.InPlacePass):
    """MatMul(x, w) and Gemm(x, w, b) become FusedMatMul(x, w', transB=1), and Add of b.

    Every weight of a product then has a row for each output, which is what quantization groups
    along, and what rows of several products are joined by.

    Case 1: MatMul with an initializer `(K, N)`: rewritten.
    Case 2: Gemm with an initializer `(K, N)`, or `(N, K)` and transB: rewritten.
    Case 3: as case 2, between a Reshape of `(..., K)` to `(-1, K)` and one back to `(..., N)`:
        without these.
    Case 4: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type in ("MatMul", "Gemm") and _rewrite(model.graph, node):
                modified = True
        if modified:
            model.graph.opset_imports["com.microsoft"] = 1
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    x, stored = node.inputs[:2]
    if x is None or stored is None or not is_weight(stored, axes=2) or not _is_plain(node):
        return False  # Case 4
    is_turned = bool(node.attributes.get_int("transB", 0))
    weight = stored if is_turned else derive(graph, [stored], transposed=True)
    last = node
    if node.op_type == "Gemm":
        flat, back = producer(x, "Reshape"), only_user(node.outputs[0], "Reshape")
        if flat is not None and back is not None and _is_there_and_back(flat, back):
            # Case 3
            x, last = flat.inputs[0], back
    product = ir.Node(
        "com.microsoft", "FusedMatMul", [x, weight], [ir.AttrInt64("transB", 1)], num_outputs=1
    )
    graph.insert_before(last, product)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        before, after = product.outputs[0], last.outputs[0]
        before.shape, before.type = after.shape, after.type
        product = ir.Node("", "Add", [product.outputs[0], bias], num_outputs=1)
        graph.insert_before(last, product)
    replace_value(last.outputs[0], product.outputs[0])
    for removed in dict.fromkeys((last, node)):
        graph.remove(removed, safe=True)
    return True


def _is_plain(node: ir.Node) -> bool:
    """Neither scaled nor of a transposed x."""
    scales = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    return all(scale == 1 for scale in scales) and not node.attributes.get_int("transA", 0)


def _is_there_and_back(flat: ir.Node, back: ir.Node) -> bool:
    """Whether all but the last axis are flattened, and then as they were."""
    x, result = flat.inputs[0], back.outputs[0]
    if x is None or x.shape is None or result.shape is None or flat.outputs[0].shape is None:
        return False
    return (
        len(flat.outputs[0].shape) == 2
        and flat.outputs[0].shape[-1] == x.shape[-1]
        and result.shape[:-1] == x.shape[:-1]
        and None not in [getattr(axis, "value", axis) for axis in x.shape]
    )
