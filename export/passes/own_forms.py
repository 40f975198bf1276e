"""Rewrite nodes of other exporters in the forms that bundles have.

Spec: RMSNormalization of ai.onnx, version 23; FusedMatMul and SkipSimplifiedLayerNormalization of
com.microsoft, version 1.
"""

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortolan.export.values import name_of, static_shape

OPSET = 24
"""Version of ai.onnx in bundles."""

SAME_BYTES = "same_bytes_as"
"""Key in the metadata of an initializer: the name of another with the same bytes."""


class OwnForms(ir.passes.InPlacePass):
    """Rewrite equivalent forms; the vocabulary rejects all others when the bundle is opened.

    Case 1: SimplifiedLayerNormalization becomes RMSNormalization.
    Case 2: SkipSimplifiedLayerNormalization without its sum gets that output.
    Case 3: inputs that are left out at the end of a node are dropped.
    Case 4: Reshape of an initializer becomes an initializer of that shape.
    Case 5: Transpose of a matrix becomes an initializer, which its products read as well.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph, modified = model.graph, False
        for node in list(graph):
            rewrite = _REWRITES.get(node.op_type)
            modified |= rewrite is not None and rewrite(graph, node)
            modified |= _drop_left_out(node)
        graph.opset_imports[""] = max(graph.opset_imports.get("", 0), OPSET)
        return ir.passes.PassResult(model, modified)


def _rename_norm(graph: ir.Graph, node: ir.Node) -> bool:  # Case 1
    node.op_type, node.domain = "RMSNormalization", ""
    return True


def _add_sum(graph: ir.Graph, node: ir.Node) -> bool:  # Case 2
    if len(node.outputs) == 4:
        return False
    node.resize_outputs(4)
    for unused in node.outputs[1:3]:
        unused.name = ""
    node.outputs[3].name = f"{node.outputs[0].name}.sum"
    return True


def _drop_left_out(node: ir.Node) -> bool:  # Case 3
    count = len(node.inputs)
    while count and node.inputs[count - 1] is None:
        count -= 1
    if count == len(node.inputs):
        return False
    node.resize_inputs(count)
    return True


def _fold_reshape(graph: ir.Graph, node: ir.Node) -> bool:  # Case 4
    data, sizes = node.inputs
    if data is None or not data.is_initializer() or data.const_value is None:
        return False
    shape = None if sizes is None else ir.convenience.get_const_tensor(sizes)
    if shape is None:
        return False
    tensor = data.const_value
    sizes_of = [int(size) for size in shape.numpy().ravel()]
    if min(sizes_of, default=1) < 1 or math.prod(sizes_of) != tensor.size:
        return False
    values = tensor.numpy().reshape(sizes_of)
    folded = _replace(graph, node, f"{data.name}.table", values, tensor.dtype)
    folded.metadata_props[SAME_BYTES] = name_of(data)
    return True


def _fold_transpose(graph: ir.Graph, node: ir.Node) -> bool:  # Case 5
    (data,) = node.inputs
    if data is None or not data.is_initializer() or data.const_value is None:
        return False
    readers = [use for use in data.uses() if use.node is not node]
    if len(static_shape(data)) != 2 or node.attributes.get_ints("perm", [1, 0]) != [1, 0]:
        return False
    if any(reader.op_type != "MatMul" or place != 1 for reader, place in readers):
        return False
    tensor = data.const_value
    name = f"{data.name}.transposed"
    folded = _replace(graph, node, name, tensor.numpy().T, tensor.dtype)
    for reader, _ in readers:
        reader.replace_input_with(1, folded)
        reader.op_type, reader.domain = "FusedMatMul", "com.microsoft"
        reader.attributes["transB"] = ir.AttrInt64("transB", 1)
    graph.opset_imports["com.microsoft"] = 1
    return True


def _replace(
    graph: ir.Graph, node: ir.Node, name: str, values: np.ndarray, dtype: ir.DataType
) -> ir.Value:
    """Replace a node by an initializer."""
    tensor = ir.Tensor(values, dtype=dtype, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(values.shape), type=ir.TensorType(dtype), const_value=tensor
    )
    graph.initializers.add(value)
    node.outputs[0].replace_all_uses_with(value)
    graph.remove(node, safe=True)
    return value


_REWRITES: dict[str, Callable[[ir.Graph, ir.Node], bool]] = {
    "SimplifiedLayerNormalization": _rename_norm,
    "SkipSimplifiedLayerNormalization": _add_sum,
    "Reshape": _fold_reshape,
    "Transpose": _fold_transpose,
}
