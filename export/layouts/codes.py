"""Low-bit weights of a graph from another exporter: their values, and their bytes in a bundle.

Shape letters: N rows of a weight, K its columns, G groups of columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from ortolan.export.errors import LayoutError
from ortolan.export.options import GROUP_SIZES
from ortolan.export.passes.own_forms import SAME_BYTES
from ortolan.export.values import name_of, static_shape
from ortolan.export.weights.blob import BlobWriter
from ortolan.runtime.bundle.manifest import QuantizedTensor

CHUNK_VALUES = 1 << 22
"""Values that are dequantized together."""

_PLACES = {"MatMulNBits": (1, 2, 3), "GatherBlockQuantized": (0, 2, 3)}
"""Places of codes, scales and zero points among the inputs of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedWeight:
    """A low-bit weight.

    Attributes:
        codes: initializer with 4-bit or 8-bit codes.
        scales: initializer with a scale per group.
        zeros: initializer with zero points; None for the middle of the range.
        bits: of a code.
        group: columns that share a scale.
        columns: of the weight; the last group may be padded. None for all that there are.
    """

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    bits: int
    group: int
    columns: int | None

    def rows(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the dequantized weight a few rows at a time, each with the first row's number."""
        codes = _numbers(self.codes)
        count = len(codes)
        packed = codes.reshape(count, -1)
        groups = packed.shape[1] * 8 // self.bits // self.group
        scales_NG = _numbers(self.scales).reshape(count, groups)
        zeros = None if self.zeros is None else _numbers(self.zeros).reshape(count, -1)
        step = max(1, CHUNK_VALUES // (groups * self.group))
        for start in range(0, count, step):
            part = slice(start, start + step)
            values = _unpacked(packed[part], self.bits).reshape(-1, groups, self.group)
            middle = np.float32(1 << (self.bits - 1))
            zero = middle if zeros is None else _unpacked(zeros[part], self.bits)[:, :groups, None]
            weight = (values - zero) * scales_NG[part, :, None].astype(np.float32)
            yield start, torch.from_numpy(weight.reshape(len(weight), -1)[:, : self.columns])


def coded_weights(graph: ir.Graph) -> list[CodedWeight]:
    """Every low-bit weight of a graph, once per initializer of codes.

    Raises:
        LayoutError: bundles have no such codes.
    """
    weights: dict[str, CodedWeight] = {}
    for node in graph:
        if node.op_type in _PLACES:
            weight = _coded(node)
            weights.setdefault(name_of(weight.codes), weight)
    return list(weights.values())


def write_coded(writer: BlobWriter, weights: list[CodedWeight]) -> tuple[QuantizedTensor, ...]:
    """Write codes, and record what products with them must compute."""
    shared = [weight for weight in weights if SAME_BYTES in weight.codes.metadata_props]
    for weight in weights:
        for start, values_NK in weight.rows():
            writer.witness.weight(name_of(weight.codes), start, values_NK)
    for weight in weights:
        name = name_of(weight.codes)
        original = weight.codes.metadata_props.get(SAME_BYTES, name)
        if original not in writer:
            writer.add(original, [memoryview(_bytes(weight.codes))], alias=name)
        if weight in shared:
            writer.alias(name, original)
    return tuple(_described(weight) for weight in weights if weight not in shared)


def _coded(node: ir.Node) -> CodedWeight:
    codes, scales, zeros = (
        node.inputs[place] if place < len(node.inputs) else None for place in _PLACES[node.op_type]
    )
    bits = node.attributes.get_int("bits", 4)
    group = node.attributes.get_int("block_size", 0)
    columns = node.attributes.get_int("K", 0) or None
    for value in (codes, scales, zeros):
        if value is not None and (not value.is_initializer() or value.const_value is None):
            raise LayoutError(f"{value.name}: expected stored low-bit weights, got computed ones.")
    is_bytes = codes is not None and codes.dtype == ir.DataType.UINT8
    has_bytes = zeros is None or zeros.dtype == ir.DataType.UINT8
    if codes is None or scales is None or not (is_bytes and has_bytes):
        raise LayoutError(f"{node.op_type}: expected codes and zero points in bytes, got others.")
    if bits not in (4, 8) or group not in GROUP_SIZES:
        raise LayoutError(
            f"{codes.name}: expected 4 or 8 bits in groups of 32, 64, 128 or 256, got {bits} bits "
            f"in groups of {group}. Build the folder again with another block_size."
        )
    return CodedWeight(
        codes=codes, scales=scales, zeros=zeros, bits=bits, group=group, columns=columns
    )


def _described(weight: CodedWeight) -> QuantizedTensor:
    """Codes are kept as they are, so nothing is known of their distance from trained values."""
    return QuantizedTensor(
        name=name_of(weight.codes),
        bits=4 if weight.bits == 4 else 8,
        group=next(size for size in GROUP_SIZES if size == weight.group),
        symmetric=weight.zeros is None,
        method="kept",
        error=0.0,
    )


def _unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    """One code per number; the first of two codes is in the low half of a byte."""
    if bits == 8:
        return packed.astype(np.float32)
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    return halves.reshape(*packed.shape[:-1], -1).astype(np.float32)


def _numbers(value: ir.Value) -> NDArray[Any]:
    if value.const_value is None:
        raise LayoutError(f"{value.name}: expected an initializer with data, got none.")
    return value.const_value.numpy().reshape(static_shape(value))


def _bytes(value: ir.Value) -> bytes:
    return np.ascontiguousarray(_numbers(value)).tobytes()
