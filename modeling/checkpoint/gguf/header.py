"""What a GGUF file says before its tensors: metadata, and where each tensor is.

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
"""Keys, tensors, and values of one array: more than any vocabulary has."""

MAX_STRING_BYTES = 1 << 24

MAX_AXES = 4

SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
"""Of `struct`, by the number of a type; strings and arrays are read otherwise."""

STRING, ARRAY = 8, 9

DEFAULT_ALIGNMENT = 32

Value = int | float | bool | str | list["Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor in a file.

    Attributes:
        shape: rows first, as PyTorch has it.
        format: of its blocks.
        offset: of its first byte in the file.
    """

    shape: tuple[int, ...]
    format: BlockFormat
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: the values of the last axis."""
        return self.format.bytes_of(self.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Header:
    """What a file says before its tensors."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, Stored]


def read_header(path: Path) -> Header:
    """Read the metadata of a file, and check that it holds all of its tensors.

    Raises:
        CheckpointError: this is no GGUF file, of another version, or cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise CheckpointError(
                f"{path}: expected a GGUF file, got one that does not begin so. Fetch it again."
            )
        (version,) = struct.unpack("<I", stream.read(4).ljust(4, b"\0"))
        if version not in VERSIONS:
            raise CheckpointError(
                f"{path}: expected version 2 or 3 of GGUF, little-endian, got {version}. "
                "Convert the model again."
            )
        reader = _Reader(stream, path)
        tensor_count, key_count = reader.count(), reader.count()
        metadata = {reader.string(): reader.value() for _ in range(key_count)}
        found = [_tensor(reader) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise reader.torn(f"an alignment of {alignment!r:.40}")
        start = -(-stream.tell() // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in found:
        stored = Stored(shape=shape, format=block_format(kind, name, path), offset=start + offset)
        _check(path, name, stored, size)
        tensors[name] = stored
    return Header(path=path, metadata=metadata, tensors=tensors)


def _tensor(reader: "_Reader") -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset of the next tensor."""
    name, axes = reader.string(), reader.number("I")
    if not 1 <= axes <= MAX_AXES:
        raise reader.torn(f"a tensor of {axes} axes")
    shape = tuple(reader.number("Q") for _ in range(axes))[::-1]
    return name, shape, reader.number("I"), reader.number("Q")


def _check(path: Path, name: str, stored: Stored, size: int) -> None:
    """Raise CheckpointError unless a tensor is made of whole blocks within the file."""
    if not all(0 < n <= 1 << 40 for n in stored.shape) or stored.shape[-1] % stored.format.width:
        raise CheckpointError(
            f"{path}: expected {name} to have rows of whole blocks of {stored.format.width}, got "
            f"shape {stored.shape}. Fetch it again."
        )
    end = stored.offset + math.prod(stored.shape[:-1]) * stored.row_bytes
    if end > size:
        raise CheckpointError(
            f"{path}: expected at least {end} bytes, for {name}, got {size}. The file was cut "
            "short: fetch it again."
        )


class _Reader:
    """Values of a header, in order."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path

    def torn(self, got: str) -> CheckpointError:
        """An error of a header that makes no sense."""
        return CheckpointError(
            f"{self._path}: expected a whole GGUF file, got {got}. Fetch it again."
        )

    def number(self, kind: str) -> int:
        """The next number of a type of `struct`."""
        (value,) = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return int(value)

    def count(self) -> int:
        """The next number of things."""
        value = self.number("Q")
        if value > MAX_ENTRIES:
            raise self.torn(f"a count of {value}")
        return value

    def string(self) -> str:
        """The next text."""
        size = self.number("Q")
        if size > MAX_STRING_BYTES:
            raise self.torn(f"a text of {size} bytes")
        return self._bytes(size).decode("utf-8", errors="replace")

    def value(self) -> Value:
        """The next value of the metadata."""
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
            raise self.torn("the end of the file within its header")
        return data


def _size(code: str) -> int:
    return struct.calcsize(f"<{code}")
