"""What an ONNX graph holds, as far as a runtime looks at it: its values, nodes and weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "AttentionNode",
    "ExternalTensor",
    "GraphSummary",
    "LocalFunction",
    "Reader",
    "Value",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An input or an output: `shape` holds sizes and names of sizes, `?` for an unnamed one."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNode:
    """One attention node with its integer and float attributes.

    Attributes:
        operator: `domain::op_type`.
    """

    name: str
    operator: str
    attributes: Mapping[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTensor:
    """A tensor whose bytes are in a weights file.

    Attributes:
        offset: of its first byte in the file.
        length: in bytes.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    file: str
    offset: int
    length: int


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


class LocalFunction(NamedTuple):
    """A model-local function, known by the hash of its bytes as they stand in the graph."""

    domain: str
    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """What a graph holds.

    Attributes:
        opsets: domain to version; the standard domain is `ai.onnx`.
        operators: `domain::op_type` to the number of its nodes.
        attention: in the order of the graph.
        external: in the order of the graph.
        readers: nodes that take external tensors, in the order of the graph.
        foreign: what `ortolan.runtime.graph.vocabulary` does not list, each form once.
    """

    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: Mapping[str, int]
    attention: tuple[AttentionNode, ...]
    external: tuple[ExternalTensor, ...]
    readers: tuple[Reader, ...]
    functions: tuple[LocalFunction, ...]
    foreign: tuple[str, ...] = ()

    @property
    def places(self) -> set[tuple[str, int, int]]:
        """File, offset and length of everything that it reads, each place once."""
        return {(tensor.file, tensor.offset, tensor.length) for tensor in self.external}
