"""Tensors as floating point numbers, however their files hold them."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import TensorSource

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in; anything else is quantized, and means nothing by itself."""


class FileTensors(TensorSource, Protocol):
    """Published tensors that lie in files."""

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        ...


class Unpacked:
    """The tensors of some files, all in floating point."""

    def __init__(self, stored: FileTensors) -> None:
        self._stored = stored

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return self._stored.shapes()

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return self._stored.files()

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor, in its stored dtype.

        Raises:
            CheckpointError: it is stored in something other than floating point.
        """
        piece = self._stored.read(name, start, stop, axis=axis)
        if piece.dtype not in FLOATS:
            raise CheckpointError(
                f"{name}: expected bf16, fp16 or fp32, got {piece.dtype}. "
                "Export the checkpoint that this one was quantized from."
            )
        return piece
