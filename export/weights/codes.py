"""Writes low-bit weights to the weight file of a bundle, a few rows at a time.

Shape letters: N rows of a weight, K its columns.
"""

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ortolan.export.passes.quantize_products import CHANNEL_SCALES, CHANNELS
from ortolan.export.passes.quantize_weights import (
    CODES,
    COLUMN_SCALES,
    COLUMN_ZEROS,
    COLUMNS,
    MINIMUMS,
    ROW_SCALES,
    ROW_ZEROS,
    ROWS,
    SCALES,
    TABLE,
    ZEROS,
)
from ortolan.export.quantize.blocks import Codes, dequantize, joined, pack, pack_columns, pack_zeros
from ortolan.export.quantize.channel import quantize_channels
from ortolan.export.quantize.rounding import Part, QuantizedWeight
from ortolan.export.weights.blob import BlobWriter, narrowed, raw
from ortolan.modeling.weights import Weights, read_weight
from ortolan.runtime.bundle.manifest import QuantizedTensor
from ortolan.runtime.machine.memory import return_free_memory


def write_codes(
    writer: BlobWriter, quantized: Iterable[QuantizedWeight], *, dtype: torch.dtype
) -> list[QuantizedTensor]:
    """Write codes, scales and zero points of weights, and describe them with their errors."""
    written = []
    for weight in quantized:
        written.append(_write(writer, _with_scales(weight, dtype), dtype))
        return_free_memory()
    return written


def write_portable(
    writer: BlobWriter,
    quantized: Iterable[QuantizedWeight],
    wanted: Container[str],
    *,
    dtype: torch.dtype,
) -> list[QuantizedTensor]:
    """Like `write_codes`, in the layouts that graphs want, with one weight in memory."""
    written = []
    for weight in quantized:
        name = weight.name
        described, codes = _whole(_with_scales(weight, dtype))
        writer.sums.weight(f"{name}{COLUMNS}", 0, dequantize(codes))
        scales = codes.scales.to(dtype)
        written.append(described)
        if f"{name}{COLUMNS}" in wanted:
            columns, column_zeros = pack_columns(codes)
            writer.add(f"{name}{COLUMNS}", [raw(columns)])
            writer.add(f"{name}{COLUMN_SCALES}", [raw(scales.T)])
            if column_zeros is not None:
                writer.add(f"{name}{COLUMN_ZEROS}", [raw(column_zeros)])
        if f"{name}{ROWS}" in wanted:
            # Without zero points, codes are signed.
            middle = weight.scheme.middle if codes.zeros is None else 0
            writer.add(f"{name}{ROWS}", [raw(codes.values - middle)])
            writer.sums.weight(f"{name}{ROW_SCALES}", 0, scales)
            writer.add(f"{name}{ROW_SCALES}", [raw(scales)])
            if codes.zeros is not None:
                writer.add(f"{name}{ROW_ZEROS}", [raw(codes.zeros)])
        if f"{name}{TABLE}" in wanted:
            writer.sums.weight(f"{name}{TABLE}", 0, dequantize(codes))
            writer.add(f"{name}{TABLE}", [raw(pack(codes))])
            writer.add(f"{name}{SCALES}", [raw(scales)])
            zeros = pack_zeros(codes)
            if zeros is not None:
                writer.add(f"{name}{ZEROS}", [raw(zeros)])
    return written


def write_channels(
    writer: BlobWriter, weights: Weights, names: Iterable[str]
) -> list[QuantizedTensor]:
    """Write weights of products of 8-bit integers: int8 `(K, N)`, and one scale per output."""
    written = []
    for name in names:
        weight = read_weight(weights, name)
        values_KN, scales_N = quantize_channels(weight)
        writer.add(f"{name}{CHANNELS}", [raw(values_KN)])
        writer.add(f"{name}{CHANNEL_SCALES}", [raw(scales_N)])
        values_NK = values_KN.T * scales_N[:, None]
        writer.sums.weight(f"{name}{CHANNELS}", 0, values_NK)
        off = (values_NK - weight).norm()
        written.append(
            QuantizedTensor(
                name=name,
                bits=8,
                group=None,
                symmetric=True,
                method="rtn",
                error=_share(off.item(), weight.norm().item()),
            )
        )
    return written


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _with_scales(weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedWeight:
    """The weight with scales rounded to a type, so that its error includes that."""

    def parts() -> Iterator[Part]:
        for part in weight.parts:
            scales = narrowed(f"{weight.name}{SCALES}", part.codes.scales, dtype).float()
            minimums = part.codes.minimums
            if minimums is not None:
                minimums = narrowed(f"{weight.name}{MINIMUMS}", minimums, dtype).float()
            yield replace(part, codes=replace(part.codes, scales=scales, minimums=minimums))

    return weight if dtype == torch.float32 else replace(weight, parts=parts())


def _write(writer: BlobWriter, weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedTensor:
    name = weight.name
    scales: list[Tensor] = []
    zeros: list[Tensor] = []
    minimums: list[Tensor] = []
    loss, start = _Loss(), 0

    def codes() -> Iterator[memoryview]:
        nonlocal start
        for part in weight.parts:
            values = loss.add(part)
            if part.codes.minimums is not None:
                # A separate product adds them.
                minimums.append(part.codes.minimums)
                writer.sums.weight(f"{name}{MINIMUMS}", start, part.codes.minimums)
                values = dequantize(replace(part.codes, minimums=None))
            for suffix in (CODES, TABLE):
                writer.sums.weight(f"{name}{suffix}", start, values)
            start += len(values)
            scales.append(part.codes.scales)
            packed_zeros = pack_zeros(part.codes)
            if packed_zeros is not None:
                zeros.append(packed_zeros)
            yield raw(pack(part.codes))

    writer.add(f"{name}{CODES}", codes(), alias=f"{name}{TABLE}")
    writer.add(f"{name}{SCALES}", [raw(torch.cat(scales).to(dtype))])
    if zeros:
        writer.add(f"{name}{ZEROS}", [raw(torch.cat(zeros))])
    if minimums:
        writer.add(f"{name}{MINIMUMS}", [raw(torch.cat(minimums).T.to(dtype))])
    return _describe(weight, loss)


def _whole(weight: QuantizedWeight) -> tuple[QuantizedTensor, Codes]:
    """Join all parts of a weight."""
    parts, loss = [], _Loss()
    for part in weight.parts:
        loss.add(part)
        parts.append(part.codes)
    return _describe(weight, loss), joined(parts)


class _Loss:
    """Error of rounding, summed over the parts of a weight."""

    def __init__(self) -> None:
        self._off = self._norm = 0.0

    def add(self, part: Part) -> Tensor:
        """Add a part, and return its dequantized rows."""
        values = dequantize(part.codes)
        self._off += float(torch.linalg.vector_norm(values - part.rows)) ** 2
        self._norm += float(torch.linalg.vector_norm(part.rows)) ** 2
        return values

    @property
    def relative(self) -> float:
        return _share(math.sqrt(self._off), math.sqrt(self._norm))


def _describe(weight: QuantizedWeight, loss: _Loss) -> QuantizedTensor:
    return QuantizedTensor(
        name=weight.name,
        bits=weight.scheme.bits,
        group=weight.scheme.group,
        symmetric=weight.scheme.symmetric,
        method=weight.method,
        error=loss.relative,
    )
