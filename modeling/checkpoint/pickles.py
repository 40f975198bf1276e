"""Tensors of `pytorch_model.bin` and its shards, read slice by slice.

Only the pickle's table of tensors is read, with PyTorch's reader that runs no code from the file.
Values are mapped for one slice and unmapped again.
"""

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor, stored_tensor


class Place(NamedTuple):
    """Location of a tensor's values in a file: `length` bytes from `offset`."""

    file: Path
    offset: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, start: int, stop: int, axis: int) -> Tensor:
        """A slice along an axis; scalars are whole."""
        if 0 in self.shape:
            whole = torch.empty(self.shape, dtype=self.dtype)
        else:
            # Copy on write: PyTorch has no read-only tensors.
            data = np.memmap(self.file, np.uint8, "c", self.offset, (self.length,))
            values = torch.frombuffer(data, dtype=self.dtype)
            whole = values.as_strided(self.shape, self.strides)
        if not self.shape:
            return whole.clone()
        piece = whole[(*[slice(None)] * axis, slice(start, stop))]
        return piece.clone(memory_format=torch.contiguous_format)


def read_pickle(file: Path) -> Iterator[tuple[str, LazyTensor]]:
    """The tensors of a file written by `torch.save`."""
    for name, tensor in _table(file).items():
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        # PyTorch records the offset of tensors on the device "meta", which have no values.
        start = tensor.untyped_storage()._checkpoint_offset or 0
        offset = start + int(tensor.storage_offset()) * tensor.itemsize
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        length = (last + 1) * tensor.itemsize
        if 0 not in shape and offset + length > file.stat().st_size:
            raise CheckpointError(
                f"{file}: {name} lies outside of the file ({length} bytes from {offset}). Download "
                "it again."
            )
        place = Place(file, offset, length, tensor.dtype, shape, strides)
        yield name, stored_tensor(shape, place.read, tensor.dtype)


def _table(file: Path) -> dict[str, Tensor]:
    """Tensors of one file, without values."""
    with file.open("rb") as stream:
        if stream.read(4) != b"PK\x03\x04":
            raise CheckpointError(
                f"{file}: written by a PyTorch before 1.6. In a place you trust, save it again: "
                "torch.save(torch.load(FILE, weights_only=True), FILE)."
            )
    try:
        table: object = torch.load(file, map_location="meta", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file}: this pickle would run code{_called(error)}. Do not trust this checkpoint."
        ) from error
    except Exception as error:  # for a torn file, the reader raises nearly anything
        raise CheckpointError(
            f"{file}: not a file written by torch.save: {type(error).__name__}: "
            f"{_first_line(error)}. Download it again."
        ) from error
    if not isinstance(table, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in table.items()
    ):
        raise CheckpointError(
            f"{file}: holds objects other than tensors by name. Save the model's state_dict()."
        )
    return table


def _called(error: Exception) -> str:
    """Function that the pickle would call, if PyTorch's message names it."""
    match = re.search(r"GLOBAL ([\w.]{1,80}\w)", str(error))
    return f", {match.group(1)}" if match else ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]
