"""Header of a GGUF file: metadata, and the location of every tensor.

Read here rather than by `gguf.GGUFReader`, which takes 30 to 50 times as long for a large
vocabulary, and has no limits.

Spec: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ortolan.modeling.checkpoint.gguf.blocks import BlockFormat, block_format
from ortolan.modeling.errors import CheckpointError

MAGIC = b"GGUF"

ARCHITECTURE = "general.architecture"

VERSIONS = (2, 3)

MAX_ENTRIES = 1 << 20
"""Limit of keys, tensors and array items; larger than any vocabulary."""

MAX_STRING_BYTES = 1 << 24

MAX_AXES = 4

SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""`struct` codes of scalar types, by type number."""

STRING, ARRAY = 8, 9

DEFAULT_ALIGNMENT = 32

Value = int | float | bool | str | list["Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Location of a tensor in a file.

    Attributes:
        shape: rows first, as in PyTorch.
        offset: of its first byte in the file.
    """

    shape: tuple[int, ...]
    format: BlockFormat
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes per row, the values of the last axis."""
        return self.shape[-1] // self.format.width * self.format.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Header:
    """Metadata and tensor locations of a file."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, Stored]

    @property
    def architecture(self) -> str:
        """Name of the architecture; empty if the file names none."""
        name = self.metadata.get(ARCHITECTURE)
        return name if isinstance(name, str) else ""

    @property
    def heads(self) -> tuple[int, int]:
        """Number of query heads, and of key/value heads; 0 if no key states them."""
        queries = self.metadata.get(f"{self.architecture}.attention.head_count")
        keys = self.metadata.get(f"{self.architecture}.attention.head_count_kv", queries)
        first, second = (max(n, 0) if isinstance(n, int) else 0 for n in (queries, keys))
        return first, second


def read_header(path: Path) -> Header:
    """Read the header of a file, and check that the file holds all of its tensors."""
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
        metadata = {reader.string(): reader.value(reader.number("I")) for _ in range(key_count)}
        locations = [reader.location() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise reader.torn(f"an alignment of {alignment!r:.40}")
        start = -(-stream.tell() // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in locations:
        stored = Stored(shape=shape, format=block_format(kind, name, path), offset=start + offset)
        _check(path, name, stored)
        tensors[name] = stored
    return Header(path=path, metadata=metadata, tensors=tensors)


def _check(path: Path, name: str, stored: Stored) -> None:
    """Raise CheckpointError unless a tensor consists of whole blocks inside the file."""
    if not all(0 < n <= 1 << 40 for n in stored.shape) or stored.shape[-1] % stored.format.width:
        raise CheckpointError(
            f"{path}: rows of {name} must be whole blocks of {stored.format.width} (got shape "
            f"{stored.shape}). Download it again."
        )
    end, size = stored.offset + math.prod(stored.shape[:-1]) * stored.row_bytes, path.stat().st_size
    if end > size:
        raise CheckpointError(
            f"{path}: {name} needs {end} bytes, but the file has {size}. It was truncated: "
            "download it again."
        )


class _Reader:
    """Reads the values of a header in order, within the limits."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path

    def torn(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path}: not a complete GGUF file: {reason}. Download it again."
        )

    def number(self, code: str) -> int:
        (value,) = self._numbers(code, 1)
        return int(value)

    def count(self) -> int:
        value = self.number("Q")
        if value > MAX_ENTRIES:
            raise self.torn(f"a count of {value}")
        return value

    def string(self) -> str:
        size = self.number("Q")
        if size > MAX_STRING_BYTES:
            raise self.torn(f"a text of {size} bytes")
        return self._bytes(size).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            plain: Value = self._numbers(self._code(kind), 1)[0]
            return plain
        kind, count = self.number("I"), self.count()
        if kind == ARRAY:
            raise self.torn("an array of arrays")
        if kind == STRING:
            return [self.string() for _ in range(count)]
        return list(self._numbers(self._code(kind), count))

    def location(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type number and offset of a tensor."""
        name, axes = self.string(), self.number("I")
        if not 1 <= axes <= MAX_AXES:
            raise self.torn(f"a tensor of {axes} axes")
        shape = self._numbers("Q", axes)[::-1]
        return name, shape, self.number("I"), self.number("Q")

    def _code(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self.torn(f"a value of type {kind}")
        return SCALARS[kind]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))

    def _bytes(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise self.torn("the file ends within its header")
        return data
