"""Summary of an ONNX graph: the values, nodes and weights that the runtime looks at."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An input or output; its shape has sizes and names of sizes, `?` for an unnamed one."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNode:
    """An attention node, with its integer and float attributes."""

    name: str
    operator: str
    attributes: Mapping[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTensor:
    """A tensor whose bytes are in a weights file; `offset` and `length` are in bytes."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """Summary of a graph; lists are in graph order. Operators are named `domain::op_type`.

    Attributes:
        reads: operators and the external tensors that they read, as pairs of names.
        functions: model-local functions, as `domain::name`.
        foreign: distinct forms of nodes outside `ortolan.runtime.graph.vocabulary`.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: Mapping[str, int]
    attention: tuple[AttentionNode, ...]
    external: tuple[ExternalTensor, ...]
    reads: frozenset[tuple[str, str]]
    functions: tuple[str, ...]
    foreign: tuple[str, ...] = ()

    @property
    def places(self) -> set[tuple[str, int, int]]:
        """File, offset and length of all external tensors, without duplicates."""
        return {(tensor.file, tensor.offset, tensor.length) for tensor in self.external}
