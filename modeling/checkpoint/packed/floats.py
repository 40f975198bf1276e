"""Weights as 8-bit or 4-bit floats with scales (FP8, MXFP4, NF4), and as 8-bit integers.

Shape letters: N outputs, K inputs, E experts.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.packed.layout import (
    FLOATS,
    UNREAD,
    Packing,
    Part,
    Shape,
    Stored,
    blocks,
    unsupported,
)
from ortolan.modeling.codes import CodedRows, CodeFormat, StoredCodes
from ortolan.modeling.lazy_tensor import LazyTensor, whole_of

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the 4-bit format E2M1 of the Open Compute Project, by code."""

SCALE_BIAS = 127
"""Bias of an 8-bit scale, which is an exponent of 2."""

SCALES = (*FLOATS, torch.uint8, torch.float8_e8m0fnu)
"""Types of the scales of 8-bit numbers."""

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
"""8-bit floats."""


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Dequantize 4-bit floats in blocks of 32 with a shared scale.

    Args:
        blocks: uint8 `(..., G, 16)`, two codes per byte, low nibble first.
        scales: uint8 `(..., G)`, exponents of 2 plus 127.

    Returns:
        float32 `(..., G * 32)`.

    Spec: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
    """
    table = torch.tensor(FP4)
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    factors = torch.exp2(scales.float() - SCALE_BIAS)
    return (table[pairs.long()] * factors.unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True)
class Scaled(Packing):
    """A matrix of 8-bit floats or integers with a scale per block.

    Attributes:
        name: name of the stored numbers.
        scale: name of the scales: `(N / block, K / block)`, rounded up; `(N,)`, or a scalar.
        shape: `(N, K)`.
        block: rows and columns that share a scale.
        dtypes: types that the numbers may have.
        unit: factor of all scales.
        zero: name of the zeros, stored like the scales, if there are any.
        symmetric: whether the config says that all zeros are 0.
        unread: further stored tensors of the weight.
    """

    name: str
    scale: str
    shape: tuple[int, int]
    block: tuple[int, int]
    dtypes: tuple[torch.dtype, ...]
    unit: float = 1.0
    zero: str | None = None
    symmetric: bool = False
    unread: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, Part]:
        """Its stored tensors."""
        high, wide = (blocks(*pair) for pair in zip(self.shape, self.block, strict=True))
        by_block: list[Shape] = [(high, wide)]
        if wide == 1:
            by_block.append((high,))
        if (high, wide) == (1, 1):
            by_block.append(())
        zero = {} if self.zero is None else {self.zero: Part(by_block, self.dtypes)}
        return {
            self.name: Part([self.shape], self.dtypes),
            self.scale: Part(by_block, SCALES),
            **zero,
            **dict.fromkeys(self.unread, UNREAD),
        }

    def check(self, stored: Stored) -> None:
        """Check all zeros against the config."""
        if self.zero is None or not self.symmetric:
            return
        if bool(whole_of(stored[self.zero]).float().any()):
            raise unsupported(self.zero, "0, as in every symmetric checkpoint", "others")

    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""
        values = stored[self.name].read(start, stop).float()
        if self.zero is not None:
            values = values - self._by_value(stored, self.zero, start, stop)
        return values * (self._by_value(stored, self.scale, start, stop) * self.unit)

    def _by_value(self, stored: Stored, name: str, start: int, stop: int) -> Tensor:
        """Scales or zeros of rows `[start:stop]`, one per value."""
        high, wide = self.block
        first, last = start // high, blocks(stop, high)
        numbers = stored[name].read(first, last)
        is_exponent = numbers.dtype == torch.uint8
        numbers = torch.exp2(numbers.float() - SCALE_BIAS) if is_exponent else numbers.float()
        if numbers.dim() < 2:
            numbers = numbers.view(-1, 1)
        by_row = numbers.repeat_interleave(high, 0)[start - first * high :][: stop - start]
        return by_row.repeat_interleave(wide, 1)[:, : self.shape[1]]


@dataclass(frozen=True)
class Mxfp4(Packing):
    """Expert matrices as MXFP4, each stored `(N, K)` and published `(K, N)`.

    Doubled, the 4-bit values are integers of at most 12, which 8-bit codes represent exactly.

    Attributes:
        stem: prefix of the names.
        shape: `(E, N, K)`.
    """

    stem: str
    shape: tuple[int, int, int]

    @property
    def parts(self) -> dict[str, Part]:
        """Its stored tensors."""
        experts, outputs, inputs = self.shape
        scales = (experts, outputs, inputs // 32)
        return {
            f"{self.stem}_blocks": Part([(*scales, 16)], (torch.uint8,)),
            f"{self.stem}_scales": Part([scales], (torch.uint8,)),
        }

    def tensor(self, stored: Stored, *, outputs_first: bool = False) -> LazyTensor:
        """The published tensor; the codes are those of the stored one."""
        return cast(LazyTensor, super().tensor(stored, outputs_first=outputs_first).mT)

    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Experts `[start:stop]`, float32 `(stop - start, N, K)`."""
        blocks, scales = (stored[name].read(start, stop) for name in self.parts)
        return dequantize_mxfp4(blocks, scales)

    def codes(self, stored: Stored) -> StoredCodes:
        """Codes of experts as stored, `N` rows for each: 8-bit integers in groups of 32."""
        table = (2 * torch.tensor(FP4) + 128).to(torch.uint8)

        def rows(start: int, stop: int) -> CodedRows:
            blocks, scales = (stored[name].read(start, stop).flatten(0, 1) for name in self.parts)
            pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-3)
            return CodedRows(
                values=table[pairs.long()],
                scales=torch.exp2(scales.float() - SCALE_BIAS - 1),
                zeros=torch.full_like(scales, 128),
                minimums=torch.zeros(scales.shape),
            )

        return StoredCodes(lambda: CodeFormat(bits=8, group=32, symmetric=True), rows)


