"""Tensors of safetensors files, read slice by slice.

Rows are read from the file, not mapped, so that reading a model costs the memory of one slice.
`safe_open` would parse the header for each of them, and takes six times as long.
"""

import json
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor, stored_tensor

MAX_HEADER_BYTES = 8 << 20
"""A header of empty tensors costs a thousand times its size to parse."""


DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by their names in a header."""


class _Stored(NamedTuple):
    """A tensor of a file, and the place of its first byte."""

    name: str
    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int, axis: int) -> Tensor:
        """A slice along an axis; scalars are whole."""
        if axis == 0 or not self.shape:
            return self._rows(start, stop)
        with safe_open(str(self.file), framework="pt") as file:
            part = (*[slice(None)] * axis, slice(start, stop))
            piece: Tensor = file.get_slice(self.name)[part]
            return piece.clone()

    def _rows(self, start: int, stop: int) -> Tensor:
        dtype = DTYPES.get(self.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{self.file}: {self.name} must be of a type among {', '.join(DTYPES)} (got "
                f"{self.dtype}). Save it in another type."
            )
        rows, *rest = self.shape or (1,)
        start, stop, _ = slice(start, stop).indices(rows) if self.shape else (0, 1, 1)
        row_bytes = math.prod(rest) * dtype.itemsize
        bytes_read = torch.empty(max(stop - start, 0) * row_bytes, dtype=torch.uint8)
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.offset + start * row_bytes)
            unread = bytes_read.numpy().data
            while unread and (count := stream.readinto(unread)):
                unread = unread[count:]
        if unread:
            raise CheckpointError(f"{self.file} has become shorter. Copy the checkpoint again.")
        return bytes_read.view(dtype).view((stop - start, *rest) if self.shape else ())


def read_safetensors(file: Path) -> Iterator[tuple[str, LazyTensor]]:
    """The tensors of a file; the size of its header is checked before parsing."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        header = stream.read(min(max(size, 0), MAX_HEADER_BYTES))
    if not 0 < size <= min(MAX_HEADER_BYTES, file.stat().st_size):
        raise CheckpointError(
            f"{file}: a safetensors header must be from 1 to {MAX_HEADER_BYTES} bytes (got "
            f"{size}). The file is torn, or a Git LFS pointer."
        )
    try:
        with safe_open(str(file), framework="pt") as tensors:  # checks the header
            _check_names_differ(file, header)
            fields = json.loads(header)
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                entry = fields[name]
                offset = len(prefix) + size + entry["data_offsets"][0]
                stored = _Stored(name, file, offset, entry["dtype"], tuple(entry["shape"]))
                # A type that PyTorch lacks is an error when the tensor is read.
                dtype = DTYPES.get(stored.dtype, torch.uint8)
                yield name, stored_tensor(stored.shape, stored.read, dtype)
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: not a complete safetensors file: {error}. Download it again."
        ) from error


def _check_names_differ(file: Path, header: bytes) -> None:
    """Refuse duplicate names: libraries differ in which of the tensors they read."""

    def names_of(pairs: list[tuple[str, object]]) -> None:
        counts = Counter(name for name, _ in pairs)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise CheckpointError(
                f"{file}: {twice[0]!r} occurs twice in the header. Save the checkpoint again."
            )

    json.loads(header, object_pairs_hook=names_of)
