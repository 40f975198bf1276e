"""Bodies of standard operators for the custom nodes, for tools that lack the kernels.

A model-local function with the domain and name of a node gives the node a meaning anywhere.
onnxruntime prefers its own kernel, so a portable bundle runs there as fast as any. No body calls
another: the runtime refuses functions that do. All nodes of an operator share one body, so it
reads what differs from layer to layer, such as the window, from the attributes of the node.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from ortolan.export.errors import ExportError
from ortolan.export.passes.nodes import CONTRIB, Insert
from ortolan.export.passes.standard_attention import INPUTS, Added, StandardAttention, Tables

_UNBOUNDED = 1 << 62
"""In place of a window that reaches to the start."""


def attach_bodies(model: ir.Model) -> None:
    """Give every custom node of a finished graph its body, in place."""
    # A layer that reads the keys of another has fewer outputs than a body may have.
    by_outputs = sorted(model.graph, key=lambda node: len(node.outputs))
    nodes = {_kind(node): node for node in by_outputs if node.domain == CONTRIB}
    missing = [kind for kind, node in nodes.items() if node.op_type not in _BODIES]
    missing += [kind for kind in nodes if kind.endswith("sinks")]
    if missing:
        raise ExportError(
            f"attention: no standard operators are known for {'; '.join(sorted(missing))}, which a "
            "portable graph needs. Choose --attention fused."
        )
    if len({node.op_type for node in nodes.values()}) < len(nodes):
        raise ExportError(
            f"attention: a portable graph can have one kind of each operator (got "
            f"{'; '.join(sorted(nodes))}). Choose --attention fused, or leave --attention-maps out."
        )
    for _, node in sorted(nodes.items()):
        function = _function(node)
        model.functions[function.identifier()] = function


def _kind(node: ir.Node) -> str:
    """The operator, and what its body depends on."""
    if node.op_type != "GroupQueryAttention":
        return node.op_type
    has = {name for name, value in zip(INPUTS, node.inputs, strict=False) if value is not None}
    kinds = {
        "whole": "past_key" not in has,
        "causal or not": "causal" in node.attributes,
        "biased": "attention_bias" in has,
        "rotary": "cos" in has,
        "interleaved": bool(node.attributes.get_int("rotary_interleaved", 0)),
        "apart": "key" in has,
        "sinks": "head_sink" in has,
    }
    return ", ".join([node.op_type, *(kind for kind, holds in kinds.items() if holds)])


def _function(node: ir.Node) -> ir.Function:
    """A function for nodes of the kind of this one."""
    names = INPUTS if node.op_type == "GroupQueryAttention" else [f"x_{n}" for n in range(8)]
    inputs = [ir.Value(name=name) for name in names[: len(node.inputs)]]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 24}, name=node.op_type)
    given = [
        value if operand is not None else None
        for value, operand in zip(inputs, node.inputs, strict=True)
    ]
    outputs = _BODIES[node.op_type](Insert(graph), node, given)
    graph.outputs.extend(outputs[: len(node.outputs)])
    attributes = [ir.Attr(a.name, a.type, None) for a in node.attributes.values()]
    return ir.Function(CONTRIB, node.op_type, graph=graph, attributes=attributes)


class _Body(StandardAttention):
    """The body of a function: numbers are attributes of its caller."""

    def number(self, attribute: str) -> ir.Value:
        return self.new.Constant(value_int=_of_caller(attribute, "value_int", "INT"))

    def seen(self, positions: ir.Value, slots: ir.Value, last: ir.Value) -> ir.Value:
        if "causal" not in self.node.attributes:
            return self.reached(positions, slots)
        new = self.new
        sees_all = new.Equal(self.number("causal"), 0)
        is_text = new.LessOrEqual(slots, new.Unsqueeze(last, [1, 2, 3]))
        return new.And(new.Or(self.reached(positions, slots), sees_all), is_text)

    def near(self, distance: ir.Value, seen: ir.Value) -> ir.Value:
        size = self.number("local_window_size")  # -1 reaches to the start
        window = self.new.Where(self.new.Greater(size, 0), size, _UNBOUNDED)
        return self.new.And(seen, self.new.Less(distance, window))

    def rotated(self, x_BNSD: ir.Value, count: int | ir.Value, tables: Tables) -> ir.Value:
        new, half = self.new, self.new.Shape(tables.cos, start=1, end=2)
        turned = new.Add(half, half)
        rest = new.Sub(new.Shape(x_BNSD, start=3, end=4), turned)
        turning, unturned = new.several(
            "Split", 2, x_BNSD, new.Concat(turned, rest, axis=0), axis=3
        )
        interleaved = self.node.attributes.get_int("rotary_interleaved", 0)
        out = new.RotaryEmbedding(turning, *tables, interleaved=interleaved)
        return new.Concat(out, unturned, axis=3)

    def attended(self, qkv: Sequence[ir.Value], added: Added) -> ir.Value:
        new, mask = self.new, added.seen
        if added.bias is not None:
            # No score can outweigh -inf.
            never = new.CastLike(float("-inf"), added.bias)
            mask = new.Where(added.seen, added.bias, never)
        attributes = {name: _of_caller(name, name, "FLOAT") for name in ("scale", "softcap")}
        return new.Attention(*qkv, mask, **attributes)


def _of_caller(attribute: str, name: str, kind: str) -> ir.Attr:
    """An attribute `name` in a function that has the value of the calling node's."""
    return ir.RefAttr(name, attribute, ir.AttributeType[kind])


_Emit = Callable[[Insert, ir.Node, Sequence[ir.Value | None]], Sequence[ir.Value]]


def _attention(new: Insert, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    return _Body(new, node).outputs(inputs)


def _product(new: Insert, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, weight = inputs
    return [new.MatMul(x, new.Transpose(weight, perm=[1, 0]))]


def _skip_norm(new: Insert, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """The norm, the mean, the inverse of the deviation, and the sum."""
    x, skip, gain = inputs
    total = new.Add(x, skip)
    epsilon = _of_caller("epsilon", "epsilon", "FLOAT")
    normed = new.RMSNormalization(total, gain, axis=-1, epsilon=epsilon)
    least = new.Constant(value_float=_of_caller("epsilon", "value_float", "FLOAT"))
    variance = new.Add(new.ReduceMean(new.Mul(total, total), [-1]), least)
    inverse = new.Reciprocal(new.Sqrt(variance))
    return [normed, new.ReduceMean(total, [-1]), inverse, total]


_BODIES: Mapping[str, _Emit] = {
    "FusedMatMul": _product,
    "GroupQueryAttention": _attention,
    "SkipSimplifiedLayerNormalization": _skip_norm,
}
