"""Counts the bytes that a decode step of one sequence reads from memory.

Weights count as stored, or as the device's kernels hold them if that is wider, without the overhead
of packing:

* Products read all their weights, including those shared with a table (tied embeddings).
* Experts read those of one token, and count as one matrix.
* Tables (embeddings, rotations) read one row.
* Everything else, such as norms and biases, is read completely.
* A KV cache is read up to the length, a state of fixed size completely.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.engine.windows import window_of
from ortolan.runtime.graph.summary import ExternalTensor, GraphSummary, Reader

__all__ = ["MatrixRead", "StepReads", "count"]

_BLOCK_PRODUCT = "com.microsoft::MatMulNBits"

_EXPERTS = "com.microsoft::MoE"
_BLOCK_EXPERTS = "com.microsoft::QMoE"

_PRODUCTS = frozenset(
    {
        _BLOCK_PRODUCT,
        _BLOCK_EXPERTS,
        _EXPERTS,
        "ai.onnx::Gemm",
        "ai.onnx::MatMul",
        "ai.onnx::DequantizeLinear",  # before a product, in graphs of standard operators
        "com.microsoft::DynamicQuantizeMatMul",
        "com.microsoft::FusedMatMul",
        "com.microsoft::MatMulIntegerToFloat",
    }
)

_LOOK_UPS = frozenset(
    {
        "ai.onnx::Gather",
        "ai.onnx::RotaryEmbedding",
        "com.microsoft::GatherBlockQuantized",
        "com.microsoft::GroupQueryAttention",  # its tables of cosines and sines
        "com.microsoft::RotaryEmbedding",
    }
)

_FORMATS = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "int8": "int8",
    "uint8": "int8",
    "int4": "int4",
    "uint4": "int4",
}

_WIDENED = {"float16": 2, "bfloat16": 2}
"""Growth of weights that onnxruntime's CPU kernels widen to float32 at load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRead:
    """The weights of one product.

    Attributes:
        name: of the largest tensor.
        format: as read: `fp32`, `fp16`, `int8` or `int4`.
        stored: format on disk.
        group: group size, if quantized in groups.
        inputs: values of a row, without padding of the last group.
        elements: of the matrix.
        bytes: with scales, zero points and bias.
        grid_bytes: scales and zero points.
        is_head: whether it computes the logits.
    """

    name: str
    format: str
    stored: str
    group: int | None
    inputs: int
    elements: int
    bytes: int
    grid_bytes: int
    is_head: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReads:
    """Bytes read by a step.

    Attributes:
        matrices: in the order of the graph.
        other_bytes: rows of tables, norms, biases.
        cache_bytes_per_token: KV cache.
        state_bytes: states of fixed size.
        windowed_bytes_per_token: the part of the KV cache in layers with a window.
        window_slots: most tokens that these hold.
    """

    matrices: tuple[MatrixRead, ...]
    other_bytes: int
    cache_bytes_per_token: int
    state_bytes: int
    windowed_bytes_per_token: int = 0
    window_slots: int = 0

    @property
    def weight_bytes(self) -> int:
        """All weights; independent of the length."""
        return sum(matrix.bytes for matrix in self.matrices) + self.other_bytes

    def bytes_at(self, length: float) -> float:
        """Return all bytes of a step after which the cache holds `length` tokens."""
        dropped = max(0, length - self.window_slots) * self.windowed_bytes_per_token
        cached = self.cache_bytes_per_token * length - dropped
        return self.weight_bytes + self.state_bytes + cached


def count(manifest: Manifest, graph: GraphSummary, *, device: str) -> StepReads:
    """Count the reads of the graph for a single new token.

    Args:
        manifest: of the bundle.
        graph: for decode steps.
        device: only `cpu` widens weights to float32.
    """
    tensors = {tensor.name: tensor for tensor in graph.external}
    products = [reader for reader in graph.readers if reader.operator in _PRODUCTS]
    rest = [reader for reader in graph.readers if reader.operator not in _PRODUCTS]
    head = _head(products, tensors, manifest.vocab_size)
    matrices = tuple(
        _matrix(reader, [tensors[name] for name in reader.weights], device, is_head=reader is head)
        for reader in products
    )
    shared = [tensors[name] for reader in products for name in reader.weights]
    others = sum(
        _other_bytes(reader, tensors[name], device)
        for reader in rest
        for name in reader.weights
        if not _within(tensors[name], shared)
    )
    window = window_of(manifest.states, manifest.context_length, together=manifest.together)
    windowed = sum(state.unit_bytes for state in manifest.states if state.window is not None)
    return StepReads(
        matrices=matrices,
        other_bytes=others,
        cache_bytes_per_token=manifest.state_bytes("append"),
        state_bytes=manifest.state_bytes("replace"),
        windowed_bytes_per_token=0 if window is None else windowed,
        window_slots=0 if window is None else window.capacity,
    )


