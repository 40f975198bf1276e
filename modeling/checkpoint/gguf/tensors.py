"""Tensors of a GGUF file under Hugging Face names, read a few rows at a time."""

import math
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.modeling.checkpoint.file_tensors import FileTensors
from ortolan.modeling.checkpoint.gguf.architectures import Architecture
from ortolan.modeling.checkpoint.gguf.blocks import CODE_FORMATS, FLOATS, dequantize, read_codes
from ortolan.modeling.checkpoint.gguf.header import Header, Stored
from ortolan.modeling.checkpoint.gguf.names import FALCON_NORMS, names_in_files
from ortolan.modeling.codes import StoredCodes
from ortolan.modeling.lazy_tensor import LazyTensor, lazy_rows
from ortolan.modeling.weights import name_template

FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hold values of the config."""


def read_tensors(header: Header, architecture: Architecture) -> FileTensors:
    """Tensors of a file by their Hugging Face names."""
    has_two_norms = "blk.0.attn_norm_2.weight" in header.tensors
    names = architecture.names + (FALCON_NORMS if has_two_norms else ())
    published = names_in_files(header.architecture, names)
    tensors: dict[str, Tensor] = {}
    for stored_name, stored in header.tensors.items():
        if stored_name in FACTOR_TENSORS:
            continue
        stem, dot, kind = stored_name.rpartition(".")
        template, layer = name_template(stem)
        known = published.get(template)
        # an unknown name stays as it is
        name = stored_name if known is None else known.replace("{}", layer, 1) + dot + kind
        tensor = _converted(stored_name, _stored_tensor(header, stored), architecture, header)
        if known is not None and known.count("{}") == 2 and len(stored.shape) == 3:
            experts = torch.split(tensor, stored.shape[1])
            tensors |= {name.format(number): own for number, own in enumerate(experts)}
        elif len(stored.shape) > 2:
            tensors[name] = torch.unflatten(tensor, 0, stored.shape[:-1])
        else:
            tensors[name] = tensor
    return FileTensors(
        tensors=cast(dict[str, LazyTensor], tensors),
        files=(header.path,),
        is_quantized=any(stored.format.name not in FLOATS for stored in header.tensors.values()),
    )


def read_stored(header: Header, name: str) -> Tensor:
    """Read a whole tensor by its name in the file, float32."""
    stored = header.tensors[name]
    data = _bytes(header, stored, 0, math.prod(stored.shape[:-1]))
    return dequantize(data, stored.format).view(stored.shape).float()


def _stored_tensor(header: Header, stored: Stored) -> Tensor:
    """A tensor as the file has it, `(rows, columns)` or a vector; dequantized as it is read."""
    form, count = stored.format, math.prod(stored.shape[:-1])

    def read(start: int, stop: int) -> Tensor:
        return dequantize(_bytes(header, stored, start, stop), form)

    dtype = FLOATS.get(form.name, torch.float32)
    rows = lazy_rows(torch.empty(count, stored.shape[-1], dtype=dtype, device="meta"), read)
    if form.name in CODE_FORMATS:
        rows.codes = StoredCodes(
            lambda: CODE_FORMATS[form.name],
            lambda start, stop: read_codes(_bytes(header, stored, start, stop), form),
        )
    return rows.flatten().float() if len(stored.shape) == 1 else rows


def _converted(name: str, tensor: Tensor, architecture: Architecture, header: Header) -> Tensor:
    """A tensor of a file as the checkpoint had it."""
    stem, _, kind = name.rpartition(".")
    part = stem.rpartition(".")[2]
    queries, keys = header.heads
    if architecture.turns_pairs and part in ("attn_q", "attn_k"):
        return tensor[_halves(len(tensor), queries if part == "attn_q" else keys)]
    if architecture.groups_qkv and part == "attn_qkv":
        return tensor[_grouped(len(tensor), queries, keys)]
    if kind == "weight" and part.endswith("norm") and architecture.norm_offset:
        return tensor - architecture.norm_offset
    return tensor.T if kind == "weight" and part in architecture.transposed else tensor


def _halves(rows: int, heads: int) -> Tensor:
    """Row order of heads whose halves alternate in the file."""
    if heads < 1 or rows % (2 * heads):
        return torch.arange(rows)
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()


def _grouped(rows: int, queries: int, keys: int) -> Tensor:
    """Row order by group of heads (queries, key, value), for a file that has all queries first."""
    if keys < 1 or rows % (queries + 2 * keys):
        return torch.arange(rows)
    dim = rows // (queries + 2 * keys)
    parts = torch.split(torch.arange(rows), [queries * dim, keys * dim, keys * dim])
    return torch.cat([part.view(keys, -1) for part in parts], dim=1).flatten()


def _bytes(header: Header, stored: Stored, start: int, stop: int) -> NDArray[np.uint8]:
    """Bytes of rows, uint8 `(rows, bytes per row)`."""
    count, offset = stop - start, stored.offset + start * stored.row_bytes
    data = np.fromfile(header.path, np.uint8, count * stored.row_bytes, offset=offset)
    return data.reshape(count, stored.row_bytes)
