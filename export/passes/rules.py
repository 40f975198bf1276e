"""Rewrites of single operators, each a rule from a node to what replaces it.

Specs: ai.onnx Cast, CastLike, Add, Where (16), Gemm (13), LayerNormalization (17), RMSNormalization
(23); com.microsoft FusedMatMul and CausalConvWithState, version 1 (onnxruntime,
docs/ContribOperators.md).

Shape letters: K inputs of a product, N outputs.
"""

import numpy as np
import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.passes.nodes import CONTRIB, Insert, replace_node, rule
from ortolan.export.values import (
    is_weight,
    number,
    only_user,
    producer,
    replace_value,
    static_shape,
)

LARGEST = 8
"""Elements of a constant that is cast."""

_END = np.iinfo(np.int64).max


@rule("Cast", "CastLike")
def fold_casts(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace Cast(constant) and CastLike(constant, x) with a constant.

    The exporter casts every number in a sum to the type of the other operand. onnxruntime folds
    few of these casts, and the fixed cost of a node dominates the step of a small model.

    Case 1: a constant of at most 8 elements, to a known type: rewrite.
    Case 2: otherwise: keep.
    """
    constant = producer(node.inputs[0], "Constant")
    # Reading the tensor also names it, which is part of the bundle's bytes: even if it stays.
    tensor = None if constant is None else ir.convenience.get_const_tensor(constant.outputs[0])
    dtype = _target(node)
    if tensor is None or tensor.size > LARGEST or dtype is None:
        return False  # Case 2
    cast = ir.tensor(tensor.numpy().astype(dtype.numpy()), dtype=dtype)
    replace_node(graph, node, Insert(graph, node).Constant(value=cast))
    return True


def _target(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes.get_int("to"))
    like = node.inputs[1]
    return None if like is None else like.dtype


@rule("Add")
def fold_offsets(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace Add(w, number) with an initializer, as for Gemma's norms: x * (1 + w).

    Case 1: w is an initializer without data: rewrite.
    Case 2: w is the cast of one: rewrite, and cast the sum.
    Case 3: otherwise: keep.
    """
    offsets = [offset for value in node.inputs if (offset := number(value)) is not None]
    others = [value for value in node.inputs if value is not None and number(value) is None]
    (out,) = node.outputs
    if len(offsets) != 1 or len(others) != 1 or out.is_graph_output():
        return False  # Case 3
    cast = producer(others[0], "Cast")
    weight = others[0] if cast is None else cast.inputs[0]
    if weight is None or not is_weight(weight):
        return False  # Case 3
    total = derive(graph, [weight], offset=offsets[0])
    if cast is None:
        out.replace_all_uses_with(total)
        graph.remove(node, safe=True)
    else:
        # Case 2
        replace_node(graph, node, Insert(graph, node).Cast(total, **cast.attributes))
    return True


@rule("Where")
def select_booleans(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace Where of booleans.

    Case 1: Where(c, a, b) with booleans a and b: Or(And(c, a), And(Not(c), b)).
    Case 2: any other type: keep.
    """
    condition, one, other = node.inputs
    if node.outputs[0].dtype != ir.DataType.BOOL:
        return False
    new = Insert(graph, node)
    chosen = new.And(condition, one)
    negated = new.Not(condition)
    rest = new.And(negated, other)
    either = new.Or(chosen, rest)
    for value in (chosen, negated, rest, either):
        value.dtype = ir.DataType.BOOL
    either.shape = node.outputs[0].shape
    replace_node(graph, node, either)
    return True


@rule("MatMul", writes_contrib=True)
def fuse_linear(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace MatMul(x, Transpose(w)) with FusedMatMul(x, w, transB=1).

    A checkpoint stores `(out, in)`. Read as stored, a weight is copied row by row at export, an
    embedding and a tied head share one table, and onnxruntime does not fold a transposed copy into
    memory. Both forms are equally fast: the weight is packed at load.

    Case 1: w is an initializer whose two axes are swapped: rewrite.
    Case 2: otherwise: keep.
    """
    transpose = producer(node.inputs[1], "Transpose")
    weight = None if transpose is None else transpose.inputs[0]
    if transpose is None or weight is None or not weight.is_initializer():
        return False  # Case 2
    if tuple(transpose.attributes.get_ints("perm", ())) != (1, 0):
        return False  # Case 2
    fused = Insert(graph, node).FusedMatMul(node.inputs[0], weight, transB=1, domain=CONTRIB)
    replace_node(graph, node, fused)
    if not transpose.outputs[0].uses():
        graph.remove(transpose, safe=True)
    return True


@rule("MatMul", "Gemm", writes_contrib=True)
def transpose_weights(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace MatMul(x, w) and Gemm(x, w, b) with FusedMatMul(x, w', transB=1) and Add of b.

    Every weight of a product then has a row for each output. Quantization groups values along
    rows, and products are packed by joining rows.

    Case 1: MatMul with an initializer `(K, N)`: rewrite.
    Case 2: Gemm with an initializer `(K, N)`, or `(N, K)` and transB: rewrite.
    Case 3: case 2 between a Reshape of `(..., K)` to `(-1, K)` and one back to `(..., N)`: rewrite
        without the two.
    Case 4: otherwise: keep.
    """
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
    out, new = last.outputs[0], Insert(graph, last)
    product = new.FusedMatMul(x, weight, transB=1, domain=CONTRIB)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        product.shape, product.type = out.shape, out.type
        product = new.Add(product, bias)
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


@rule("LayerNormalization", "RMSNormalization")
def norm_before_transpose(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace norm(Transpose(x)) with Transpose(norm(x)).

    The transpositions before and after attention then meet, and only the rotation by positions
    is left between them.

    Case 1: a norm over the last axis, which stays in its place: rewrite.
    Case 2: otherwise: keep.
    """
    transpose = producer(node.inputs[0], "Transpose")
    axes = () if transpose is None else transpose.attributes.get_ints("perm", ())
    last = len(axes) - 1
    if transpose is None or not axes or axes[-1] != last:
        return False  # Case 2
    if node.attributes.get_int("axis", -1) not in (-1, last) or len(node.outputs) > 1:
        return False  # Case 2
    x, normed = transpose.inputs[0], node.outputs[0]
    moved = ir.node("Transpose", [normed], {"perm": axes})
    moved.outputs[0].shape, moved.outputs[0].type = normed.shape, normed.type
    normed.replace_all_uses_with(moved.outputs[0], replace_graph_outputs=True)
    # That gave the new node its own result to read.
    moved.replace_input_with(0, normed)
    graph.insert_after(node, moved)
    node.replace_input_with(0, x)
    normed.shape = None if x is None else x.shape
    return True


@rule("MoE")
def route_by_logits(graph: ir.Graph, node: ir.Node) -> bool:
    """Let MoE take the softmax of the router's own logits.

        logits -> Softmax -> TopK -> weights -> Clip -> Log -> ScatterElements -> MoE
        logits -----------------------------------------------------------------> MoE

    The node takes the softmax of each token's highest logits, and its output is multiplied by the
    sum of the weights.

    Case 1: weights are the highest values of a softmax: rewrite.
    Case 2: they are divided by their sum, or the softmax is of the highest logits alone: rewrite.
        Their sum is 1.
    Case 3: otherwise, such as sigmoids with a bias: keep.
    """
    scatter = producer(node.inputs[1], "ScatterElements")
    log = None if scatter is None else producer(scatter.inputs[2], "Log")
    clip = None if log is None else producer(log.inputs[0], "Clip")
    if scatter is None or clip is None:
        return False  # Case 3
    weights = clip.inputs[0]
    softmax, divided = producer(weights, "Softmax"), producer(weights, "Div")
    values = weights if divided is None else divided.inputs[0]
    if softmax is not None:
        values = softmax.inputs[0]
    top = producer(values, "TopK")
    if weights is None or top is None or scatter.inputs[1] is not top.outputs[1]:
        return False  # Case 3
    logits = top.inputs[0]
    if softmax is None:
        softmax = producer(logits, "Softmax")
        if softmax is None:
            return False  # Case 3
        logits = softmax.inputs[0]
    node.replace_input_with(1, logits)
    if divided is None and softmax.inputs[0] is logits:
        return True  # Case 1
    for total in [use.node for use in weights.uses() if use.node.op_type == "ReduceSum"]:
        for product in [use.node for use in total.outputs[0].uses() if use.node.op_type == "Mul"]:
            (out,) = (value for value in product.inputs if value is not total.outputs[0])
            if out is not None:
                replace_value(product.outputs[0], out)
    return True


@rule("FusedMatMul")
def plain_products(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace FusedMatMul(x, w, transB=1) with MatMul(x, w').

    w' is w stored `(in, out)`. A head that is tied to the embedding gets a table of its own, since
    the embedding reads rows of the other one.
    """
    x, weight = node.inputs
    if x is None or weight is None or not is_weight(weight, axes=2):
        return False
    columns = derive(graph, [weight], transposed=True)
    replace_node(graph, node, Insert(graph, node).MatMul(x, columns))
    return True


@rule("CausalConvWithState")
def plain_convolutions(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace every CausalConvWithState with Concat, Conv and Slice.

    state, x -> Concat -> Conv -> y
                Concat -> Slice -> new state
    """
    x, weight, bias, state = node.inputs
    if x is None or weight is None or state is None:
        raise TypeError(f"{node.name}: expected a convolution with its state")
    channels, _, taps = static_shape(weight)
    new = Insert(graph, node)
    joined = new.Concat(state, x, axis=2)
    inputs = [joined, weight] if bias is None else [joined, weight, bias]
    replace_value(node.outputs[0], new.Conv(*inputs, group=channels))
    replace_value(node.outputs[1], new.Slice(joined, [1 - taps], [_END], [2]))
    graph.remove(node, safe=True)
    return True
