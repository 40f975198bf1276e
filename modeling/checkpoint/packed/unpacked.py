"""Tensors as floating point numbers, however their files hold them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.packed.methods import packings
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import CodedRows, CodeFormat, TensorSource

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in; anything else is quantized, and means nothing by itself."""


class FileTensors(TensorSource, Protocol):
    """Published tensors that lie in files."""

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        ...


class Unpacked:
    """The tensors of some files, all in floating point."""

    def __init__(
        self, stored: FileTensors, quantization: Mapping[str, object] | None = None
    ) -> None:
        """Find the tensors that are stored as others.

        Args:
            stored: what the files hold.
            quantization: `quantization_config` of the config.

        Raises:
            CheckpointError: a method that Ortolan does not read, or one without its parts.
        """
        self._stored = stored
        self._packings = {} if quantization is None else packings(quantization, stored)
        parts = {part: name for name, p in self._packings.items() for part in p.parts}
        shapes = stored.shapes()
        for part, name in parts.items():
            if part not in shapes:
                raise CheckpointError(
                    f"{name}: expected it to be stored as {part} and others, got none of that "
                    "name. The download is incomplete."
                )
        self._shapes = {name: shape for name, shape in shapes.items() if name not in parts}
        self._shapes |= {name: packing.shape for name, packing in self._packings.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return self._stored.files()

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor, dequantized or as it is stored.

        Raises:
            CheckpointError: it is stored in something other than floating point.
        """
        packing = self._packings.get(name)
        if packing is not None:
            if axis == 0:
                return packing.rows(self._stored, start, stop)
            return packing.rows(self._stored, 0, packing.shape[0])[:, start:stop]
        piece = self._stored.read(name, start, stop, axis=axis)
        if piece.dtype not in FLOATS:
            raise CheckpointError(
                f"{name}: expected bf16, fp16 or fp32, got {piece.dtype}. "
                "Export the checkpoint that this one was quantized from."
            )
        return piece

    def code_format(self, name: str) -> CodeFormat | None:
        """The format of a tensor's codes; None where it has none that kernels take."""
        packing = self._packings.get(name)
        return None if packing is None else packing.code_format(self._stored)

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """The codes of rows `[start:stop]` of a tensor that has some."""
        return self._packings[name].codes(self._stored, start, stop)
