"""Low-bit weights with one scale per group of inputs, and their layouts.

Defines the meaning of a code, and the bytes for `MatMulNBits` and `GatherBlockQuantized` of
onnxruntime and the standard `DequantizeLinear`.

Shape letters: N outputs, K inputs, G groups of inputs: K / group, rounded up. Groups run along K;
the last one may be shorter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Codes:
    """A low-bit weight: `(value - zero) * scale + minimum`.

    Attributes:
        values: uint8 `(N, K)`, one code each, at most `scheme.largest`.
        scales: float32 `(N, G)`; may be negative, and is 0 for a group of zeros.
        zeros: uint8 `(N, G)`; None where the scheme is symmetric.
        scheme: the format.
        minimums: float32 `(N, G)`; None where the scheme has none.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    scheme: Scheme
    minimums: Tensor | None = None


def dequantize(codes: Codes) -> Tensor:
    """The weight that kernels use, float32 `(N, K)`."""
    rows, inputs = codes.values.shape
    values = steps_of(codes).mul_(codes.scales.unsqueeze(-1))
    if codes.minimums is not None:
        values += codes.minimums.unsqueeze(-1)
    return values.view(rows, -1)[:, :inputs]


def steps_of(codes: Codes) -> Tensor:
    """Codes minus zero points, float32 `(N, G, group)`; a weight is these times its scales."""
    zeros = codes.scheme.middle if codes.zeros is None else codes.zeros.float().unsqueeze(-1)
    return into_groups(codes.values.float(), codes.scheme.group).sub_(zeros)


def joined(parts: Sequence[Codes]) -> Codes:
    """Join the codes of consecutive rows."""

    def along(fields: list[Tensor | None]) -> Tensor | None:
        tensors = [field for field in fields if field is not None]
        return torch.cat(tensors) if tensors else None

    return Codes(
        values=torch.cat([part.values for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=along([part.zeros for part in parts]),
        minimums=along([part.minimums for part in parts]),
        scheme=parts[0].scheme,
    )


def pack(codes: Codes) -> Tensor:
    """The bytes of `MatMulNBits`' input B, uint8 `(N, G, group * bits / 8)`.

    Two 4-bit codes share a byte, the first in the low half. A short last group is padded with codes
    of 0.0. As `(N, G * group * bits / 8)` these are also the data of `GatherBlockQuantized` with
    `quantize_axis=1`, whose rows are then `G * group` wide.
    """
    scheme = codes.scheme
    blocks = into_groups(codes.values, scheme.group)
    tail = codes.values.shape[1] % scheme.group
    if tail:
        fill = scheme.middle if codes.zeros is None else codes.zeros[:, -1:]
        blocks[:, -1, tail:] = fill
    return into_bytes(blocks, scheme.bits)


def pack_zeros(codes: Codes) -> Tensor | None:
    """The zero points for `MatMulNBits` and `GatherBlockQuantized`; None where symmetric.

    uint8 `(N, ceil(G * bits / 8))`, each row from a new byte.
    """
    return None if codes.zeros is None else into_bytes(codes.zeros, codes.scheme.bits)


def pack_columns(codes: Codes) -> tuple[Tensor, Tensor | None]:
    """Codes and zero points of a blocked `DequantizeLinear` of axis 0 before a MatMul.

    onnxruntime fuses both into one `MatMulNBits`, if nothing else reads the three tensors.

    Returns:
        The bytes of a `(K, N)` tensor of type INT4 or INT8 (symmetric), UINT4 or UINT8, and those
        of a `(G, N)` tensor of the same type; None where symmetric. Two 4-bit codes share a byte,
        the first in the low half, across row ends.
    """
    bits = codes.scheme.bits
    # Signed types: subtracting `middle` and keeping `bits` bits is flipping the sign bit.
    signed = codes.scheme.middle if codes.zeros is None else 0
    weights = into_bytes((codes.values ^ signed).T.reshape(-1), bits)
    return weights, None if codes.zeros is None else into_bytes(codes.zeros.T.reshape(-1), bits)


def check_finite(weight: Tensor) -> None:
    """Reject a weight that cannot be quantized."""
    # NaN propagates to both extremes; `isfinite` of the whole weight takes five times as long.
    if weight.numel() and not all(bool(end.isfinite()) for end in weight.aminmax()):
        row, column = (~weight.isfinite()).nonzero()[0].tolist()
        raise ExportError(
            f"A weight has {float(weight[row, column])} at [{row}, {column}] and cannot be "
            "quantized. Repair the checkpoint, or export it without quantization."
        )


def into_groups(matrix: Tensor, group: int) -> Tensor:
    """Split the inputs of `(N, K)` into `(N, G, group)`; a copy padded with 0 if K has a rest."""
    rows, inputs = matrix.shape
    rest = -inputs % group
    padded = F.pad(matrix, (0, rest)) if rest else matrix
    return padded.reshape(rows, (inputs + rest) // group, group)


def nearest(weight: Tensor, scales: Tensor, zeros: Tensor, scheme: Scheme) -> Tensor:
    """The nearest codes, as floats; a scale of 0 leads to the code of 0.0."""
    steps = weight / scales.masked_fill(scales == 0, math.inf)
    return steps.round_().add_(zeros).clamp_(0, scheme.largest)


def limits(zeros: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """The lowest and the highest code, each minus the zero point."""
    return -zeros, scheme.largest - zeros


def codes_of(values: Tensor, scales: Tensor, zeros: Tensor, scheme: Scheme) -> Codes:
    """Codes with the zero points as floats `(N, G)`, which a symmetric scheme leaves out."""
    stored = None if scheme.symmetric else zeros.to(torch.uint8)
    return Codes(values=values, scales=scales, zeros=stored, scheme=scheme)


def into_bytes(values: Tensor, bits: int) -> Tensor:
    """Pack codes along the last axis; with 4 bits, the first of a pair in the low half."""
    if bits == 8:
        return values.contiguous()
    pairs = F.pad(values, (0, 1)) if values.shape[-1] % 2 else values.contiguous()
    both = pairs.view(torch.int16)  # twice as fast as slicing every second code
    return (both | (both >> 4)).to(torch.uint8)
