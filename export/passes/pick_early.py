"""Pick the tokens whose logits are wanted as early as possible.

Spec: ai.onnx GatherND, version 13.
"""

import onnx_ir as ir

from ortolan.export.passes.nodes import GraphPass
from ortolan.export.values import replace_value

_BY_TOKEN = {
    *("Add", "Div", "Mul", "Pow", "Sub"),
    *("Cast", "Clip", "Erf", "Gelu", "Identity", "Neg", "Relu", "Sigmoid", "Softplus", "Tanh"),
    *("FusedMatMul", "LayerNormalization", "RMSNormalization"),
}
"""Operators that compute every token on its own, norms over the last axis included."""


@GraphPass
def pick_early(graph: ir.Graph) -> bool:
    """Replace GatherND(f(x), tokens) with f(GatherND(x, tokens)).

    Everything after the attention of the last layer is then computed only for the tokens whose
    logits are wanted: for a prompt, one.

    Case 1: f computes every token on its own, and all its readers pick the same tokens: rewrite,
        for each input with an axis of tokens.
    Case 2: otherwise: keep.
    """
    modified = False
    pending = [node for node in graph if _is_pick(node)]
    while pending:
        picks = _same_picks(graph, pending.pop())
        earlier = _rewrite(graph, picks)
        if earlier is not None:
            pending = [node for node in pending if node not in picks] + earlier
            modified = True
    return modified


def _is_pick(node: ir.Node) -> bool:
    return node.op_type == "GatherND" and node.attributes.get_int("batch_dims", 0) == 1


def _same_picks(graph: ir.Graph, pick: ir.Node) -> list[ir.Node]:
    """All picks of the same tokens of the same value, in order."""
    value, tokens = pick.inputs
    users = set() if value is None else {use.node for use in value.uses()}
    return [n for n in graph if n in users and _is_pick(n) and n.inputs[1] is tokens]


def _rewrite(graph: ir.Graph, picks: list[ir.Node]) -> list[ir.Node] | None:
    """Move the picks of one value before its node, and return the new ones; None in case 2."""
    value, tokens = picks[0].inputs
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type not in _BY_TOKEN or len(node.outputs) > 1:
        return None  # Case 2
    has_others = {use.node for use in value.uses()} != set(picks) or value.is_graph_output()
    if has_others or node.attributes.get_int("axis", -1) != -1:
        return None  # Case 2
    has_tokens = [_has_tokens(operand, value) for operand in node.inputs]
    if None in has_tokens or not any(has_tokens):
        return None  # Case 2
    picked = picks[0].outputs[0]
    earlier = []
    for place, operand in enumerate(node.inputs):
        if has_tokens[place] and operand is not None:
            pick = ir.node("GatherND", [operand, tokens], {"batch_dims": 1})
            out = pick.outputs[0]
            out.type, out.shape = operand.type, _shape(picked, operand)
            graph.insert_before(picks[0], pick)
            node.replace_input_with(place, out)
            earlier.append(pick)
    graph.remove(node)
    graph.insert_before(picks[0], node)
    # The last name wins, and an output of the graph keeps its name.
    for pick in sorted(picks, key=lambda pick: pick.outputs[0].is_graph_output()):
        replace_value(pick.outputs[0], value)
        graph.remove(pick, safe=True)
    return earlier


def _has_tokens(operand: ir.Value | None, result: ir.Value) -> bool | None:
    """Whether an input of a node has the axis of tokens of its result; None if unknown."""
    if operand is None:
        return False
    if operand.shape is None or result.shape is None:
        return None
    if len(operand.shape) == len(result.shape) > 2 and operand.shape[:2] == result.shape[:2]:
        return True
    # An operand that is broadcast along the tokens has fewer axes, none of which varies.
    is_fixed = all(isinstance(axis, int) for axis in operand.shape)
    return False if is_fixed and len(operand.shape) <= 2 else None


def _shape(picked: ir.Value, operand: ir.Value) -> ir.Shape | None:
    if picked.shape is None or operand.shape is None:
        return None
    return ir.Shape([*picked.shape[:2], *operand.shape[2:]])
