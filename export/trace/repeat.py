"""The graph of a whole model from that of one block of each kind.

What belongs to a block is what depends on the stream between its marks, or on a weight or a state
with its number. It is copied for every layer that the block stands for; what depends on neither,
such as a mask or a size, is there once for all.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import onnx_ir as ir

from ortolan.export.trace.shorten import ENTER, LEAVE, MARKS, Blocks
from ortolan.export.values import name_of, replace_value

_NUMBERED = re.compile(r"(?P<head>.+?)\.(?P<number>\d+)\.(?P<tail>.+)")


class UnlikeBlocksError(Exception):
    """Blocks hang together by more than the stream: the model has to be traced whole."""


class _Owner(NamedTuple):
    """A block of a trace: the prefix of its stack, and its number."""

    stack: str
    number: int


@dataclass(slots=True)
class _Body:
    """What belongs to a block.

    Attributes:
        nodes: in order, with the marks.
        given: its weights and states.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    given: list[ir.Value] = field(default_factory=list)


def repeat(
    traced: ir.Model, blocks: Blocks, *, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Turn the marked graph of a short model into that of the whole one.

    Args:
        traced: rewritten in place.
        blocks: the layers that each block stands for.
        inputs: names of those of the whole model, in order.
        outputs: likewise.

    Raises:
        UnlikeBlocksError: a block reads or gives more than the stream and what bears its number.
    """
    graph = traced.graph
    bodies = _bodies(graph, blocks.stacks)
    for prefix, of_layers in blocks.of_layers.items():
        found = [bodies[_Owner(prefix, number)] for number in sorted(set(of_layers))]
        if any(body.nodes for body in found):
            _repeat_stack(graph, found, of_layers)
    _remove_marks(graph)
    traced.opset_imports.pop(MARKS, None)
    for values, names in ((graph.inputs, inputs), (graph.outputs, outputs)):
        by_name = {name_of(value): value for value in values}
        if by_name.keys() != set(names):
            raise UnlikeBlocksError(f"expected {names}, got {list(by_name)}")
        values[:] = [by_name[name] for name in names]


def _bodies(graph: ir.Graph, stacks: Mapping[str, str]) -> Mapping[_Owner, _Body]:
    """What belongs to each block.

    Raises:
        UnlikeBlocksError: something belongs to more than one; see `repeat`.
    """
    bodies: dict[_Owner, _Body] = defaultdict(_Body)
    owners: dict[ir.Value, _Owner] = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        owner = _owner(value, stacks)
        if owner is None:
            continue
        if value.const_value is not None:
            raise UnlikeBlocksError(f"{value.name}: expected a weight without data")
        owners[value] = owner
        bodies[owner].given.append(value)
    entered: Counter[str] = Counter()
    for node in graph:
        read = {owners[value] for value in node.inputs if value in owners}
        if _is_mark(node, ENTER):
            stack = node.attributes.get_string("stack") or ""
            read.add(_Owner(stack, entered[stack]))
            entered[stack] += 1
        if len(read) > 1 or any(_has_graph(attribute) for attribute in node.attributes.values()):
            raise UnlikeBlocksError(f"{node.name}: expected nodes of one block, got {read}")
        for owner in read:
            bodies[owner].nodes.append(node)
            if not _is_mark(node, LEAVE):
                owners |= dict.fromkeys(node.outputs, owner)
    for value in graph.outputs:
        if owners.get(value) != _owner(value, stacks):
            raise UnlikeBlocksError(f"{value.name}: expected its block, got {owners.get(value)}")
    return bodies


def _owner(value: ir.Value, stacks: Mapping[str, str]) -> _Owner | None:
    """The block whose number a name bears."""
    found = _NUMBERED.fullmatch(name_of(value))
    if found is None or found["head"] not in stacks:
        return None
    return _Owner(stacks[found["head"]], int(found["number"]))


def _is_mark(node: ir.Node, name: str) -> bool:
    return node.domain == MARKS and node.op_type == name


def _has_graph(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _repeat_stack(graph: ir.Graph, bodies: Sequence[_Body], of_layers: Sequence[int]) -> None:
    """Copy each body for the layers it stands for, and join all layers by the stream."""
    layers = [of_layers.index(number) for number in range(len(bodies))]
    # From the last one: numbers only grow, so that no name is taken.
    for body, layer in reversed(list(zip(bodies, layers, strict=True))):
        given = (out for node in body.nodes for out in node.outputs if out.is_graph_output())
        for value in (*body.given, *given):
            value.name = _numbered(value, layer)
    stream = _stream(bodies)
    last = bodies[0].nodes[-1]
    for layer, number in enumerate(of_layers):
        nodes = bodies[number].nodes
        if layer != layers[number]:
            nodes = _copy(graph, bodies[number], layer)
            graph.insert_after(last, nodes)
        last = nodes[-1]
        for node in nodes:
            if _is_mark(node, ENTER):
                node.replace_input_with(0, stream)
            elif _is_mark(node, LEAVE):
                stream = node.outputs[0]


def _stream(bodies: Sequence[_Body]) -> ir.Value | None:
    """What enters the first block, if the stream goes through the blocks.

    Raises:
        UnlikeBlocksError: it does not go from each to the next and nowhere else.
    """
    marks = [[node for node in body.nodes if node.domain == MARKS] for body in bodies]
    if not any(marks) and all(body.nodes for body in bodies):
        return None
    # Where nothing is made of what leaves the last one, that has no mark. The others are copied to
    # where they end, so that what follows finds their stream.
    ends = [
        len(found) == 2 and found[-1] is body.nodes[-1]
        for found, body in zip(marks, bodies, strict=True)
    ]
    if not marks[-1] or not all(ends[:-1]):
        raise UnlikeBlocksError("expected the stream to go through every block, or through none")
    for (_, leave), (enter, *_) in pairwise(marks):
        users = [use.node for use in leave.outputs[0].uses()]
        if users != [enter] or leave.outputs[0].is_graph_output():
            raise UnlikeBlocksError(f"{leave.name}: expected one user, the next block; got {users}")
    return marks[0][0].inputs[0]


def _copy(graph: ir.Graph, body: _Body, layer: int) -> list[ir.Node]:
    """The nodes of another layer; what it is given, and gives, is in the graph."""
    copies: dict[ir.Value | None, ir.Value | None] = {}

    def copy(value: ir.Value, name: str) -> ir.Value:
        made = ir.Value(name=name, type=value.type, shape=value.shape and value.shape.copy())
        copies[value] = made
        return made

    for value in body.given:
        made = copy(value, _numbered(value, layer))
        if value.is_initializer():
            graph.initializers.add(made)
        else:
            graph.inputs.append(made)
    nodes = []
    for node in body.nodes:
        outputs = []
        for value in node.outputs:
            if value.is_graph_output():
                outputs.append(copy(value, _numbered(value, layer)))
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


def _numbered(value: ir.Value, layer: int) -> str:
    """The name of a value for another layer."""
    found = _NUMBERED.fullmatch(name_of(value))
    if found is None:
        raise UnlikeBlocksError(f"{value.name}: expected a name with a number")
    return f"{found['head']}.{layer}.{found['tail']}"


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
