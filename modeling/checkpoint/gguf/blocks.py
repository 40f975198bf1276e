"""Quantized blocks of a GGUF file, and their values.

The formats come from the package `gguf`, which `ortolan[gguf]` installs.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.codes import CodedRows, CodeFormat
from ortolan.modeling.errors import CheckpointError


class BlockFormat(NamedTuple):
    """A block format, such as `Q4_0`; `kind` is its number in a file, `width` values per block."""

    name: str
    kind: int
    width: int
    block_bytes: int


FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Formats that are dtypes of PyTorch."""

CODE_FORMATS = {
    "Q4_0": CodeFormat(4, 32, True),
    "Q4_1": CodeFormat(4, 32, True, minimums=True),
    "Q4_K": CodeFormat(4, 32, True, minimums=True),
    "Q8_0": CodeFormat(8, 32, True),
}
"""Formats whose codes kernels can use unchanged."""

HALF = 2
"""Bytes of a scale or a minimum, a float16."""

K_SCALES = 12
"""Bytes of the 6-bit scales and minimums of a Q4_K block."""

NO_PACKAGE = 'Reading GGUF needs the package gguf. Run: pip install "ortolan[export,gguf]"'


def block_format(kind: int, name: str, path: Path) -> BlockFormat:
    """The format of a type number in a file."""
    form = _formats().get(kind)
    if form is None:
        raise CheckpointError(
            f"{path}: {name} has the type {kind}, which the package gguf cannot dequantize. Get "
            "the model in another format, such as Q8_0."
        )
    return form


@cache
def _formats() -> dict[int, BlockFormat]:
    """The formats that can be read, by their numbers."""
    try:
        from gguf import GGML_QUANT_SIZES
        from gguf.quants import dequantize as by_library
    except ModuleNotFoundError as error:
        raise CheckpointError(NO_PACKAGE) from error
    formats = {}
    for kind, (width, block_bytes) in GGML_QUANT_SIZES.items():
        if kind.name not in FLOATS:
            try:
                by_library(np.zeros((1, block_bytes), np.uint8), kind)
            except NotImplementedError:
                continue
        formats[int(kind)] = BlockFormat(kind.name, int(kind), width, block_bytes)
    return formats


def dequantize(data: NDArray[np.uint8], form: BlockFormat) -> Tensor:
    """Rows, uint8 `(rows, bytes per row)`, as float32 or 16-bit floats `(rows, columns)`."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as by_library

    if form.name in FLOATS:
        return torch.from_numpy(data).view(FLOATS[form.name])
    values: NDArray[np.float32] = by_library(data, GGMLQuantizationType(form.kind))
    return torch.from_numpy(values)


def read_codes(data: NDArray[np.uint8], form: BlockFormat) -> CodedRows:
    """Rows, uint8 `(rows, bytes per row)`, in one of `CODE_FORMATS`, as codes."""
    blocks = torch.from_numpy(data).view(len(data), -1, form.block_bytes)
    scales, rest = _half(blocks), blocks[..., HALF:]
    middle = 1 << (CODE_FORMATS[form.name].bits - 1)
    minimums = torch.zeros(scales.shape)
    if form.name == "Q8_0":
        values = rest ^ middle  # from signed to unsigned
    elif form.name == "Q4_K":
        values, scales, minimums = _k_codes(scales, rest)
    else:
        if form.name == "Q4_1":
            minimums, rest = _half(rest) + middle * scales, rest[..., HALF:]
        # The low nibbles hold the first half of a block, the high nibbles the second.
        values = torch.cat([rest & 15, rest >> 4], dim=-1)
    zeros = torch.full(scales.shape, middle, dtype=torch.uint8)
    return CodedRows(values.flatten(1), scales, zeros, minimums)


def _half(blocks: Tensor) -> Tensor:
    """The float16 at the start of each block."""
    return blocks[..., :HALF].contiguous().view(torch.float16)[..., 0].float()


def _k_codes(scales: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and minimums of Q4_K blocks, each of eight groups of 32.

    The `rest` of a block follows the scale of its scales, `(rows, blocks)`.
    """
    lowest, packed = _half(rest), rest[..., HALF : HALF + K_SCALES].long()
    first, second, third = torch.split(packed, 4, dim=-1)
    steps = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=-1)
    depths = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=-1)
    groups = scales.unsqueeze(-1) * steps
    minimums = 8 * groups - lowest.unsqueeze(-1) * depths
    # 32 bytes hold one group in their low nibbles, and the next in their high nibbles.
    codes = rest[..., HALF + K_SCALES :]
    stored = codes.reshape(*codes.shape[:-1], -1, 1, 32)
    values = torch.cat([stored & 15, stored >> 4], dim=-2).flatten(-3)
    return values, groups.flatten(1), minimums.flatten(1)
