"""The nodes of a graph that read its weights.

Knows which node takes which weight, and the numbers that say how. Does not know what an operator
computes, nor how many bytes it reads: that is `ortolan.runtime.inspect.step_reads`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ortolan.runtime.graph.schema import text
from ortolan.runtime.graph.tensors import ExternalTensor

__all__ = ["Reader", "readers"]

_ATTRIBUTE_INT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A node with weights among its inputs.

    Attributes:
        operator: `domain::op_type`.
        weights: names of the weights, in the order of the inputs.
        attributes: those that are integers.
    """

    operator: str
    weights: tuple[str, ...]
    attributes: Mapping[str, int]


def readers(
    nodes: Iterable[tuple[str, Any]], weights: Iterable[ExternalTensor]
) -> tuple[Reader, ...]:
    """List the nodes that read weights, in the order of the graph.

    Args:
        nodes: operator and `Node` message of each.
        weights: the tensors whose bytes are in a weights file.

    Raises:
        RefusedError: an attribute has a name that is not UTF-8.
    """
    names = {weight.name.encode(): weight.name for weight in weights}
    found = []
    for operator, node in nodes:
        taken = tuple(names[name] for name in node.input if name in names)
        if taken:
            numbers = {
                text(attribute.name): attribute.i
                for attribute in node.attribute
                if attribute.type == _ATTRIBUTE_INT
            }
            found.append(Reader(operator=operator, weights=taken, attributes=numbers))
    return tuple(found)
