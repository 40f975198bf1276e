"""Mixtures of experts read weights of a few bits.

Spec: com.microsoft.QMoE, version 1 (onnxruntime, docs/ContribOperators.md).
"""

from collections.abc import Mapping

import onnx_ir as ir

from ortolan.export.passes.quantize_weights import ACCURACY_LEVELS, CODES, SCALES, ZEROS
from ortolan.export.quantize.schemes import EXPERT_INPUTS
from ortolan.export.scheme import Scheme
from ortolan.export.values import add_initializer, replace_value, static_shape, type_of

_RAW = 0
"""Codes are laid out as `MatMulNBits` reads them, and each device arranges them for itself."""


class QuantizeExperts(ir.passes.InPlacePass):
    """MoE becomes QMoE, with codes, scales and, if any, zero points of its two weights.

    The kernel of the CPU softmaxes the logits of the chosen experts whatever
    `normalize_routing_weights` says, which is what these nodes ask for.

    Case 1: the weights are in the plan: rewritten.
    Case 2: they are not: the node stays.
    """

    def __init__(self, plan: Mapping[str, Scheme]) -> None:
        self.plan = plan

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph, modified = model.graph, False
        for node in list(graph):
            if node.op_type != "MoE":
                continue
            weights = [node.inputs[place] for place in EXPERT_INPUTS]
            if any(weight is None or weight.name not in self.plan for weight in weights):
                continue  # Case 2
            self._rewrite(graph, node)
            modified = True
        return ir.passes.PassResult(model, modified)

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> None:
        data, logits, first, first_bias, second, second_bias = (*node.inputs, None)[:6]
        if first is None or second is None:
            raise ValueError(f"{node.name}: expected weights of experts, got none")
        scheme = self.plan[str(first.name)]
        codes, scales, zeros = _codes(graph, first, scheme)
        other_codes, other_scales, other_zeros = _codes(graph, second, scheme)
        inputs = [data, logits, codes, scales, first_bias, other_codes, other_scales, second_bias]
        if zeros is not None:
            inputs += [None, None, None, zeros, other_zeros]
        replacement = ir.Node(
            "com.microsoft",
            "QMoE",
            inputs,
            [*node.attributes.values(), *_attributes(scheme, type_of(first))],
            num_outputs=1,
        )
        graph.insert_before(node, replacement)
        replace_value(node.outputs[0], replacement.outputs[0])
        graph.remove(node, safe=True)
        for weight in (first, second):
            if not weight.uses():
                del graph.initializers[str(weight.name)]


def _attributes(scheme: Scheme, dtype: ir.DataType) -> list[ir.Attr]:
    values = {
        "expert_weight_bits": scheme.bits,
        "block_size": scheme.group,
        "weights_prepacked": _RAW,
    }
    if dtype in ACCURACY_LEVELS:
        values["accuracy_level"] = ACCURACY_LEVELS[dtype]
    return [ir.AttrInt64(name, value) for name, value in values.items()]


def _codes(
    graph: ir.Graph, weight: ir.Value, scheme: Scheme
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """What replaces a weight `(N, R, K)`: codes, scales and zero points, these last if any."""
    name, (experts, rows, columns) = weight.name, static_shape(weight)
    groups = scheme.groups(columns)
    byte, bits = ir.DataType.UINT8, scheme.bits
    codes = add_initializer(graph, f"{name}{CODES}", byte, (experts, rows, columns * bits // 8))
    scales = add_initializer(graph, f"{name}{SCALES}", type_of(weight), (experts, rows, groups))
    if scheme.symmetric:
        return codes, scales, None
    packed = (experts, rows, -(-groups * bits // 8))
    return codes, scales, add_initializer(graph, f"{name}{ZEROS}", byte, packed)
