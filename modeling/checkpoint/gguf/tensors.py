"""Tensors of a GGUF file under Hugging Face names, read a few rows at a time."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.checkpoint.gguf.architectures import Architecture
from ortolan.modeling.checkpoint.gguf.blocks import CODE_FORMATS, FLOATS, dequantize, read_codes
from ortolan.modeling.checkpoint.gguf.header import Header
from ortolan.modeling.checkpoint.gguf.names import FALCON_NORMS, names_in_files
from ortolan.modeling.codes import CodedRows, CodeFormat, join_codes
from ortolan.modeling.lazy_tensor import row_spans
from ortolan.modeling.weights import name_template

FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hold values of the config."""


class Heads(NamedTuple):
    """Number of query heads, and of key/value heads."""

    queries: int
    keys: int


class Placed(NamedTuple):
    """A tensor of a file, and how to convert it to the checkpoint's.

    Attributes:
        name: name in the file.
        order: row of the file for each row of the checkpoint, int64; None if they are the same.
        transposed: the checkpoint stores `(in, out)`.
        offset: added by the file.
        expert: index into the experts stacked in the file; None if they are not.
    """

    name: str
    order: Tensor | None = None
    transposed: bool = False
    offset: float = 0.0
    expert: int | None = None


def read_stored(header: Header, name: str) -> Tensor:
    """Read a whole tensor by its name in the file, float32."""
    rows = math.prod(header.tensors[name].shape[:-1])
    return _rows(header, name, 0, rows).view(header.tensors[name].shape).float()


class GgufTensors:
    """Tensors of a file by their Hugging Face names."""

    def __init__(self, header: Header, architecture: Architecture, heads: Heads) -> None:
        """Locate every tensor."""
        self._header = header
        self._placed: dict[str, Placed] = {}
        for name, stored in header.tensors.items():
            if name in FACTOR_TENSORS:
                continue
            placed = _place(name, header, architecture, heads)
            published = published_name(name, architecture, header)
            if "{}" in published and len(stored.shape) == 3:
                experts = range(stored.shape[0])
                self._placed |= {published.format(i): placed._replace(expert=i) for i in experts}
            else:
                self._placed[published] = placed

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {
            name: shape[::-1] if placed.transposed else shape
            for name, placed in self._placed.items()
            for shape in [self._shape(placed)]
        }

    def files(self) -> list[Path]:
        """The file."""
        return [self._header.path]

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`, dequantized to float32."""
        placed = self._placed[name]
        shape = self._shape(placed)
        if len(shape) == 1:
            whole = read_stored(self._header, placed.name) - placed.offset
            return (whole if placed.order is None else whole[placed.order])[start:stop]
        turned = axis ^ placed.transposed
        if turned:
            rows = self._rows(placed, 0, shape[0])[:, start:stop]
        else:
            rows = self._rows(placed, start, stop)
        return (rows.T if placed.transposed else rows).contiguous()

    def is_quantized(self) -> bool:
        """Whether any tensor is stored in fewer than 16 bits per value."""
        return any(stored.format.name not in FLOATS for stored in self._header.tensors.values())

    def code_format(self, name: str) -> CodeFormat | None:
        """Format of a matrix whose codes kernels can use unchanged; None for others."""
        placed = self._placed[name]
        stored = self._header.tensors[placed.name]
        is_matrix = len(stored.shape) == 2 and not placed.transposed and not placed.offset
        return CODE_FORMATS.get(stored.format.name) if is_matrix else None

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` of a matrix that has a format."""
        parts = [
            CodedRows(*(part[rows] for part in self._codes(name, first, last)))
            for first, last, rows in self._spans(self._placed[name], start, stop)
        ]
        return join_codes(parts)

    def _shape(self, placed: Placed) -> tuple[int, ...]:
        """Shape of a tensor of the file, or of one of its experts."""
        shape = self._header.tensors[placed.name].shape
        return shape if placed.expert is None else shape[1:]

    def _codes(self, name: str, start: int, stop: int) -> CodedRows:
        placed = self._placed[name]
        return read_codes(
            _bytes(self._header, placed.name, start, stop),
            self._header.tensors[placed.name].format,
        )

    def _rows(self, placed: Placed, start: int, stop: int) -> Tensor:
        """Rows of a matrix in the checkpoint's order."""
        spans = [
            _rows(self._header, placed.name, first, last)[rows]
            for first, last, rows in self._spans(placed, start, stop)
        ]
        return spans[0] if len(spans) == 1 else torch.cat(spans)

    def _spans(
        self, placed: Placed, start: int, stop: int
    ) -> Iterator[tuple[int, int, Tensor | slice]]:
        """Ranges of rows of the file to read, and which rows of each range to use."""
        if placed.order is None:
            first = (placed.expert or 0) * self._shape(placed)[0]
            yield first + start, first + stop, slice(None)
        else:
            yield from row_spans(placed.order[start:stop])


def published_name(name: str, architecture: Architecture, header: Header) -> str:
    """Hugging Face name of a tensor; its GGUF name if it is unknown."""
    stem, dot, kind = name.rpartition(".")
    template, layer = name_template(stem)
    has_two_norms = "blk.0.attn_norm_2.weight" in header.tensors
    names = architecture.names + (FALCON_NORMS if has_two_norms else ())
    published = names_in_files(header.architecture, names).get(template)
    return name if published is None else f"{published.replace('{}', layer, 1)}{dot}{kind}"


def _place(name: str, header: Header, architecture: Architecture, heads: Heads) -> Placed:
    stem, _, kind = name.rpartition(".")
    part = stem.rpartition(".")[2]
    rows = header.tensors[name].shape[0]
    order = None
    if architecture.turns_pairs and part in ("attn_q", "attn_k"):
        order = _halves(rows, heads.queries if part == "attn_q" else heads.keys)
    elif architecture.groups_qkv and part == "attn_qkv":
        order = _grouped(rows, heads)
    is_gain = part.endswith("norm") and kind == "weight"
    return Placed(
        name=name,
        order=order,
        transposed=part in architecture.transposed and kind == "weight",
        offset=architecture.norm_offset if is_gain else 0.0,
    )


def _halves(rows: int, heads: int) -> Tensor:
    """Row order of heads whose halves alternate in the file."""
    if heads < 1 or rows % (2 * heads):
        return torch.arange(rows)
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()


def _grouped(rows: int, heads: Heads) -> Tensor:
    """Row order by group of heads (queries, key, value), for a file that has all queries first."""
    if heads.keys < 1 or rows % (heads.queries + 2 * heads.keys):
        return torch.arange(rows)
    dim = rows // (heads.queries + 2 * heads.keys)
    sizes = [heads.queries * dim, heads.keys * dim, heads.keys * dim]
    parts = torch.split(torch.arange(rows), sizes)
    return torch.cat([part.view(heads.keys, -1) for part in parts], dim=1).flatten()


def _rows(header: Header, name: str, start: int, stop: int) -> Tensor:
    """Dequantized rows of a tensor, `(rows, columns)`."""
    return dequantize(_bytes(header, name, start, stop), header.tensors[name].format)


def _bytes(header: Header, name: str, start: int, stop: int) -> NDArray[np.uint8]:
    """Bytes of rows, uint8 `(rows, bytes per row)`."""
    stored = header.tensors[name]
    data = np.fromfile(
        header.path,
        np.uint8,
        (stop - start) * stored.row_bytes,
        offset=stored.offset + start * stored.row_bytes,
    )
    return data.reshape(stop - start, stored.row_bytes)
