"""What happens to each token's vector between two values of a graph, as a function to call.

Models write rotary positions, and the axes of heads swapped there and back, in many ways. All
compute one of a few things, and the results for chosen vectors tell which.

Shape letters: B batch, S new tokens, W channels of an input vector, N of an output vector.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ortolan.export.passes.nodes import Axes, axes_of
from ortolan.export.values import name_of
from ortolan.runtime.bundle.interface import STEP_INPUTS

Array = NDArray[np.float32]

_LENGTHS, _TOTAL = STEP_INPUTS[1:3]

_MOVES = {
    *("Cast", "Expand", "Gather", "Identity", "Neg", "Reshape"),
    *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
}
"""Operators that move channels of their first input, or change their sign."""

_SUMS = {"Add", "Concat", "Sub"}

_NARROW = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Types that maps compute in float32 instead: the CPU has few kernels for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMap:
    """A part of a graph that maps vectors of W channels to vectors of N, each token on its own.

    It is linear, and depends at most on a token's position. Its input is `start`, `(B, S, ...)`;
    the session also takes the sizes of axes.
    """

    start: ir.Value
    axes: Axes
    width: int
    operators: frozenset[str]
    session: ort.InferenceSession
    sizes: dict[str, Axes]

    @property
    def is_single(self) -> bool:
        """Whether it takes one token of each row."""
        return self.axes[1] == 1

    def __call__(self, x: Array, lengths: Sequence[int]) -> Array:
        """Map vectors `(B, S, W)`, the last tokens of rows of these lengths, to `(B, S, N)`."""
        sizes_by_name = {"batch": x.shape[0], "sequence": x.shape[1]}

        def sizes(axes: Axes) -> list[int]:
            return [axis if isinstance(axis, int) else sizes_by_name[axis] for axis in axes]

        feeds: dict[str, NDArray[np.generic]] = {
            name: np.array(sizes(axes), np.int64) for name, axes in self.sizes.items()
        }
        feeds[name_of(self.start)] = np.ascontiguousarray(x).reshape(sizes(self.axes))
        feeds[_LENGTHS] = np.array(lengths, np.int32) - 1
        feeds[_TOTAL] = np.array(max(lengths), np.int32)
        names = {value.name for value in self.session.get_inputs()}
        feeds = {name: feed for name, feed in feeds.items() if name in names}
        out: Array = self.session.run(None, feeds)[0]
        return out.reshape(*x.shape[:2], -1)


@dataclass(slots=True)
class TokenMaps:
    """Finds the maps of a graph, which must not change meanwhile."""

    graph: ir.Graph
    _order: dict[ir.Node, int] = field(init=False)
    _positional: set[ir.Value] = field(init=False)
    _inputs: list[ir.Value] = field(init=False)
    _sizes: dict[ir.Value, Axes] = field(init=False)

    def __post_init__(self) -> None:
        self._order = {node: place for place, node in enumerate(self.graph)}
        self._positional = _positional(self.graph)
        self._inputs = [value for value in self.graph.inputs if value.name in (_LENGTHS, _TOTAL)]
        shapes = {node.outputs[0]: _sizes(node) for node in self.graph if node.op_type == "Shape"}
        self._sizes = {value: axes for value, axes in shapes.items() if axes is not None}

    def find(self, end: ir.Value) -> TokenMap | None:
        """The longest map that ends at a value `(B, S, N)`, if there is one."""
        start, nodes = self._walk(end)
        axes, width = axes_of(start), _width(start)
        if axes is None or width is None or _width(end) is None:
            return None
        part = _between(self.graph, [start, *self._inputs, *self._sizes], end)
        if part is None:
            return None
        return TokenMap(
            start=start,
            axes=axes,
            width=width,
            operators=frozenset(node.op_type for node in nodes),
            session=_session(part),
            sizes={name_of(value): axes for value, axes in self._sizes.items()},
        )

    def _walk(self, end: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
        """The earliest value that alone determines `end`, and the nodes between, in order.

        Walks back from `end`, always from the last node in the order of the graph. Wherever one
        value is pending, a map could start.
        """
        nodes: list[ir.Node] = []
        pending = {end}
        start, length = end, 0
        while True:
            if len(pending) == 1:
                (start,), length = pending, len(nodes)
            producers = [value.producer() for value in pending]
            last = max(
                (node for node in producers if node is not None),
                key=self._order.__getitem__,
                default=None,
            )
            carried = None if last is None else _carried(last, self._positional)
            if last is None or carried is None:
                return start, nodes[:length][::-1]
            nodes.append(last)
            pending = (pending - set(last.outputs)) | carried


def _positional(graph: ir.Graph) -> set[ir.Value]:
    """Values that follow from sizes, lengths and constants alone."""
    positional = {value for value in graph.inputs if value.name in (_LENGTHS, _TOTAL)}
    positional |= {v for v in graph.initializers.values() if v.const_value is not None}
    for node in graph:
        inputs = {value for value in node.inputs if value is not None}
        has_graph = any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        )
        if (node.op_type == "Shape" or inputs <= positional) and not has_graph:
            positional.update(node.outputs)
    return positional


def _carried(node: ir.Node, positional: set[ir.Value]) -> set[ir.Value] | None:
    """The inputs of a node that hold vectors; None if the node is not linear in them."""
    inputs = [value for value in node.inputs if value is not None]
    carried = [value for value in inputs if value not in positional]
    if node.op_type in _SUMS:
        is_linear = carried == inputs
    elif node.op_type == "Mul":
        is_linear = len(carried) == 1
    else:
        is_linear = carried == inputs[:1] and node.op_type in {"Div", *_MOVES}
    return set(carried) if is_linear else None


def _width(value: ir.Value) -> int | None:
    """Channels of each token of a value `(B, S, ...)`; None for any other value."""
    axes = axes_of(value)
    if axes is None or axes[:2] not in (("batch", "sequence"), ("batch", 1)):
        return None
    channels = [axis for axis in axes[2:] if isinstance(axis, int)]
    return math.prod(channels) if channels and len(channels) == len(axes) - 2 else None


def _sizes(shape: ir.Node) -> Axes | None:
    """The axes that a Shape node reads; None if a map does not know their sizes."""
    axes = axes_of(shape.inputs[0])
    if axes is None:
        return None
    start = shape.attributes.get_int("start", 0)
    sizes = axes[start : shape.attributes.get_int("end", len(axes))]
    return sizes if all(isinstance(a, int) or a in ("batch", "sequence") for a in sizes) else None


def _between(graph: ir.Graph, inputs: Sequence[ir.Value], end: ir.Value) -> ir.Graph | None:
    """The part of a graph that computes `end`, in float32; None if it needs other inputs."""
    try:
        part = ir.convenience.extract(graph, inputs, [end])
    except ValueError:
        return None
    tensors = {value: value.const_value for value in part.initializers.values()}
    for value, tensor in tensors.items():
        if tensor is None:
            return None
        value.const_value = _wide(tensor)
    for node in part:
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, _wide(attribute.as_tensor()))
            elif node.op_type == "Cast" and attribute.value in _NARROW:
                node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)
    values = (output for node in part for output in node.outputs)
    for value in (*part.inputs, *part.initializers.values(), *values):
        if value.dtype in _NARROW:
            value.dtype = ir.DataType.FLOAT
        value.shape = None  # sizes of inputs are those of the call
    return part


def _wide(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype not in _NARROW:
        return tensor
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _session(part: ir.Graph) -> ort.InferenceSession:
    """An onnxruntime session that computes a part of a graph."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    proto = ir.to_proto(ir.Model(part, ir_version=10))
    return ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
