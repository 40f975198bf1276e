"""Tensors of a GGUF file under Hugging Face names, read a few rows at a time."""

import math
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.checkpoint.file_tensors import FileTensors
from ortolan.modeling.checkpoint.gguf.architectures import Architecture
from ortolan.modeling.checkpoint.gguf.blocks import CODE_FORMATS, FLOATS, dequantize, read_codes
from ortolan.modeling.checkpoint.gguf.header import Header
from ortolan.modeling.checkpoint.gguf.names import FALCON_NORMS, names_in_files
from ortolan.modeling.codes import StoredCodes
from ortolan.modeling.lazy_tensor import LazyTensor, stored_tensor
from ortolan.modeling.weights import name_template

FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hold values of the config."""


class Heads(NamedTuple):
    """Number of query heads, and of key/value heads."""

    queries: int
    keys: int


def read_tensors(header: Header, architecture: Architecture, heads: Heads) -> FileTensors:
    """Tensors of a file by their Hugging Face names."""
    tensors: dict[str, LazyTensor] = {}
    for name, stored in header.tensors.items():
        if name in FACTOR_TENSORS:
            continue
        published = published_name(name, architecture, header)
        tensor = _converted(name, _tensor(header, name), architecture, heads)
        if "{}" in published and len(stored.shape) == 3:
            experts = torch.split(tensor, stored.shape[1])
            tensors |= {published.format(i): cast(LazyTensor, own) for i, own in enumerate(experts)}
        elif len(stored.shape) > 2:
            tensors[published] = cast(LazyTensor, torch.unflatten(tensor, 0, stored.shape[:-1]))
        else:
            tensors[published] = tensor
    is_quantized = any(stored.format.name not in FLOATS for stored in header.tensors.values())
    return FileTensors(tensors=tensors, files=(header.path,), is_quantized=is_quantized)


def read_stored(header: Header, name: str) -> Tensor:
    """Read a whole tensor by its name in the file, float32."""
    stored = header.tensors[name]
    data = _bytes(header, name, 0, math.prod(stored.shape[:-1]))
    return dequantize(data, stored.format).view(stored.shape).float()


def published_name(name: str, architecture: Architecture, header: Header) -> str:
    """Hugging Face name of a tensor; its GGUF name if it is unknown."""
    stem, dot, kind = name.rpartition(".")
    template, layer = name_template(stem)
    has_two_norms = "blk.0.attn_norm_2.weight" in header.tensors
    names = architecture.names + (FALCON_NORMS if has_two_norms else ())
    published = names_in_files(header.architecture, names).get(template)
    return name if published is None else f"{published.replace('{}', layer, 1)}{dot}{kind}"


def _converted(
    name: str, tensor: LazyTensor, architecture: Architecture, heads: Heads
) -> LazyTensor:
    """A tensor of a file as the checkpoint had it."""
    stem, _, kind = name.rpartition(".")
    part = stem.rpartition(".")[2]
    rows = len(tensor)
    converted: Tensor = tensor
    if architecture.turns_pairs and part in ("attn_q", "attn_k"):
        converted = tensor[_halves(rows, heads.queries if part == "attn_q" else heads.keys)]
    elif architecture.groups_qkv and part == "attn_qkv":
        converted = tensor[_grouped(rows, heads)]
    if architecture.norm_offset and part.endswith("norm") and kind == "weight":
        converted = converted - architecture.norm_offset
    if part in architecture.transposed and kind == "weight":
        converted = converted.T
    return cast(LazyTensor, converted)


def _tensor(header: Header, name: str) -> LazyTensor:
    """A tensor as the file has it, `(rows, columns)` or a vector; dequantized as it is read."""
    stored = header.tensors[name]
    form = stored.format
    if len(stored.shape) == 1:
        return stored_tensor(
            stored.shape, lambda start, stop, _: read_stored(header, name)[start:stop]
        )
    count, columns = math.prod(stored.shape[:-1]), stored.shape[-1]

    def read(start: int, stop: int, axis: int) -> Tensor:
        first, last = (0, count) if axis else (start, stop)
        rows = dequantize(_bytes(header, name, first, last), form)
        return rows[:, start:stop] if axis else rows

    codes = None
    if form.name in CODE_FORMATS:
        codes = StoredCodes(
            lambda: CODE_FORMATS[form.name],
            lambda start, stop: read_codes(_bytes(header, name, start, stop), form),
        )
    dtype = FLOATS.get(form.name, torch.float32)
    return stored_tensor((count, columns), read, dtype, axes=(0,), codes=codes)


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
