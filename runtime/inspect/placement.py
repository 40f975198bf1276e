"""Where onnxruntime would compute each node of a bundle, from tables alone.

No device is used: what it says of CUDA has been read, not run.

Shape arithmetic is set apart: nodes that compute with whole numbers or truth values and read no
weights. onnxruntime places much of it on the CPU on purpose, since sizes are needed there.

A node without a kernel on the device goes to the CPU, and what it takes and gives is copied
there and back in every step; without a kernel on either, onnxruntime refuses the graph, or, for
some operators, puts others in their place. float16 on the CPU is the exception: nodes without a
kernel for it compute in float32, between conversions, and so do single nodes that have one, with
such nodes all around them. For bfloat16 there is no such way.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import DeviceError
from ortolan.runtime.graph.element_types import UNKNOWN, typed_nodes
from ortolan.runtime.graph.schema import parse_function, parse_model, text
from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT, KERNELS, TYPES, Kernels

__all__ = ["Misplaced", "NodeKind", "Placement", "node_kinds", "place", "placement"]

Fallback = Literal["body", "cpu", "float32", "none", "unknown"]

_COUNTING = frozenset({"bool", "int32", "int64"})

_NEVER_RUN = {"ai.onnx::CastLike": "ai.onnx::Cast"}
"""Operators that stand for another one at run time."""


class NodeKind(NamedTuple):
    """What nodes have in common that a device decides by.

    Attributes:
        operator: `domain::op_type`.
        dtype: of the decisive input.
        takes_weights: whether an input is a weight in a file.
    """

    operator: str
    dtype: str
    takes_weights: bool


class Misplaced(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind that the device has no kernel for.

    Attributes:
        graph: its role in the manifest.
        operator: `domain::op_type`.
        dtype: type of the elements that it computes with.
        fallback: `cpu`; `body`, which the graph carries, in its place; `float32`, between
            conversions; `none`; `unknown` where the table lacks the operator or the type.
    """

    graph: str
    operator: str
    dtype: str
    count: int
    fallback: Fallback


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where nodes would be computed.

    Attributes:
        placed: nodes with a kernel on the device, shape arithmetic apart.
        shape_nodes: nodes of shape arithmetic, wherever they are computed.
        misplaced: the others, most frequent first in each graph.
    """

    device: str
    placed: int
    shape_nodes: int
    misplaced: tuple[Misplaced, ...]


def placement(bundle: Bundle, device: str) -> Placement:
    """Place the nodes of every graph of a bundle; raises what `place` and `Bundle.read` raise."""
    graphs = bundle.manifest.graphs.items()
    return place({role: bundle.read(graph.file) for role, graph in graphs}, device)


def place(graphs: Mapping[str, bytes], device: str) -> Placement:
    """Place the nodes of graphs, given as the bytes of ONNX files by role, on `cpu` or `cuda`.

    Raises:
        DeviceError: another device.
        RefusedError: a type of element that bundles do not use.
    """
    if device not in Kernels._fields:
        raise DeviceError(f"device: expected cpu or cuda, got {device!r}.")
    placed = shapes = 0
    misplaced = []
    for role, data in graphs.items():
        model = parse_model(data)
        bodies = frozenset(_name_of(function) for function in model.functions)
        kinds: Counter[tuple[str, str, Fallback]] = Counter()
        for kind, count in node_kinds(model.graph).items():
            if kind.dtype in _COUNTING and not kind.takes_weights:
                shapes += count
            elif (fallback := _fallback(kind, device, bodies)) is None:
                placed += count
            else:
                kinds[kind.operator, kind.dtype, fallback] += count
        misplaced += [
            Misplaced(graph=role, operator=operator, dtype=dtype, count=count, fallback=fallback)
            for (operator, dtype, fallback), count in kinds.most_common()
        ]
    return Placement(device=device, placed=placed, shape_nodes=shapes, misplaced=tuple(misplaced))


def _name_of(data: bytes) -> str:
    function = parse_function(data)
    return f"{text(function.domain)}::{text(function.name)}"


def _fallback(kind: NodeKind, device: str, bodies: frozenset[str]) -> Fallback | None:
    """What becomes of a node; `None` when the device has a kernel."""
    kernels = KERNELS.get(_NEVER_RUN.get(kind.operator, kind.operator))
    if kernels is not None and kind.dtype in getattr(kernels, device):
        return None
    # onnxruntime prefers any kernel of any provider to the body
    if kernels is not None and kind.dtype in kernels.cpu:
        return "cpu"
    if kind.operator in bodies:
        return "body"
    if kernels is None or kind.dtype not in TYPES:
        return "unknown"
    return "float32" if device == "cpu" and kind.dtype == "float16" else "none"


def node_kinds(graph: Any) -> Counter[NodeKind]:
    """Count the nodes of each kind in a `Graph` message; constants are none.

    Raises:
        RefusedError: a type that bundles do not use.
    """
    weights = {tensor.name for tensor in graph.initializer if tensor.data_location}
    kinds: Counter[NodeKind] = Counter()
    for node in typed_nodes(graph):
        if node.operator != "ai.onnx::Constant":
            index = DECISIVE_INPUT.get(node.operator, 0)
            decisive = node.input_types[index] if index < len(node.input_types) else UNKNOWN
            takes_weights = any(name in weights for name in node.message.input)
            kinds[NodeKind(node.operator, decisive, takes_weights)] += 1
    return kinds
