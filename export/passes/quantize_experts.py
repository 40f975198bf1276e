"""Read the weights of experts as low-bit codes.

Spec: com.microsoft.QMoE, version 1 (onnxruntime, docs/ContribOperators.md).
"""

from collections.abc import Mapping
from functools import partial

import onnx_ir as ir

from ortolan.export.passes.nodes import CONTRIB, Insert, replace_node, visit
from ortolan.export.passes.quantize_weights import ACCURACY_LEVELS, CODES, SCALES, ZEROS
from ortolan.export.quantize.schemes import EXPERT_INPUTS
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, static_shape, type_of

_RAW = 0
"""Codes in the layout of `MatMulNBits`, which each device rearranges for itself."""


def quantize_experts(graph: ir.Graph, plan: Mapping[str, Scheme]) -> bool:
    """Replace MoE with QMoE, which reads codes, scales and any zero points of its two weights.

    The CPU kernel applies the softmax to the logits of the chosen experts whatever
    `normalize_routing_weights` says, and these nodes ask for just that.

    Case 1: the plan has the weights: rewrite.
    Case 2: otherwise: keep.
    """
    return visit(graph, ("MoE",), partial(_quantize, plan))


def _quantize(plan: Mapping[str, Scheme], graph: ir.Graph, node: ir.Node) -> bool:
    weights = [node.inputs[place] for place in EXPERT_INPUTS]
    if any(weight is None or weight.name not in plan for weight in weights):
        return False  # Case 2
    data, logits, first, first_bias, second, second_bias = (*node.inputs, None)[:6]
    if first is None or second is None:
        raise ValueError(f"{node.name}: expected weights of experts, got none")
    scheme = plan[str(first.name)]
    codes, scales, zeros = _codes(graph, first, scheme)
    other_codes, other_scales, other_zeros = _codes(graph, second, scheme)
    inputs = [data, logits, codes, scales, first_bias, other_codes, other_scales, second_bias]
    if zeros is not None:
        inputs += [None, None, None, zeros, other_zeros]
    attributes = {**node.attributes, **_attributes(scheme, type_of(first))}
    replace_node(graph, node, Insert(graph, node).QMoE(*inputs, domain=CONTRIB, **attributes))
    for weight in (first, second):
        if not weight.uses():
            del graph.initializers[str(weight.name)]
    return True


def _attributes(scheme: Scheme, dtype: ir.DataType) -> dict[str, int]:
    attributes = {
        "expert_weight_bits": scheme.bits,
        "block_size": scheme.group,
        "weights_prepacked": _RAW,
    }
    if dtype in ACCURACY_LEVELS:
        attributes["accuracy_level"] = ACCURACY_LEVELS[dtype]
    return attributes


def _codes(
    graph: ir.Graph, weight: ir.Value, scheme: Scheme
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Codes, scales and any zero points of a weight `(N, R, K)`."""
    name, (experts, rows, columns) = weight.name, static_shape(weight)
    groups = scheme.groups(columns)
    byte, bits = ir.DataType.UINT8, scheme.bits
    codes = add_initializer(graph, f"{name}{CODES}", byte, (experts, rows, columns * bits // 8))
    scales = add_initializer(graph, f"{name}{SCALES}", type_of(weight), (experts, rows, groups))
    if scheme.symmetric:
        return codes, scales, None
    packed = (experts, rows, -(-groups * bits // 8))
    return codes, scales, add_initializer(graph, f"{name}{ZEROS}", byte, packed)
