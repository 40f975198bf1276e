"""Attention as products and a softmax, for devices without a kernel for it.

Scores and weights are float32, whatever the type of the model is.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ortolan.export.passes.nodes import Insert, axes_of, replace_node, visit
from ortolan.export.passes.shapes import share_shapes
from ortolan.export.passes.standard_attention import (
    OUTPUTS,
    Added,
    StandardAttention,
    Tables,
    padded,
)
from ortolan.export.values import replace_value, static_shape, type_of


def _unfit_for_webgpu(node: ir.Node) -> bool:
    """A softcap is ignored, and later tokens are refused (onnxruntime-ep-webgpu 0.4)."""
    return not node.attributes.get_int("causal", 1) or bool(
        node.attributes.get_float("softcap", 0.0)
    )


def _unfit_for_cuda(node: ir.Node) -> bool:
    """It refuses a cache that is not returned; a bias is wrong in short rows, sinks are inexact.

    Source: onnxruntime-gpu 1.31.1, measured in benchmarks/results/cuda.md.
    """
    bias, sinks = padded(node.inputs, 12)[10:]
    return len(node.outputs) < len(OUTPUTS) or bias is not None or sinks is not None


_UNFIT = {"cuda": _unfit_for_cuda, "webgpu": _unfit_for_webgpu}
"""Whether the kernel of GroupQueryAttention refuses or miscalculates a node, by device."""

_WITHOUT: Mapping[str, tuple[str, ...]] = {"cuda": (), "webgpu": ("Attention", "TensorScatter")}
"""Operators that have no kernel, by device."""


def plain_attention(model: ir.Model, device: Literal["cuda", "webgpu"]) -> None:
    """Spell out attention that a GPU has no correct kernel for.

    Case 1: Attention without a cache of its own, on WebGPU: rewrite.
    Case 2: GroupQueryAttention that the device's kernel is unfit for: rewrite.
    Case 3: TensorScatter along the second-last axis, on WebGPU: becomes ScatterND.
    Case 4: otherwise: keep.
    """
    unfit, without = _UNFIT[device], _WITHOUT[device]

    def rewrite(graph: ir.Graph, node: ir.Node) -> bool:
        plain = _Plain(Insert(graph, node), node, without)
        if node.op_type == "Attention":
            return _rewrite_attention(graph, node, plain)
        if node.op_type == "TensorScatter":
            return _rewrite_scatter(graph, node, plain)
        if not unfit(node):
            return False  # Case 4
        output, *presents = plain.outputs(node.inputs)
        for old, present in zip(node.outputs[1:], presents, strict=False):
            replace_value(old, present)
        replace_node(graph, node, output)
        return True

    if visit(model.graph, ("GroupQueryAttention", *without), rewrite):
        # All layers read the same masks and positions.
        for tidy in (share_shapes, common.CommonSubexpressionEliminationPass()):
            tidy(model)
        common.RemoveUnusedNodesPass()(model)


def _rewrite_attention(graph: ir.Graph, node: ir.Node, plain: "_Plain") -> bool:
    q, k, v, mask, past_key, past_value, lengths = padded(node.inputs, 7)
    if q is None or k is None or v is None or past_key is not None or past_value is not None:
        return False  # Case 4
    is_bool = mask is not None and mask.dtype == ir.DataType.BOOL
    counts = [axes[1] for axes in map(axes_of, (q, k)) if axes is not None]
    if len(counts) < 2 or isinstance(counts[0], str) or isinstance(counts[1], str):
        return False  # Case 4
    if is_bool and lengths is not None:
        return False  # Case 4
    seen = mask if is_bool else None
    if lengths is not None:
        new = plain.new
        slots = new.Range(0, new.Squeeze(new.Shape(k, start=2, end=3)), 1)
        ends = new.Unsqueeze(new.Cast(lengths, to=ir.DataType.INT64), [1, 2, 3])
        seen = new.Less(slots, ends)
    added = Added(None if is_bool else mask, seen, None)
    replace_node(graph, node, plain.products((q, k, v), added, counts[0], counts[1]))
    return True


def _rewrite_scatter(graph: ir.Graph, node: ir.Node, plain: "_Plain") -> bool:
    past, x, start = padded(node.inputs, 3)
    axes = axes_of(past)
    if past is None or x is None or start is None or axes is None:
        return False  # Case 4
    if node.attributes.get_int("axis", -2) % len(axes) != len(axes) - 2:
        return False  # Case 4
    replace_node(graph, node, plain.scattered(past, x, start))
    return True


class _Plain(StandardAttention):
    """Attention of one node, whose numbers are known."""

    def __init__(self, new: Insert, node: ir.Node, without: Sequence[str]) -> None:
        super().__init__(new, node)
        self._without = without

    def number(self, attribute: str) -> int:
        return self.node.attributes.get_int(attribute)

    def near(self, distance: ir.Value, seen: ir.Value) -> ir.Value:
        window = self.node.attributes.get_int("local_window_size", -1)
        return self.new.And(seen, self.new.Less(distance, window)) if window > 0 else seen

    def rotated(self, x_BNSD: ir.Value, count: int | ir.Value, tables: Tables) -> ir.Value:
        return self.new.RotaryEmbedding(
            x_BNSD,
            *tables,
            interleaved=self.node.attributes.get_int("rotary_interleaved", 0),
            num_heads=count,
            rotary_embedding_dim=2 * static_shape(tables.cos)[1],
        )

    def attended(self, qkv: Sequence[ir.Value], added: Added) -> ir.Value:
        return self.products(qkv, added, self.number("num_heads"), self.number("kv_num_heads"))

    def products(
        self, qkv: Sequence[ir.Value], added: Added, heads: int, kv_heads: int
    ) -> ir.Value:
        """Softmax attention of queries `(B, H, S, D)`, keys and values `(B, K, T, D | U)`."""
        new, (q, k, v) = self.new, qkv
        dtype, wide = type_of(self.node.outputs[0]), ir.DataType.FLOAT
        if heads > kv_heads:
            order = np.arange(heads) * kv_heads // heads
            k, v = (new.Gather(x, order, axis=1) for x in (k, v))
        # The power of two in the scale comes first, which keeps sums in the range of float16 and
        # rounds nothing.
        rest, exponent = np.frexp(self.node.attributes.get_float("scale"))
        power = np.array(2.0**exponent, dtype.numpy())
        scores = new.MatMul(new.Mul(q, power), new.Transpose(k, perm=[0, 1, 3, 2]))
        scores = new.Mul(_cast(new, scores, dtype, wide), float(rest))
        cap = self.node.attributes.get_float("softcap", 0.0)
        if cap:
            scores = new.Mul(new.Tanh(new.Div(scores, cap)), cap)
        if added.bias is not None:
            scores = new.Add(scores, _cast(new, added.bias, dtype, wide))
        if added.seen is not None:
            scores = new.Where(added.seen, scores, float(np.finfo(np.float32).min))
        if added.sinks is not None:
            column = new.Unsqueeze(_cast(new, added.sinks, dtype, wide), [1, 2])
            rows = new.Concat(new.Shape(scores, start=0, end=3), [1], axis=0)
            scores = new.Concat(scores, new.Expand(column, rows), axis=-1)
        weights = new.Softmax(scores, axis=-1)
        if added.sinks is not None:
            weights = new.Slice(weights, [0], [-1], [-1])
        return new.MatMul(_cast(new, weights, wide, dtype), v)

    def scattered(self, past: ir.Value, x: ir.Value, start_B: ir.Value) -> ir.Value:
        if "TensorScatter" not in self._without:
            return super().scattered(past, x, start_B)
        query = self.node.inputs[0]
        if (
            x.shape is None
            and past.shape is not None
            and query is not None
            and query.shape is not None
        ):
            # Layers share what is computed from sizes that are known.
            x.shape = ir.Shape([*past.shape[:2], query.shape[1], past.shape[3]])
        places = len(axes_of(past) or ()) - 1
        return self.new.ScatterND(past, self._indices(x, start_B, places), x)

    def _indices(self, x: ir.Value, start_B: ir.Value, places: int) -> ir.Value:
        """Where x is written, `(*x.shape[:-1], places)`: its token lies `start_B` further."""
        new, columns = self.new, []
        shape = new.Shape(x, start=0, end=places)
        for axis in range(places):
            steps = new.Range(0, new.Squeeze(new.Shape(x, start=axis, end=axis + 1)), 1)
            index = new.Unsqueeze(steps, [n for n in range(places) if n != axis])
            if axis == places - 1:
                index = new.Add(index, new.Unsqueeze(start_B, list(range(1, places))))
            columns.append(new.Unsqueeze(new.Expand(index, shape), [places]))
        return new.Concat(*columns, axis=-1)


def _cast(new: Insert, x: ir.Value, held: ir.DataType, wanted: ir.DataType) -> ir.Value:
    return x if held == wanted else new.Cast(x, to=wanted)
