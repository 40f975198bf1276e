"""Weights from a checkpoint into a bundle, a few rows at a time.

Memory is bounded by `CHUNK_BYTES`, whatever the size of the model or of its largest tensor.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol, Self

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor

from ortolan import files
from ortolan.export.errors import ExportError
from ortolan.export.progress import Progress, silent
from ortolan.export.values import static_shape, type_of
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.manifest import File

ALIGNMENT = 4096
"""Tensors start on a page, so that the runtime can map each of them."""

CHUNK_BYTES = 8 << 20
"""Bytes of rows in flight."""


class Witness(Protocol):
    """Records what the weights of a bundle must compute (`ortolan.export.proof.witness`)."""

    def reads(self, name: str) -> bool:
        """Whether a product reads an initializer."""
        ...

    def weight(self, name: str, start: int, values_NK: Tensor) -> None:
        """Record rows of a product's weight; ignore any other initializer."""
        ...

    def initializer(self, name: str, start: int, values: Tensor) -> None:
        """Record rows of an initializer, which may be columns of its product."""
        ...

    def stored(self, name: str, digest: str) -> None:
        """Record the sha256 of an initializer that no product reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A file of weights, and where each one is in it.

    Attributes:
        placements: offset and length in bytes, by initializer.
    """

    file: File
    placements: Mapping[str, tuple[int, int]]


class BlobWriter:
    """A file of tensors that grows one tensor at a time and is named by its hash at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        total: int,
        witness: Witness,
        progress: Progress = silent,
    ) -> None:
        """Start the file.

        Args:
            folder: where to write.
            total: bytes of all tensors to come, for `progress`.
            witness: records what is written.
            progress: called after every chunk.
        """
        self.witness = witness
        self._folder = folder
        self._unnamed = folder / "weights.tmp"
        self._file = files.create(self._unnamed)
        self._digest = sha256()
        self._offset = self._written = 0
        self._total = total
        self._progress = progress
        self._placements: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._placements

    def add(self, name: str, chunks: Iterable[memoryview]) -> None:
        """Append one tensor, row-major, on a page of its own."""
        self._write(bytes(pages(self._offset) - self._offset))
        start, digest = self._offset, sha256()
        is_stored = not self.witness.reads(name)
        for chunk in chunks:
            self._write(chunk)
            if is_stored:
                digest.update(chunk)
            self._written += len(chunk)
            self._progress("weights", self._written, self._total)
        self._placements[name] = (start, self._offset - start)
        if is_stored:
            self.witness.stored(name, digest.hexdigest())

    def alias(self, name: str, of: str) -> None:
        """Let a second initializer read the bytes of a first."""
        self._placements[name] = self._placements[of]

    def finish(self) -> Blob:
        """Close the file and give it its name."""
        self._file.close()
        digest = self._digest.hexdigest()
        name = f"weights-{digest[:16]}.bin"
        files.rename(self._unnamed, self._folder / name)
        described = File(name=name, size=self._offset, sha256=digest)
        return Blob(file=described, placements=self._placements)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)


def initializer_bytes(models: Iterable[ir.Model]) -> int:
    """Bytes of all initializers of some graphs, each counted once."""
    values = {name: value for model in models for name, value in model.graph.initializers.items()}
    return sum(_nbytes(value) for value in values.values())


def pages(size: int) -> int:
    """Bytes of whole pages for a tensor."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def page_bytes(models: Iterable[ir.Model], *, without: Container[str]) -> int:
    """Bytes of the pages of all initializers, each counted once, but for some."""
    values = {name: value for model in models for name, value in model.graph.initializers.items()}
    return sum(pages(_nbytes(value)) for name, value in values.items() if name not in without)


def write_rest(
    writer: BlobWriter,
    models: Sequence[ir.Model],
    weights: Weights,
    tables: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
) -> None:
    """Write every initializer that is not yet written, a few rows at a time.

    Shapes are those of the graph: with a shorter context, it has fewer rows of a learned table
    than the checkpoint.

    Args:
        writer: where to.
        models: graphs whose other initializers have data, or names of `weights` or `tables`.
        weights: the checkpoint's weights.
        tables: computed tensors.
        dtype: of weights as they are stored; tables have the type that the graph reads.

    Raises:
        ExportError: a value that is finite in the checkpoint is not in `dtype`.
    """
    for model in models:
        for name, value in model.graph.initializers.items():
            if name not in writer:
                own = _own_table(value)
                table = tables.get(name) if own is None else own
                rows = partial(weights.rows, name) if table is None else partial(_slice, table)
                kept = dtype if table is None else to_torch_dtype(type_of(value))
                writer.add(name, _chunks(writer.witness, name, static_shape(value), rows, kept))


def narrowed(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values converted to another type.

    Raises:
        ExportError: one that is finite is not in float16, whose largest number is 65504.
    """
    converted = values.to(dtype)
    if dtype == torch.float16 and not bool(converted.isfinite().all()):
        raise ExportError(
            f"{name}: expected values that fit float16, got "
            f"{float(values.float().abs().max()):.3g}. Export with --precision bf16 for a GPU, "
            "or fp32 for the CPU."
        )
    return converted


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, row-major."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def bind(model: ir.Model, blob: Blob) -> None:
    """Point every initializer of a graph at its place in the blob, in place."""
    for name, value in model.graph.initializers.items():
        offset, length = blob.placements[name]
        if value.dtype is None or not isinstance(value.shape, ir.Shape):
            raise ExportError(f"{name}: expected a typed initializer, got {value}.")
        value.const_value = ir.ExternalTensor(
            blob.file.name, offset, length, value.dtype, shape=value.shape, name=name
        )


def _own_table(value: ir.Value) -> Tensor | None:
    """The data that an initializer has of its own."""
    data = value.const_value
    if data is None:
        return None
    flat = torch.frombuffer(bytearray(data.tobytes()), dtype=to_torch_dtype(data.dtype))
    return flat.reshape(static_shape(value))


def _slice(table: Tensor, start: int, stop: int) -> Tensor:
    return table[start:stop] if table.dim() else table


def _nbytes(value: ir.Value) -> int:
    if value.dtype is None:
        raise ExportError(f"{value.name}: expected a typed initializer, got {value}.")
    return math.ceil(math.prod(static_shape(value)) * value.dtype.bitwidth / 8)


def _chunks(
    witness: Witness,
    name: str,
    shape: tuple[int, ...],
    rows: Callable[[int, int], Tensor],
    dtype: torch.dtype,
) -> Iterator[memoryview]:
    row_bytes = max(math.prod(shape[1:]) * dtype.itemsize, 1)
    step = max(1, CHUNK_BYTES // row_bytes)
    length = shape[0] if shape else 1  # a number by itself
    for start in range(0, length, step):
        stored = narrowed(name, rows(start, min(start + step, length)), dtype)
        witness.initializer(name, start, stored)
        yield raw(stored)
