"""Weights from a checkpoint into a bundle, a few rows at a time.

Memory is bounded by `CHUNK_BYTES`, whatever the size of the model or of its largest tensor.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.modeling.weights import Weights

ALIGNMENT = 4096
"""Tensors start on a page, so that the runtime can map each of them."""

CHUNK_BYTES = 8 << 20
"""Bytes of rows in flight."""

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A file of weights, and where each one lies in it.

    Attributes:
        placements: offset and length in bytes, by initializer.
    """

    name: str
    placements: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of one initializer, from a table in memory or from a checkpoint."""

    name: str
    shape: tuple[int, ...]
    rows: Callable[[int, int], Tensor]


def write_blob(
    models: Sequence[ir.Model],
    weights: Weights,
    tables: Mapping[str, Tensor],
    folder: Path,
    *,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> Blob:
    """Write every initializer of some graphs into one file named by its hash.

    Args:
        models: graphs whose initializers carry names of `weights` or `tables`.
        weights: the checkpoint's weights.
        tables: computed tensors.
        folder: where to write.
        dtype: what to store.
        progress: told of every chunk.

    Raises:
        ExportError: a value that is finite in the checkpoint is not in `dtype`.
    """
    sources = list(_sources(models, weights, tables))
    total = sum(_size(source.shape, dtype) for source in sources)
    placements: dict[str, tuple[int, int]] = {}
    digest, offset, done = sha256(), 0, 0
    unnamed = folder / "weights.tmp"
    with unnamed.open("wb") as file:
        for source in sources:
            padding = bytes(-offset % ALIGNMENT)
            file.write(padding)
            digest.update(padding)
            offset += len(padding)
            start = offset
            for chunk in _chunks(source, dtype):
                file.write(chunk)
                digest.update(chunk)
                offset, done = offset + len(chunk), done + len(chunk)
                if progress is not None:
                    progress(done, total)
            placements[source.name] = (start, offset - start)
        file.flush()
        os.fsync(file.fileno())
    name = f"weights-{digest.hexdigest()[:16]}.bin"
    unnamed.rename(folder / name)
    return Blob(name=name, placements=placements)


def bind(model: ir.Model, blob: Blob) -> None:
    """Point every initializer of a graph at its place in the blob, in place."""
    for name, value in model.graph.initializers.items():
        offset, length = blob.placements[name]
        if value.dtype is None or not isinstance(value.shape, ir.Shape):
            raise ExportError(f"{name}: expected a typed initializer, got {value}.")
        value.const_value = ir.ExternalTensor(
            blob.name, offset, length, value.dtype, shape=value.shape, name=name
        )


def _sources(
    models: Sequence[ir.Model], weights: Weights, tables: Mapping[str, Tensor]
) -> Iterator[_Source]:
    """Every initializer once, in the order of the graphs."""
    for name in dict.fromkeys(name for model in models for name in model.graph.initializers):
        if name in tables:
            table = tables[name]
            yield _Source(name, tuple(table.shape), lambda a, b, table=table: table[a:b])
        else:
            rows = weights.rows
            yield _Source(
                name, weights.shape(name), lambda a, b, name=name, rows=rows: rows(name, a, b)
            )


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _chunks(source: _Source, dtype: torch.dtype) -> Iterator[memoryview]:
    """The bytes of a tensor, row-major, a few rows at a time."""
    row_bytes = max(_size(source.shape[1:], dtype), 1)
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, source.shape[0], step):
        stored = source.rows(start, min(start + step, source.shape[0]))
        converted = stored.to(dtype).contiguous()
        if dtype == torch.float16 and not bool(converted.isfinite().all()):
            raise ExportError(
                f"{source.name}: expected values that fit float16, got "
                f"{float(stored.float().abs().max()):.3g}. Export with --precision fp32."
            )
        yield memoryview(converted.numpy()).cast("B")
