"""Turns the graph of one block of each kind into the graph of the whole model.

A block owns the nodes that depend on the residual stream between its marks, or on a weight or a
state with its number. They are copied for every layer that the block stands for. Nodes that depend
on neither, such as a mask or a size, are shared by all layers.

    traced    x -> Enter -> body 0 -> Leave -> Enter -> body 1 -> Leave -> logits
                              ^ w.0                       ^ w.1
    layers 0 0 1
    repeated  x -> body 0 -> copy of body 0 -> body 1 -> logits
                     ^ w.0     ^ w.1             ^ w.2
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import onnx_ir as ir

from ortolan.export.trace.shorten import COPY, ENTER, LEAVE, MARKS, Blocks
from ortolan.export.values import name_of, replace_value

Owner = TypeVar("Owner")

_NUMBERED = re.compile(r"(?P<head>.+?)\.(?P<number>\d+)\.(?P<tail>.+)")


class UnlikeBlocksError(Exception):
    """Blocks share more than the residual stream: the model has to be traced whole."""


class _Owner(NamedTuple):
    """A block of a trace: the prefix of its stack, and its number."""

    stack: str
    number: int


@dataclass(slots=True)
class _Body:
    """The part of a graph that a block owns.

    Attributes:
        nodes: in order, with the marks.
        inputs: its weights and states.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    inputs: list[ir.Value] = field(default_factory=list)


