"""Tokens whose logits are wanted are picked before what is computed token by token.

Spec: ai.onnx GatherND, version 13.
"""

import onnx_ir as ir

from ortolan.export.values import replace_value

_BY_TOKEN = {
    *("Add", "Div", "Mul", "Pow", "Sub"),
    *("Cast", "Clip", "Erf", "Gelu", "Identity", "Neg", "Relu", "Sigmoid", "Softplus", "Tanh"),
    *("FusedMatMul", "LayerNormalization", "RMSNormalization"),
}
"""Operators of which a token's result depends on that token alone: norms over the last axis."""


class PickEarly(ir.passes.InPlacePass):
    """GatherND(f(x), tokens) becomes f(GatherND(x, tokens)).

    What follows the attention of the last layer is then computed for the tokens whose logits are
    wanted, which of a prompt is one.

    Case 1: f computes each token by itself, and all its readers pick the same tokens: rewritten,
        for each input that has the axis of tokens.
    Case 2: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        graph, modified = model.graph, False
        pending = [node for node in graph if _is_pick(node)]
        while pending:
            picks = _alike(graph, pending.pop())
            made = _rewrite(graph, picks)
            if made is not None:
                pending = [node for node in pending if node not in picks] + made
                modified = True
        return ir.passes.PassResult(model, modified)


def _is_pick(node: ir.Node) -> bool:
    return node.op_type == "GatherND" and node.attributes.get_int("batch_dims", 0) == 1


def _alike(graph: ir.Graph, pick: ir.Node) -> list[ir.Node]:
    """The picks of the same tokens of the same value, in order."""
    value, tokens = pick.inputs
    users = set() if value is None else {use.node for use in value.uses()}
    return [n for n in graph if n in users and _is_pick(n) and n.inputs[1] is tokens]


def _rewrite(graph: ir.Graph, picks: list[ir.Node]) -> list[ir.Node] | None:
    """The picks that take the place of some of one value; None in case 2."""
    value, tokens = picks[0].inputs
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type not in _BY_TOKEN or len(node.outputs) > 1:
        return None  # Case 2
    has_others = {use.node for use in value.uses()} != set(picks) or value.is_graph_output()
    if has_others or node.attributes.get_int("axis", -1) != -1:
        return None  # Case 2
    axes = [_has_tokens(given, value) for given in node.inputs]
    if None in axes or not any(axes):
        return None  # Case 2
    picked = picks[0].outputs[0]
    made = []
    for place, given in enumerate(node.inputs):
        if axes[place] and given is not None:
            pick = ir.Node("", "GatherND", [given, tokens], [ir.AttrInt64("batch_dims", 1)])
            out = pick.outputs[0]
            out.type, out.shape = given.type, _shape(picked, given)
            graph.insert_before(picks[0], pick)
            node.replace_input_with(place, out)
            made.append(pick)
    graph.remove(node)
    graph.insert_before(picks[0], node)
    # An output of the graph keeps its name, which the last one gives.
    for pick in sorted(picks, key=lambda pick: pick.outputs[0].is_graph_output()):
        replace_value(pick.outputs[0], value)
        graph.remove(pick, safe=True)
    return made


def _has_tokens(given: ir.Value | None, result: ir.Value) -> bool | None:
    """Whether an input of a node has the axis of tokens that its result has; None if unknown."""
    if given is None:
        return False
    if given.shape is None or result.shape is None:
        return None
    if len(given.shape) == len(result.shape) > 2 and given.shape[:2] == result.shape[:2]:
        return True
    # What is broadcast along the tokens has fewer axes, or none that varies.
    is_fixed = all(isinstance(axis, int) for axis in given.shape)
    return False if is_fixed and len(given.shape) <= 2 else None


def _shape(picked: ir.Value, given: ir.Value) -> ir.Shape | None:
    if picked.shape is None or given.shape is None:
        return None
    return ir.Shape([*picked.shape[:2], *given.shape[2:]])
