"""Writes weights to the weight files of a bundle, a few rows at a time.

Memory is bounded by `CHUNK_BYTES`, however large the model and its tensors are.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Self

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor

from ortolan import files
from ortolan.export.errors import ExportError
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.sizes import pages
from ortolan.export.values import static_shape, type_of
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.manifest import File

CHUNK_BYTES = 8 << 20
"""Bytes of rows in memory."""

FULL_BYTES, MOST_BYTES = 1 << 30, 1_900_000_000
"""A weight file takes no more tensors from the first size on, and none that would take it beyond
the second. Browsers cannot open files of 2 GiB. A larger tensor has a file of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """The weight files, and the place of every initializer: file, offset and length in bytes."""

    files: tuple[File, ...]
    placements: Mapping[str, tuple[int, int, int]]


class BlobWriter:
    """Files that grow by one tensor at a time, and are named by their hashes."""

    def __init__(
        self,
        folder: Path,
        *,
        sizes: Mapping[str, int],
        sums: WeightSums,
        progress: Progress = silent,
    ) -> None:
        """Start the file; `sizes`, the bytes of every initializer, decide when a file is full."""
        self.sums = sums
        self._folder = folder
        self._unnamed = folder / "weights.tmp"
        self._written, self._sizes, self._total = 0, sizes, sum(sizes.values())
        self._progress = progress
        self._finished: list[File] = []
        self._placements: dict[str, tuple[int, int, int]] = {}
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._placements

    def add(self, name: str, chunks: Iterable[memoryview], *, alias: str | None = None) -> None:
        """Append a tensor, row-major, on a new page; `alias` reads the same bytes."""
        size = max(self._sizes.get(key, 0) for key in (name, alias or name))
        if self._offset >= FULL_BYTES or (self._offset and pages(self._offset) + size > MOST_BYTES):
            self._finish()
            self._start()
        self._write(bytes(pages(self._offset) - self._offset))
        start, digest = self._offset, sha256()
        is_stored = not self.sums.reads(name)
        for chunk in chunks:
            self._write(chunk)
            if is_stored:
                digest.update(chunk)
            self._written += len(chunk)
            self._progress("weights", self._written, self._total, name)
        self._placements[name] = (len(self._finished), start, self._offset - start)
        if alias is not None:
            self.alias(alias, name)
        if is_stored:
            self.sums.stored(name, digest.hexdigest())

    def alias(self, name: str, of: str) -> None:
        """Let one initializer read the bytes of another."""
        self._placements[name] = self._placements[of]

    def finish(self) -> Blob:
        """Close and name the last file."""
        self._finish()
        return Blob(files=tuple(self._finished), placements=self._placements)

    def _start(self) -> None:
        self._file, self._digest, self._offset = files.create(self._unnamed), sha256(), 0

    def _finish(self) -> None:
        self._file.close()
        digest = self._digest.hexdigest()
        name = f"weights-{digest[:16]}.bin"
        files.rename(self._unnamed, self._folder / name)
        self._finished.append(File(name=name, size=self._offset, sha256=digest))

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)


def write_rest(
    writer: BlobWriter,
    models: Sequence[ir.Model],
    weights: Weights,
    tables: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
) -> None:
    """Write every initializer that is not written yet, a few rows at a time.

    Shapes come from the graph, which has fewer rows of a learned position table than the checkpoint
    if its context is shorter.
    """
    for model in models:
        for name, value in model.graph.initializers.items():
            if name not in writer:
                data = _data(value)
                table = tables.get(name) if data is None else data
                rows = partial(weights.rows, name) if table is None else partial(_slice, table)
                stored = dtype if table is None else to_torch_dtype(type_of(value))
                shape = static_shape(value)
                chunks = _chunks(writer.sums, name, shape, rows, stored)
                writer.add(name, chunks)


def narrowed(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert values to another type."""
    converted = values.to(dtype)
    if dtype == torch.float16 and not bool(converted.isfinite().all()):
        raise ExportError(
            f"{name} has values of up to {float(values.float().abs().max()):.3g}, too large for "
            "float16. Export with --precision bf16 for a GPU, or fp32 for the CPU."
        )
    return converted


def raw(tensor: Tensor) -> memoryview:
    """Bytes of a tensor, row-major."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def bind(model: ir.Model, blob: Blob) -> None:
    """Point every initializer of a graph to its place in the weight files."""
    for name, value in model.graph.initializers.items():
        number, offset, length = blob.placements[name]
        if value.dtype is None or not isinstance(value.shape, ir.Shape):
            raise ExportError(f"{name}: this initializer has no type or shape.")
        value.const_value = ir.ExternalTensor(
            blob.files[number].name, offset, length, value.dtype, shape=value.shape, name=name
        )


def _data(value: ir.Value) -> Tensor | None:
    """Data in the initializer itself, if any."""
    data = value.const_value
    if data is None:
        return None
    flat = torch.frombuffer(bytearray(data.tobytes()), dtype=to_torch_dtype(data.dtype))
    return flat.reshape(static_shape(value))


def _slice(table: Tensor, start: int, stop: int) -> Tensor:
    return table[start:stop] if table.dim() else table


def _chunks(
    sums: WeightSums,
    name: str,
    shape: tuple[int, ...],
    rows: Callable[[int, int], Tensor],
    dtype: torch.dtype,
) -> Iterator[memoryview]:
    row_bytes = max(math.prod(shape[1:]) * dtype.itemsize, 1)
    step = max(1, CHUNK_BYTES // row_bytes)
    length = shape[0] if shape else 1  # a scalar
    for start in range(0, length, step):
        stored = narrowed(name, rows(start, min(start + step, length)), dtype)
        sums.initializer(name, start, stored)
        yield raw(stored)