def repeat(
    traced: ir.Model, blocks: Blocks, *, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Turn the marked graph of a short model into that of the whole one."""
    graph = traced.graph
    counts: Counter[str] = Counter()

    def entered(node: ir.Node) -> _Owner:
        stack = node.attributes.get_string("stack") or ""
        counts[stack] += 1
        return _Owner(stack, counts[stack] - 1)

    bodies = _bodies(graph, partial(_owner, stacks=blocks.stacks), entered)
    for prefix, of_layers in blocks.of_layers.items():
        stack = [bodies[_Owner(prefix, number)] for number in sorted(set(of_layers))]
        if any(body.nodes for body in stack):
            _repeat_stack(graph, stack, of_layers)
    _finish(traced, inputs, outputs)


def _finish(traced: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Remove all marks, and order inputs and outputs."""
    graph = traced.graph
    _remove_marks(graph)
    traced.opset_imports.pop(MARKS, None)
    for values, names in ((graph.inputs, inputs), (graph.outputs, outputs)):
        by_name = {name_of(value): value for value in values}
        if by_name.keys() != set(names):
            raise UnlikeBlocksError(f"expected {names}, got {list(by_name)}")
        values[:] = [by_name[name] for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of a model in whose graph only some are traced.

    Attributes:
        traced: name of the layer that stands for it.
        names: of its weights, as far as they are equal, and of its states; as those of `traced`.
    """

    traced: str
    names: Sequence[str]


def copy_blocks(
    traced: ir.Model,
    layers: Mapping[str, Layer],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> None:
    """Put copies of the traced blocks where the others belong."""
    graph = traced.graph
    bodies = _bodies(
        graph,
        lambda value: owner_of(name_of(value), layers),
        lambda node: node.attributes.get_string("block") or "",
    )
    for mark in [node for node in graph if _is_mark(node, COPY)]:
        name = mark.attributes.get_string("block") or ""
        body, names = bodies[layers[name].traced], layers[name].names
        old = layers[layers[name].traced].names
        nodes = _copy(graph, body, partial(_renamed, old, names), name.rpartition(".")[2])
        graph.insert_before(mark, nodes)
        (enter,), (leave,) = ([n for n in nodes if _is_mark(n, one)] for one in (ENTER, LEAVE))
        enter.replace_input_with(0, mark.inputs[0])
        mark.outputs[0].replace_all_uses_with(leave.outputs[0], replace_graph_outputs=True)
        graph.remove(mark, safe=True)
    _finish(traced, inputs, outputs)


def owner_of(name: str, layers: Mapping[str, Layer]) -> str | None:
    """The layer to which a weight or a state belongs."""
    for owner, layer in layers.items():
        if any(_is_of(name, own) for own in layer.names):
            return owner
    return None


def _is_of(name: str, own: str) -> bool:
    return name == own or name.startswith(f"{own}.")


def _renamed(old: Sequence[str], names: Sequence[str], name: str) -> str:
    """The name of a weight or a state in another layer."""
    place, own = next((place, own) for place, own in enumerate(old) if _is_of(name, own))
    return names[place] + name.removeprefix(own)


def _bodies(
    graph: ir.Graph,
    owner_of: Callable[[ir.Value], Owner | None],
    entered: Callable[[ir.Node], Owner],
) -> Mapping[Owner, _Body]:
    """Find the part that each block owns, from the owners of values and of marks."""
    bodies: dict[Owner, _Body] = defaultdict(_Body)
    owners: dict[ir.Value, Owner] = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        owner = owner_of(value)
        if owner is None:
            continue
        if value.const_value is not None:
            raise UnlikeBlocksError(f"{value.name}: expected a weight without data")
        owners[value] = owner
        bodies[owner].inputs.append(value)
    for node in graph:
        read = {owners[value] for value in node.inputs if value in owners}
        if _is_mark(node, ENTER):
            # The stream belongs to no block outside of the marks: a block begins with Enter.
            read.add(entered(node))
        if len(read) > 1 or any(_has_graph(attribute) for attribute in node.attributes.values()):
            raise UnlikeBlocksError(f"{node.name}: expected a node of one block, got {read}")
        for owner in read:
            bodies[owner].nodes.append(node)
            if not _is_mark(node, LEAVE):
                owners |= dict.fromkeys(node.outputs, owner)
    for value in graph.outputs:
        if owners.get(value) != owner_of(value):
            raise UnlikeBlocksError(f"{value.name}: expected its block, got {owners.get(value)}")
    return bodies


def _owner(value: ir.Value, stacks: Mapping[str, str]) -> _Owner | None:
    """The block whose number is in a value's name."""
    match = _NUMBERED.fullmatch(name_of(value))
    if match is None or match["head"] not in stacks:
        return None
    return _Owner(stacks[match["head"]], int(match["number"]))


def _is_mark(node: ir.Node, name: str) -> bool:
    return node.domain == MARKS and node.op_type == name


def _has_graph(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _repeat_stack(graph: ir.Graph, bodies: Sequence[_Body], of_layers: Sequence[int]) -> None:
    """Copy each body for the layers that it stands for, and join all layers by the stream."""
    layers = [of_layers.index(number) for number in range(len(bodies))]
    # Renumber from the last body: numbers only grow, so every new name is free.
    for body, layer in reversed(list(zip(bodies, layers, strict=True))):
        outputs = (out for node in body.nodes for out in node.outputs if out.is_graph_output())
        for value in (*body.inputs, *outputs):
            value.name = _numbered(layer, name_of(value))
    stream = _stream(bodies)
    last = bodies[0].nodes[-1]
    for layer, number in enumerate(of_layers):
        nodes = bodies[number].nodes
        if layer != layers[number]:
            nodes = _copy(graph, bodies[number], partial(_numbered, layer), str(layer))
            graph.insert_after(last, nodes)
        last = nodes[-1]
        for node in nodes:
            if _is_mark(node, ENTER):
                node.replace_input_with(0, stream)
            elif _is_mark(node, LEAVE):
                stream = node.outputs[0]


def _stream(bodies: Sequence[_Body]) -> ir.Value | None:
    """The value that enters the first block; None if the blocks have no residual stream."""
    marks = [[node for node in body.nodes if node.domain == MARKS] for body in bodies]
    if not any(marks) and all(body.nodes for body in bodies):
        return None
    # The last block has no Leave if nothing reads its result. Every other one must end with its
    # Leave: copies are inserted after it, where the stream has been computed.
    ends = [
        len(pair) == 2 and pair[-1] is body.nodes[-1]
        for pair, body in zip(marks, bodies, strict=True)
    ]
    if not marks[-1] or not all(ends[:-1]):
        raise UnlikeBlocksError("expected the stream to go through every block, or through none")
    for (_, leave), (enter, *_) in pairwise(marks):
        users = [use.node for use in leave.outputs[0].uses()]
        if users != [enter] or leave.outputs[0].is_graph_output():
            raise UnlikeBlocksError(f"{leave.name}: expected one user, the next block; got {users}")
    return marks[0][0].inputs[0]


def _copy(graph: ir.Graph, body: _Body, renamed: Callable[[str], str], layer: str) -> list[ir.Node]:
    """Copy a body's nodes for another layer; inputs and outputs are added to the graph."""
    copies: dict[ir.Value | None, ir.Value | None] = {}

    def copy(value: ir.Value, name: str) -> ir.Value:
        new = ir.Value(name=name, type=value.type, shape=value.shape and value.shape.copy())
        copies[value] = new
        return new

    for value in body.inputs:
        new = copy(value, renamed(name_of(value)))
        if value.is_initializer():
            graph.initializers.add(new)
        else:
            graph.inputs.append(new)
    nodes = []
    for node in body.nodes:
        outputs = []
        for value in node.outputs:
            if value.is_graph_output():
                outputs.append(copy(value, renamed(name_of(value))))
                graph.outputs.append(outputs[-1])
            else:
                outputs.append(copy(value, f"{value.name}.{layer}"))
        nodes.append(
            ir.Node(
                node.domain,
                node.op_type,
                [copies.get(value, value) for value in node.inputs],
                node.attributes.values(),
                overload=node.overload,
                outputs=outputs,
                version=node.version,
                name=f"{node.name}.{layer}",
            )
        )
    return nodes


def _numbered(layer: int, name: str) -> str:
    """The name of a value in another layer."""
    match = _NUMBERED.fullmatch(name)
    if match is None:
        raise UnlikeBlocksError(f"{name}: expected a name with a number")
    return f"{match['head']}.{layer}.{match['tail']}"


def _remove_marks(graph: ir.Graph) -> None:
    marks = [node for node in graph if node.domain == MARKS]
    for node in marks:
        (stream,), (out,) = node.inputs, node.outputs
        if stream is None:
            raise UnlikeBlocksError(f"{node.name}: expected the stream, got nothing")
        if out.is_graph_output():
            replace_value(out, stream)
        else:
            out.replace_all_uses_with(stream)
    graph.remove(marks, safe=True)
