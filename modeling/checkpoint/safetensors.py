"""Tensors of safetensors files, read slice by slice.

A file is opened for each slice and closed again, so nothing stays mapped, and reading a model
costs the memory of one slice.
"""

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ortolan.modeling.checkpoint.shards import add_once
from ortolan.modeling.errors import CheckpointError

MAX_HEADER_BYTES = 8 << 20
"""A header of empty tensors costs a thousand times its size to parse."""


class Safetensors:
    """Tensors of one or more safetensors files.

    Raises:
        CheckpointError: a file is torn, or two files have the same tensor.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            for name, shape in _read_header(file):
                add_once(self._files, name, file)
                self._shapes[name] = shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return dict(self._shapes)

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return sorted(set(self._files.values()))

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` of a tensor along `axis`, in its stored dtype; scalars are whole."""
        with safe_open(str(self._files[name]), framework="pt") as file:
            if not self._shapes[name]:
                number: Tensor = file.get_tensor(name)  # a scalar has no slices
                return number
            view = file.get_slice(name)
            piece: Tensor = view[start:stop] if axis == 0 else view[:, start:stop]
            return piece.clone()


def _read_header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one file; its header's size is checked before parsing."""
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
        with safe_open(str(file), framework="pt") as tensors:
            _check_names_differ(file, header)
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tuple(tensors.get_slice(name).get_shape())
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
