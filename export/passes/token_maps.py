"""What happens to each token's vector between two values of a graph, as a function to call.

Models write rotary positions, and the axes of heads swapped there and back, in many ways. All
compute one of a few things, and the results for chosen vectors tell which.

Shape letters: B batch, S new tokens, W channels of an input vector, N of an output vector.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

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

_NARROW = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
"""Types that maps compute in float32 instead: the CPU has few kernels for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMap:
    """A part of a graph that maps vectors of W channels to vectors of N, each token on its own.

    It is linear, and depends at most on a token's position.

    Attributes:
        start: the input, `(B, S, ...)`.
        axes: axes of the input.
        width: W.
        operators: operators of its nodes.
        session: computes it.
        sizes: the axes whose sizes the session takes, by input name.
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

    def __post_init__(self) -> None:
        self._order = {node: place for place, node in enumerate(self.graph)}
        self._positional = _positional(self.graph)

    def find(self, end: ir.Value) -> TokenMap | None:
        """The longest map that ends at a value `(B, S, N)`, if there is one."""
        start, nodes = self._walk(end)
        axes, width = axes_of(start), _width(start)
        if axes is None or width is None or _width(end) is None:
            return None
        before = self._before(nodes)
        shapes = {node.outputs[0]: _sizes(node) for node in before if node.op_type == "Shape"}
        sizes = {name_of(value): axes for value, axes in shapes.items() if axes is not None}
        if len(sizes) < len(shapes):
            return None
        computed = [node for node in [*before, *nodes] if node.op_type != "Shape"]
        return TokenMap(
            start=start,
            axes=axes,
            width=width,
            operators=frozenset(node.op_type for node in nodes),
            session=_session(self.graph, start, end, computed, list(sizes)),
            sizes=sizes,
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

    def _before(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """The nodes that compute from positions what these nodes need, in order."""
        pending: list[ir.Value | None] = [
            value for node in nodes for value in node.inputs if value in self._positional
        ]
        before: set[ir.Node] = set()
        while pending:
            value = pending.pop()
            node = None if value is None else value.producer()
            if node is not None and node not in before:
                before.add(node)
                pending += () if node.op_type == "Shape" else node.inputs
        return sorted(before, key=self._order.__getitem__)


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


def _session(
    graph: ir.Graph, start: ir.Value, end: ir.Value, nodes: Iterable[ir.Node], sizes: list[str]
) -> ort.InferenceSession:
    """An onnxruntime session that computes `end` from `start`, in float32."""
    out, protos = name_of(end), [_widened(ir.serde.serialize_node(node)) for node in nodes]
    if start is end:
        out = "same"
        protos = [helper.make_node("Identity", [name_of(start)], [out])]
    computed = {name for proto in protos for name in proto.output}
    read = {name for proto in protos for name in proto.input if name} - computed
    inputs = {
        name: dtype
        for name, dtype in [
            (name_of(start), TensorProto.FLOAT),
            (_LENGTHS, TensorProto.INT32),
            (_TOTAL, TensorProto.INT32),
            *((name, TensorProto.INT64) for name in sizes),
        ]
        if name in read
    }
    tensors = [_constant(graph.initializers[name]) for name in sorted(read - inputs.keys())]
    proto = helper.make_model(
        helper.make_graph(
            protos,
            "map",
            [helper.make_tensor_value_info(name, dtype, None) for name, dtype in inputs.items()],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
            tensors,
        ),
        opset_imports=[helper.make_opsetid("", graph.opset_imports[""])],
        ir_version=10,
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _constant(value: ir.Value) -> TensorProto:
    if value.const_value is None:
        raise ValueError(f"{value.name}: expected a table with data, got none")
    proto = _wide(ir.serde.serialize_tensor(value.const_value))
    proto.name = name_of(value)
    return proto


def _widened(node: onnx.NodeProto) -> onnx.NodeProto:
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t"):
            attribute.t.CopyFrom(_wide(attribute.t))
    return node


def _wide(tensor: TensorProto) -> TensorProto:
    if tensor.data_type not in _NARROW:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
