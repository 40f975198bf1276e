"""The tensors of safetensors files, a slice at a time.

A file is opened for one slice and closed again, so that nothing stays mapped and reading a
model costs the memory of the slice.
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
"""A header of zero-size tensors costs a thousand times its size to parse."""


class Safetensors:
    """The tensors of one or many safetensors files.

    Raises:
        CheckpointError: a file that is torn, or a tensor in two of them.
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
        """The slice `[start:stop]` along `axis` of one tensor, in its stored dtype.

        A number by itself, which has no axes, is read whole.
        """
        with safe_open(str(self._files[name]), framework="pt") as file:
            if not self._shapes[name]:
                number: Tensor = file.get_tensor(name)  # which has no slices
                return number
            view = file.get_slice(name)
            piece: Tensor = view[start:stop] if axis == 0 else view[:, start:stop]
            return piece.clone()


def _read_header(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one file, its header bounded before it is parsed."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        header = stream.read(min(max(size, 0), MAX_HEADER_BYTES))
    if not 0 < size <= min(MAX_HEADER_BYTES, file.stat().st_size):
        raise CheckpointError(
            f"{file}: expected a safetensors header of at most {MAX_HEADER_BYTES} bytes, "
            f"got {size}. The file is torn, or a pointer that was never fetched."
        )
    try:
        with safe_open(str(file), framework="pt") as tensors:
            _check_names_differ(file, header)
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tuple(tensors.get_slice(name).get_shape())
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: expected a whole safetensors file, got {error}. Fetch it again."
        ) from error


def _check_names_differ(file: Path, header: bytes) -> None:
    """Refuse a name that a header gives twice: libraries differ in which of the two they read."""

    def names_of(pairs: list[tuple[str, object]]) -> None:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise CheckpointError(
                f"{file}: expected a name once, got {twice[0]!r} again. Save the checkpoint again."
            )

    json.loads(header, object_pairs_hook=names_of)
