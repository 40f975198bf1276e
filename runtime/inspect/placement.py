"""Predicts from tables where onnxruntime would compute each node of a bundle.

Shape arithmetic, nodes on integers or booleans without weights, is counted separately: onnxruntime
places much of it on the CPU on purpose, since sizes are needed there.

A node without a kernel on the device runs on the CPU, with copies in every step. Without a kernel
there too, onnxruntime rejects the graph or, for some operators, substitutes others. float16 on the
CPU is an exception: nodes without a kernel run in float32 between conversions, as do single nodes
between those. bfloat16 has no such fallback.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import DeviceError
from ortolan.runtime.graph.element_types import UNKNOWN, typed_nodes
from ortolan.runtime.graph.schema import parse_model, text
from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT, KERNELS, TYPES, Kernels

Fallback = Literal["body", "cpu", "float32", "none", "unknown"]

_COUNTING = frozenset({"bool", "int32", "int64"})


class NodeKind(NamedTuple):
    """Operator (`domain::op_type`), type of its decisive input, and whether it reads weights."""

    operator: str
    dtype: str
    takes_weights: bool


class Misplaced(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind without a kernel on the device, in the graph of a role.

    Attributes:
        fallback: `cpu`; `body`, the function body in the graph; `float32`, between conversions;
            `none`; `unknown` if the table lacks the operator or the type.
    """

    graph: str
    operator: str
    dtype: str
    count: int
    fallback: Fallback


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted placement of all nodes.

    Attributes:
        placed: nodes with a kernel on the device, without shape arithmetic.
        shape_nodes: nodes of shape arithmetic, wherever they run.
        misplaced: the rest, most frequent first in each graph.
    """

    device: str
    placed: int
    shape_nodes: int
    misplaced: tuple[Misplaced, ...]


def placement(bundle: Bundle, device: str) -> Placement:
    """Place the nodes of every graph of a bundle. See `place`."""
    graphs = bundle.manifest.graphs.items()
    return place({role: bundle.read(graph.file) for role, graph in graphs}, device)


def place(graphs: Mapping[str, bytes], device: str) -> Placement:
    """Place the nodes of graphs on a device."""
    if device not in Kernels._fields:
        raise DeviceError(f"device must be cpu or cuda (got {device!r}).")
    placed = shapes = 0
    misplaced = []
    for role, data in graphs.items():
        model = parse_model(data)
        bodies = {f"{text(body.domain)}::{text(body.name)}" for body in model.functions}
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


def _fallback(kind: NodeKind, device: str, bodies: set[str]) -> Fallback | None:
    """Return the fallback of a node, or `None` if the device has a kernel."""
    replaced = "ai.onnx::Cast" if kind.operator == "ai.onnx::CastLike" else kind.operator
    kernels = KERNELS.get(replaced)
    if kernels is not None and kind.dtype in getattr(kernels, device):
        return None
    # onnxruntime prefers a kernel of any provider to the body
    if kernels is not None and kind.dtype in kernels.cpu:
        return "cpu"
    if kind.operator in bodies:
        return "body"
    if kernels is None or kind.dtype not in TYPES:
        return "unknown"
    return "float32" if device == "cpu" and kind.dtype == "float16" else "none"


def node_kinds(graph: Any) -> Counter[NodeKind]:
    """Count the nodes of a `Graph` message by kind, without constants."""
    weights = {tensor.name for tensor in graph.initializer if tensor.data_location}
    kinds: Counter[NodeKind] = Counter()
    for node in typed_nodes(graph):
        if node.operator != "ai.onnx::Constant":
            index = DECISIVE_INPUT.get(node.operator, 0)
            decisive = node.input_types[index] if index < len(node.input_types) else UNKNOWN
            takes_weights = any(name in weights for name in node.message.input)
            kinds[NodeKind(node.operator, decisive, takes_weights)] += 1
    return kinds
