"""Weights from a checkpoint into a bundle, a few rows at a time.

Memory is bounded by `CHUNK_BYTES`, whatever the size of the model or of its largest tensor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.modeling.weights import Weights
from ortolan.runtime.manifest import File

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

    file: File
    placements: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    name = f"weights-{digest.hexdigest()[:16]}.bin"
    unnamed.rename(folder / name)
    described = File(name=name, size=offset, sha256=digest.hexdigest())
    return Blob(file=described, placements=placements)


def bind(model: ir.Model, blob: Blob) -> None:
    """Point every initializer of a graph at its place in the blob, in place."""
    for name, value in model.graph.initializers.items():
        offset, length = blob.placements[name]
        if value.dtype is None or not isinstance(value.shape, ir.Shape):
            raise ExportError(f"{name}: expected a typed initializer, got {value}.")
        value.const_value = ir.ExternalTensor(
            blob.file.name, offset, length, value.dtype, shape=value.shape, name=name
        )


def _sources(
    models: Sequence[ir.Model], weights: Weights, tables: Mapping[str, Tensor]
) -> Iterator[_Source]:
    """Every initializer once, in the order of the graphs.

    Shapes are those of the graph: with a shorter context, it has fewer rows of a learned table
    than the checkpoint.
    """
    initializers = {
        name: value for model in models for name, value in model.graph.initializers.items()
    }
    for name, value in initializers.items():
        if value.shape is None:
            raise ExportError(f"{name}: expected an initializer with a shape, got {value}.")
        rows = partial(_slice, tables[name]) if name in tables else partial(weights.rows, name)
        yield _Source(name=name, shape=tuple(value.shape.numpy()), rows=rows)


def _slice(table: Tensor, start: int, stop: int) -> Tensor:
    return table[start:stop]


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
        yield converted.view(-1).view(torch.uint8).numpy().data
