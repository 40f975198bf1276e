"""Weights as 8-bit or 4-bit floats with scales (FP8, MXFP4, NF4), and as 8-bit integers.

Shape letters: N outputs, K inputs, E experts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ortolan.modeling.weights import CodedRows, CodeFormat, TensorSource

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the 4-bit format E2M1 of the Open Compute Project, by code."""

SCALE_BIAS = 127
"""Bias of an 8-bit scale, which is an exponent of 2."""


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


class Uncoded:
    """A packing whose numbers no kernel supports."""

    def code_format(self, source: TensorSource) -> CodeFormat | None:
        """None."""
        del source
        return None

    def codes(self, source: TensorSource, start: int, stop: int) -> CodedRows:
        """Not supported."""
        raise NotImplementedError(f"rows {start} to {stop} of {source} have no codes")


@dataclass(frozen=True)
class Scaled(Uncoded):
    """A matrix of 8-bit floats or integers with a scale per block.

    Attributes:
        name: name of the stored numbers.
        scale: name of the scales: `(N / block, K / block)`, rounded up; `(N, 1)`, or a scalar.
        shape: `(N, K)`.
        block: rows and columns that share a scale.
        unused: further stored tensors of the weight, which are not read.
    """

    name: str
    scale: str
    shape: tuple[int, int]
    block: tuple[int, int]
    unused: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its stored tensors."""
        return (self.name, self.scale, *self.unused)

    def rows(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""
        values = source.read(self.name, start, stop).float()
        high, wide = self.block
        first, last = start // high, -(-stop // high)
        stored = source.read(self.scale, first, last)
        is_exponent = stored.dtype == torch.uint8
        scales = torch.exp2(stored.float() - SCALE_BIAS) if is_exponent else stored.float()
        if scales.dim() < 2:
            scales = scales.view(-1, 1)
        by_row = scales.repeat_interleave(high, 0)[start - first * high :][: stop - start]
        return values * by_row.repeat_interleave(wide, 1)[:, : self.shape[1]]


@dataclass(frozen=True)
class Mxfp4:
    """Expert matrices as MXFP4, each stored `(N, K)` and published `(K, N)`.

    Doubled, the 4-bit values are integers of at most 12, which 8-bit codes represent exactly.

    Attributes:
        stem: prefix of the names.
        shape: `(E, K, N)`.
    """

    stem: str
    shape: tuple[int, int, int]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its stored tensors."""
        return f"{self.stem}_blocks", f"{self.stem}_scales"

    def rows(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Experts `[start:stop]`, float32."""
        blocks, scales = (source.read(name, start, stop) for name in self.parts)
        return dequantize_mxfp4(blocks, scales).transpose(1, 2)

    def code_format(self, source: TensorSource) -> CodeFormat | None:
        """8-bit integers in groups of 32."""
        del source
        return CodeFormat(bits=8, group=32, symmetric=True)

    def codes(self, source: TensorSource, start: int, stop: int) -> CodedRows:
        """Codes of experts `[start:stop]` as stored, `((stop - start) * N, K)`."""
        blocks, scales = (source.read(name, start, stop).flatten(0, 1) for name in self.parts)
        table = (2 * torch.tensor(FP4) + 128).to(torch.uint8)
        pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-3)
        return CodedRows(
            values=table[pairs.long()],
            scales=torch.exp2(scales.float() - SCALE_BIAS - 1),
            zeros=torch.full_like(scales, 128),
            minimums=torch.zeros(scales.shape),
        )


@dataclass(frozen=True)
class Blockwise(Uncoded):
    """A matrix of bitsandbytes: 4-bit codes, and the absolute maximum of each block.

    Attributes:
        name: name of the codes, uint8 `(N * K / 2, 1)`, and prefix of the other names.
        shape: `(N, K)`.
        size: values per block, in row-major order.
        state: name of the tensor that describes the format.
        nested_size: number of maximums quantized together; None if they are floats.
        nested_offset: offset of quantized maximums.
    """

    name: str
    shape: tuple[int, int]
    size: int
    state: str
    nested_size: int | None
    nested_offset: float

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its stored tensors."""
        nested = ("nested_absmax", "nested_quant_map") if self.nested_size else ()
        return (
            self.name,
            self.state,
            *(f"{self.name}.{part}" for part in ("absmax", "quant_map", *nested)),
        )

    def rows(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""
        columns = self.shape[1]
        first, last = start * columns, stop * columns
        block, end = first // self.size, -(-last // self.size)
        # Two codes per byte, high nibble first.
        half = self.shape[0] * columns // 2
        stored = source.read(self.name, block * self.size // 2, min(end * self.size // 2, half))
        pairs = stored.flatten()
        codes = torch.stack([pairs >> 4, pairs & 15], dim=-1).flatten().long()
        table = source.read(f"{self.name}.quant_map", 0, 16).float()
        factors = self._largest(source, block, end).repeat_interleave(self.size)
        values = table[codes] * factors[: len(codes)]
        skipped = first - block * self.size
        return values[skipped : skipped + last - first].view(stop - start, columns)

    def _largest(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Absolute maximums of blocks `[start:stop]`."""
        stored = source.read(f"{self.name}.absmax", start, stop)
        if self.nested_size is None:
            return stored.float()
        table = source.read(f"{self.name}.nested_quant_map", 0, 256).float()
        first, last = start // self.nested_size, -(-stop // self.nested_size)
        outer = source.read(f"{self.name}.nested_absmax", first, last).float()
        factors = outer.repeat_interleave(self.nested_size)[start - first * self.nested_size :]
        return table[stored.long()] * factors[: stop - start] + self.nested_offset
