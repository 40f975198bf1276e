"""The tensors of a GGUF file under the names of Hugging Face, read a few rows at a time."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.checkpoint.gguf.architectures import Architecture
from ortolan.modeling.checkpoint.gguf.blocks import CODE_FORMATS, dequantize, read_codes
from ortolan.modeling.checkpoint.gguf.header import Header
from ortolan.modeling.checkpoint.gguf.names import FALCON_ONE_NORM, FALCON_TWO_NORMS, Names
from ortolan.modeling.weights import CodedRows, CodeFormat, join_codes, name_template

FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are values of a config."""

GAP = 16
"""Rows of no use between others that are read with them, which is faster than a read for each."""


class Heads(NamedTuple):
    """Heads of a model: of queries, and of keys and values."""

    queries: int
    keys: int


class Placed(NamedTuple):
    """A tensor of a file as a checkpoint has it.

    Attributes:
        name: in the file.
        order: the row of the file that holds each row, int64; None where it is the same.
        transposed: the checkpoint has `(in, out)`.
        offset: what the file adds to it.
        expert: of those that the tensor of the file holds; None where it holds none.
    """

    name: str
    order: Tensor | None = None
    transposed: bool = False
    offset: float = 0.0
    expert: int | None = None


def read_stored(header: Header, name: str) -> Tensor:
    """A whole tensor by its name in the file, float32."""
    rows = math.prod(header.tensors[name].shape[:-1])
    return _rows(header, name, 0, rows).view(header.tensors[name].shape).float()


class GgufTensors:
    """The tensors of a file by the names that Hugging Face gives them."""

    def __init__(self, header: Header, architecture: Architecture, heads: Heads) -> None:
        """Place every tensor.

        Args:
            header: of the file.
            architecture: that the file has.
            heads: of the model.
        """
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
        """The slice `[start:stop]` along `axis` of one tensor, dequantized to float32."""
        placed = self._placed[name]
        shape = self._shape(placed)
        if len(shape) == 1:
            whole = read_stored(self._header, placed.name) - placed.offset
            return (whole if placed.order is None else whole[placed.order])[start:stop]
        turned = axis ^ placed.transposed
        if turned:
            found = self._rows(placed, 0, shape[0])[:, start:stop]
        else:
            found = self._rows(placed, start, stop)
        return (found.T if placed.transposed else found).contiguous()

    def code_format(self, name: str) -> CodeFormat | None:
        """The format of a matrix whose codes kernels take as they are."""
        placed = self._placed[name]
        stored = self._header.tensors[placed.name]
        is_matrix = len(stored.shape) == 2 and not placed.transposed and not placed.offset
        return CODE_FORMATS.get(stored.format.name) if is_matrix else None

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """The codes of rows `[start:stop]` of a matrix that has some."""
        parts = [
            CodedRows(*(part[rows] for part in self._codes(name, first, last)))
            for first, last, rows in self._spans(self._placed[name], start, stop)
        ]
        return join_codes(parts)

    def _shape(self, placed: Placed) -> tuple[int, ...]:
        """The shape of a tensor of the file, or of one of its experts."""
        shape = self._header.tensors[placed.name].shape
        return shape if placed.expert is None else shape[1:]

    def _codes(self, name: str, start: int, stop: int) -> CodedRows:
        placed = self._placed[name]
        return read_codes(
            _bytes(self._header, placed.name, start, stop),
            self._header.tensors[placed.name].format,
        )

    def _rows(self, placed: Placed, start: int, stop: int) -> Tensor:
        """Rows of a matrix, in the order of the checkpoint."""
        spans = [
            _rows(self._header, placed.name, first, last)[rows]
            for first, last, rows in self._spans(placed, start, stop)
        ]
        return spans[0] if len(spans) == 1 else torch.cat(spans)

    def _spans(
        self, placed: Placed, start: int, stop: int
    ) -> Iterator[tuple[int, int, Tensor | slice]]:
        """Rows of the file to read, and which of them are those of the checkpoint."""
        if placed.order is None:
            first = (placed.expert or 0) * self._shape(placed)[0]
            yield first + start, first + stop, slice(None)
            return
        wanted = placed.order[start:stop]
        step = wanted.diff()
        cuts = ((step < 1) | (step > GAP)).nonzero().flatten() + 1
        for span in torch.tensor_split(wanted, cuts):
            first, last = int(span[0]), int(span[-1]) + 1
            yield first, last, span - first


def published_name(name: str, architecture: Architecture, header: Header) -> str:
    """What Hugging Face calls a tensor; its own name if nothing does."""
    stem, dot, kind = name.rpartition(".")
    template, layer = name_template(stem)
    found = {**_norms_of_falcon(header), **architecture.names}.get(template)
    return name if found is None else f"{found.replace('{}', layer, 1)}{dot}{kind}"


def _norms_of_falcon(header: Header) -> Names:
    """Falcon calls the same norm by two names: with a second one, it is that of the mlp."""
    has_two = "blk.0.attn_norm_2.weight" in header.tensors
    return FALCON_TWO_NORMS if has_two else FALCON_ONE_NORM


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
    """Rows of each head: the first half of them, then the other; the file has them in turn."""
    if heads < 1 or rows % (2 * heads):
        return torch.arange(rows)
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()


def _grouped(rows: int, heads: Heads) -> Tensor:
    """Rows of each group of heads, its queries, key and value; the file has all queries first."""
    if heads.keys < 1 or rows % (heads.queries + 2 * heads.keys):
        return torch.arange(rows)
    dim = rows // (heads.queries + 2 * heads.keys)
    sizes = [heads.queries * dim, heads.keys * dim, heads.keys * dim]
    parts = torch.split(torch.arange(rows), sizes)
    return torch.cat([part.view(heads.keys, -1) for part in parts], dim=1).flatten()


def _rows(header: Header, name: str, start: int, stop: int) -> Tensor:
    """Rows of a tensor, `(rows, columns)`."""
    return dequantize(_bytes(header, name, start, stop), header.tensors[name].format)


def _bytes(header: Header, name: str, start: int, stop: int) -> NDArray[np.uint8]:
    """The bytes of some rows, uint8 `(rows, bytes of a row)`."""
    stored = header.tensors[name]
    data = np.fromfile(
        header.path,
        np.uint8,
        (stop - start) * stored.row_bytes,
        offset=stored.offset + start * stored.row_bytes,
    )
    return data.reshape(stop - start, stored.row_bytes)
