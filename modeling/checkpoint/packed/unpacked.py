"""Tensors as floating-point numbers, however their files store them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ortolan.modeling.checkpoint.packed.layout import FLOATS, check_parts
from ortolan.modeling.checkpoint.packed.methods import OUTPUTS_FIRST, packings
from ortolan.modeling.codes import CodedRows, CodeFormat
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import TensorSource


class FileTensors(TensorSource, Protocol):
    """Published tensors stored in files."""

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        ...


class Unpacked:
    """Tensors of files, all as floating-point numbers."""

    def __init__(
        self, stored: FileTensors, quantization: Mapping[str, object] | None = None
    ) -> None:
        """Find the packed tensors."""
        self._stored = stored
        self._packings = {} if quantization is None else packings(quantization, stored)
        self._outputs_first = str((quantization or {}).get("quant_method")) in OUTPUTS_FIRST
        parts: set[str] = set()
        for name, packing in self._packings.items():
            check_parts(name, packing.parts, stored)
            packing.check(stored)
            parts |= packing.parts.keys()
        shapes = stored.shapes()
        self._shapes = {name: shape for name, shape in shapes.items() if name not in parts}
        self._shapes |= {name: packing.shape for name, packing in self._packings.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return self._stored.files()

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`, dequantized if it is packed."""
        packing = self._packings.get(name)
        if packing is not None:
            if axis == 0:
                return packing.rows(self._stored, start, stop)
            return packing.rows(self._stored, 0, packing.shape[0])[:, start:stop]
        piece = self._stored.read(name, start, stop, axis=axis)
        if piece.dtype not in FLOATS:
            raise CheckpointError(
                f"{name}: the dtype must be bf16, fp16 or fp32 (got {piece.dtype}). Export the "
                "checkpoint that this one was quantized from."
            )
        return piece

    def has_outputs_first(self, name: str) -> bool:
        """Whether a matrix is `(outputs, inputs)` even where the published one is transposed."""
        return self._outputs_first and name in self._packings

    def is_quantized(self) -> bool:
        """Whether any tensor is stored in fewer than 16 bits per value."""
        return bool(self._packings)

    def code_format(self, name: str) -> CodeFormat | None:
        """Format of a tensor's codes; None if it has none that kernels support."""
        packing = self._packings.get(name)
        return None if packing is None else packing.code_format(self._stored)

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` of a tensor that has a format."""
        return self._packings[name].codes(self._stored, start, stop)