@dataclass(frozen=True)
class Blockwise(Packing):
    """A matrix of bitsandbytes: 4-bit codes, and the absolute maximum of each block.

    Attributes:
        name: name of the codes, `(N * K / 2, 1)` bytes, and prefix of the other names.
        shape: `(N, K)`.
        size: values per block, in row-major order.
        state: name of the tensor that describes the format.
        storage: type that the bytes of the codes are stored as.
        nested_size: number of maximums quantized together; None if they are floats.
        nested_offset: offset of quantized maximums.
    """

    name: str
    shape: tuple[int, int]
    size: int
    state: str
    storage: torch.dtype
    nested_size: int | None
    nested_offset: float

    @property
    def parts(self) -> dict[str, Part]:
        """Its stored tensors."""
        count = self.shape[0] * self.shape[1]
        size = (blocks(blocks(count, 2), self.storage.itemsize), 1)
        maximums = blocks(count, self.size)
        parts = {
            self.name: Part([size], (self.storage,)),
            self.state: UNREAD,
            f"{self.name}.quant_map": Part([(16,)], FLOATS),
        }
        if self.nested_size is None:
            return parts | {f"{self.name}.absmax": Part([(maximums,)], FLOATS)}
        return parts | {
            f"{self.name}.absmax": Part([(maximums,)], (torch.uint8,)),
            f"{self.name}.nested_absmax": Part([(blocks(maximums, self.nested_size),)], FLOATS),
            f"{self.name}.nested_quant_map": Part([(256,)], FLOATS),
        }

    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""
        columns = self.shape[1]
        first, last = start * columns, stop * columns
        block, end = first // self.size, blocks(last, self.size)
        # Two codes per byte, high nibble first. A block is a whole number of stored values.
        per_value = 2 * self.storage.itemsize
        count = blocks(self.shape[0] * columns, per_value)
        begin, until = block * self.size // per_value, min(end * self.size // per_value, count)
        pairs = stored[self.name].read(begin, until).flatten().view(torch.uint8)
        codes = torch.stack([pairs >> 4, pairs & 15], dim=-1).flatten().long()
        table = stored[f"{self.name}.quant_map"].read(0, 16).float()
        factors = self._largest(stored, block, end).repeat_interleave(self.size)
        skipped = first - block * self.size
        wanted = slice(skipped, skipped + last - first)
        return (table[codes[wanted]] * factors[wanted]).view(stop - start, columns)

    def _largest(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Absolute maximums of blocks `[start:stop]`."""
        maximums = stored[f"{self.name}.absmax"].read(start, stop)
        if self.nested_size is None:
            return maximums.float()
        table = stored[f"{self.name}.nested_quant_map"].read(0, 256).float()
        first, last = start // self.nested_size, blocks(stop, self.nested_size)
        outer = stored[f"{self.name}.nested_absmax"].read(first, last).float()
        factors = outer.repeat_interleave(self.nested_size)[start - first * self.nested_size :]
        return table[maximums.long()] * factors[: stop - start] + self.nested_offset