def _matrix(
    reader: Reader, tensors: Sequence[ExternalTensor], device: str, *, is_head: bool
) -> MatrixRead:
    if reader.operator in (_EXPERTS, _BLOCK_EXPERTS):
        return _expert_matrix(reader, tensors, device)
    main = max(tensors, key=lambda tensor: tensor.length)
    wider = _WIDENED.get(main.dtype, 1) if device == "cpu" else 1
    stored = _FORMATS.get(main.dtype, main.dtype)
    group, elements = reader.attributes.get("block_size") or None, math.prod(main.dims)
    if reader.operator == _BLOCK_PRODUCT:
        bits = reader.attributes.get("bits", 4)
        stored, elements = f"int{bits}", main.length * 8 // bits
    small = [tensor for tensor in tensors if tensor is not main]
    return MatrixRead(
        name=main.name,
        format="fp32" if wider > 1 else stored,
        stored=stored,
        group=group,
        inputs=reader.attributes.get("K", next(iter(main.dims), 1)),
        elements=elements,
        bytes=main.length * wider + sum(tensor.length for tensor in small),
        # a bias has one axis
        grid_bytes=sum(tensor.length for tensor in small if len(tensor.dims) > 1),
        is_head=is_head,
    )


def _expert_matrix(reader: Reader, tensors: Sequence[ExternalTensor], device: str) -> MatrixRead:
    """Count the experts of one token in a layer."""
    by_size = sorted(tensors, key=lambda tensor: tensor.length)
    *small, _, main = by_size
    mains = by_size[-2:]  # gate and up, and down
    experts = max(1, next(iter(main.dims), 1))
    chosen = min(reader.attributes.get("k", 1), experts)
    wider = _WIDENED.get(main.dtype, 1) if device == "cpu" else 1
    bits = reader.attributes.get("expert_weight_bits", 4)
    is_coded = reader.operator == _BLOCK_EXPERTS
    stored = f"int{bits}" if is_coded else _FORMATS.get(main.dtype, main.dtype)
    elements = sum(
        tensor.length * 8 // bits if is_coded else math.prod(tensor.dims) for tensor in mains
    )
    grid = [tensor.length for tensor in small if len(tensor.dims) > 2]
    whole = sum(tensor.length for tensor in mains) * wider + sum(t.length for t in small)
    return MatrixRead(
        name=main.name,
        format="fp32" if wider > 1 else stored,
        stored=stored,
        group=reader.attributes.get("block_size") or None,
        inputs=main.dims[-1] * (8 // bits if is_coded else 1),
        elements=elements * chosen // experts,
        bytes=whole * chosen // experts,
        # a bias has two axes
        grid_bytes=sum(grid) * chosen // experts,
        is_head=False,
    )


def _head(
    products: Sequence[Reader], tensors: dict[str, ExternalTensor], vocab_size: int
) -> Reader | None:
    """Return the last product with an output per token of the vocabulary."""
    for reader in reversed(products):
        if any(vocab_size in tensors[name].dims for name in reader.weights):
            return reader
    return None


def _other_bytes(reader: Reader, tensor: ExternalTensor, device: str) -> int:
    if reader.operator in _LOOK_UPS and tensor.dims:
        return tensor.length // max(1, tensor.dims[0])
    return tensor.length * (_WIDENED.get(tensor.dtype, 1) if device == "cpu" else 1)


def _within(tensor: ExternalTensor, others: Sequence[ExternalTensor]) -> bool:
    """Whether the bytes of a tensor are part of another tensor, whatever their names."""
    return any(
        tensor.file == other.file
        and other.offset <= tensor.offset
        and tensor.offset + tensor.length <= other.offset + other.length
        for other in others
    )
