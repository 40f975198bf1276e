"""Header of a GGUF file: metadata, and the location of every tensor.

Spec: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ortolan.modeling.checkpoint.gguf.blocks import BlockFormat, block_format
from ortolan.modeling.errors import CheckpointError

MAGIC = b"GGUF"

VERSIONS = (2, 3)

MAX_ENTRIES = 1 << 20
"""Limit of keys, tensors and array items; larger than any vocabulary."""

MAX_STRING_BYTES = 1 << 24

MAX_AXES = 4

SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
"""`struct` codes of scalar types, by type number."""

STRING, ARRAY = 8, 9

DEFAULT_ALIGNMENT = 32

Value = int | float | bool | str | list["Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Location of a tensor in a file.

    Attributes:
        shape: rows first, as in PyTorch.
        format: format of its blocks.
        offset: offset of its first byte in the file.
    """

    shape: tuple[int, ...]
    format: BlockFormat
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes per row, the values of the last axis."""
        return self.format.bytes_of(self.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Header:
    """Metadata and tensor locations of a file."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, Stored]


def read_header(path: Path) -> Header:
    """Read the header of a file, and check that the file holds all of its tensors."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise CheckpointError(f"{path}: not a GGUF file. Download it again.")
        (version,) = struct.unpack("<I", stream.read(4).ljust(4, b"\0"))
        if version not in VERSIONS:
            raise CheckpointError(
                f"{path}: GGUF version {version} is not supported, only 2 and 3, little-endian. "
                "Convert the model again."
            )
        reader = _Reader(stream, path)
        tensor_count, key_count = reader.count(), reader.count()
        metadata = {reader.string(): reader.value() for _ in range(key_count)}
        locations = [_tensor(reader) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise reader.torn(f"an alignment of {alignment!r:.40}")
        start = -(-stream.tell() // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in locations:
        stored = Stored(shape=shape, format=block_format(kind, name, path), offset=start + offset)
        _check(path, name, stored, size)
        tensors[name] = stored
    return Header(path=path, metadata=metadata, tensors=tensors)


def _tensor(reader: "_Reader") -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type number and offset of the next tensor."""
    name, axes = reader.string(), reader.number("I")
    if not 1 <= axes <= MAX_AXES:
        raise reader.torn(f"a tensor of {axes} axes")
    shape = tuple(reader.number("Q") for _ in range(axes))[::-1]
    return name, shape, reader.number("I"), reader.number("Q")


def _check(path: Path, name: str, stored: Stored, size: int) -> None:
    """Raise CheckpointError unless a tensor consists of whole blocks inside the file."""
    if not all(0 < n <= 1 << 40 for n in stored.shape) or stored.shape[-1] % stored.format.width:
        raise CheckpointError(
            f"{path}: rows of {name} must be whole blocks of {stored.format.width} (got shape "
            f"{stored.shape}). Download it again."
        )
    end = stored.offset + math.prod(stored.shape[:-1]) * stored.row_bytes
    if end > size:
        raise CheckpointError(
            f"{path}: {name} needs {end} bytes, but the file has {size}. It was truncated: "
            "download it again."
        )


class _Reader:
    """Reads the values of a header in order."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path

    def torn(self, reason: str) -> CheckpointError:
        """Error for an invalid header."""
        return CheckpointError(
            f"{self._path}: not a complete GGUF file: {reason}. Download it again."
        )

    def number(self, kind: str) -> int:
        """Read a number by its `struct` code."""
        (value,) = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return int(value)

    def count(self) -> int:
        """Read a number of items."""
        value = self.number("Q")
        if value > MAX_ENTRIES:
            raise self.torn(f"a count of {value}")
        return value

    def string(self) -> str:
        """Read a string."""
        size = self.number("Q")
        if size > MAX_STRING_BYTES:
            raise self.torn(f"a text of {size} bytes")
        return self._bytes(size).decode("utf-8", errors="replace")

    def value(self) -> Value:
        """Read a metadata value."""
        return self._value(self.number("I"))

    def _value(self, kind: int) -> Value:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array()
        (value,) = struct.unpack(f"<{self._code(kind)}", self._bytes(_size(self._code(kind))))
        plain: Value = value
        return plain

    def _array(self) -> Value:
        kind, count = self.number("I"), self.count()
        if kind == ARRAY:
            raise self.torn("an array of arrays")
        if kind == STRING:
            return [self.string() for _ in range(count)]
        code = self._code(kind)
        return list(struct.unpack(f"<{count}{code}", self._bytes(count * _size(code))))

    def _code(self, kind: int) -> str:
        code = SCALARS[kind] if kind < len(SCALARS) else None
        if code is None:
            raise self.torn(f"a value of type {kind}")
        return code

    def _bytes(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise self.torn("the file ends within its header")
        return data


def _size(code: str) -> int:
    return struct.calcsize(f"<{code}")
