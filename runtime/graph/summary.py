"""Summary of an ONNX graph: the values, nodes and weights that the runtime looks at."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An input or output.

    Attributes:
        name: its name.
        dtype: element type.
        shape: sizes and names of sizes; `?` for an unnamed one.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNode:
    """An attention node.

    Attributes:
        name: its name.
        operator: `domain::op_type`.
        attributes: integer and float attributes.
    """

    name: str
    operator: str
    attributes: Mapping[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTensor:
    """A tensor whose bytes are in a weights file.

    Attributes:
        name: its name.
        dtype: element type.
        dims: shape.
        file: name of the file.
        offset: offset in the file, in bytes.
        length: size in bytes.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A node that reads weights.

    Attributes:
        operator: `domain::op_type`.
        weights: names of the weights, in input order.
        attributes: integer attributes.
    """

    operator: str
    weights: tuple[str, ...]
    attributes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """Summary of a graph; lists are in graph order.

    Attributes:
        ir_version: version of the ONNX format.
        opsets: versions by domain; the standard domain is `ai.onnx`.
        inputs: inputs.
        outputs: outputs.
        operators: number of nodes by `domain::op_type`.
        attention: attention nodes.
        external: tensors in weights files.
        readers: nodes that read external tensors.
        functions: model-local functions, as `domain::name`.
        foreign: distinct forms of nodes outside `ortolan.runtime.graph.vocabulary`.
    """

    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: Mapping[str, int]
    attention: tuple[AttentionNode, ...]
    external: tuple[ExternalTensor, ...]
    readers: tuple[Reader, ...]
    functions: tuple[str, ...]
    foreign: tuple[str, ...] = ()

    @property
    def places(self) -> set[tuple[str, int, int]]:
        """File, offset and length of all external tensors, without duplicates."""
        return {(tensor.file, tensor.offset, tensor.length) for tensor in self.external}
