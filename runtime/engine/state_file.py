"""State files: token ids, and the states that a model computed for them.

    offset  bytes  little-endian
         0      8  b"ortolan" and a zero
         8      4  version
        12      4  size of the header, padded
        16     32  SHA-256 of everything else in the file
        48         header: JSON, padded with spaces
        ...        the ids, int32, and then each buffer of the snapshot in C order, each padded

Parts end at multiples of 64 bytes. A file is written under a temporary name and renamed, so it is
complete or absent. A reader needs no more memory than the file has bytes, and returns nothing from
a file in which a single byte has changed.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan import files
from ortolan.runtime import limits
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.errors import StateFileError

if TYPE_CHECKING:
    from ortolan.runtime.engine.slots import Slots

VERSION = 1
"""Version of the format."""

_MAGIC = b"ortolan\0"
_START = struct.Struct("<8sII")
_DIGEST_BYTES = 32
_CONTENT_AT = _START.size + _DIGEST_BYTES
_ALIGNMENT = 64
_IDS = np.dtype("<i4")

_Size = Annotated[int, Meta(ge=0, le=limits.MAX_DIMENSION)]


class _Buffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The type and the shape of one buffer."""

    dtype: Annotated[str, Meta(pattern=r"\A(float32|float16|int8)\Z")]
    shape: Annotated[tuple[_Size, ...], Meta(max_length=limits.MAX_STATE_RANK)]

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON header; `after` is the key of what the tokens follow, empty if they start a row."""

    identity: Annotated[str, Meta(max_length=limits.MAX_LABEL_LENGTH)]
    after: Annotated[str, Meta(max_length=limits.MAX_LABEL_LENGTH)]
    tokens: Annotated[int, Meta(ge=0, le=limits.MAX_CONTEXT)]
    buffers: Annotated[tuple[_Buffer, ...], Meta(max_length=limits.MAX_STATES)]

    @property
    def sizes(self) -> list[int]:
        """Sizes of the ids and of each buffer, in bytes."""
        return [_IDS.itemsize * self.tokens, *(buffer.size for buffer in self.buffers)]


def write_states(
    path: Path, ids: Sequence[int], states: Snapshot, *, after: str = "", sync: bool = True
) -> None:
    """Write or replace a state file."""
    text = _header_text(states, after)
    start = _START.pack(_MAGIC, VERSION, len(text))
    with files.replaced(path, is_private=True, is_synced=sync) as file:
        digest = hashlib.sha256(start)
        file.write(start + bytes(_DIGEST_BYTES))
        for part in (memoryview(text), *_contents(ids, states)):
            digest.update(part)
            file.write(part)
        file.seek(len(start))
        file.write(digest.digest())


def file_size(states: Snapshot, *, after: str = "") -> int:
    """Size of the file that `write_states` would write, in bytes."""
    sizes = (_IDS.itemsize * states.length, *(buffer.nbytes for buffer in states.buffers))
    return _CONTENT_AT + len(_header_text(states, after)) + sum(map(_padded, sizes))


def read_states(
    path: Path, slots: "Slots", *, after: str = "", row: int = 0
) -> tuple[list[int], Snapshot]:
    """Read a state file."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
        raise _refused(path, "a file", "something else")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start, digest = file.read(_START.size), file.read(_DIGEST_BYTES)
        text = file.read(_header_size(path, start, size))
        header = _decoded(path, text)
        content_size = sum(map(_padded, header.sizes))
        if size != _CONTENT_AT + len(text) + content_size:
            raise _refused(path, f"{_CONTENT_AT + len(text) + content_size} bytes", f"{size}")
        content = np.empty(content_size, np.uint8)
        if file.readinto(content.data) != content_size:
            raise _refused(path, f"{size} bytes", "fewer")
    actual = hashlib.sha256(start + text)
    actual.update(content.data)
    if actual.digest() != digest:
        raise _refused(path, "the bytes that were written", "others")
    return _placed(path, header, content, slots, after, row)


def _header_text(states: Snapshot, after: str) -> bytes:
    buffers = (_Buffer(dtype=str(array.dtype), shape=array.shape) for array in states.buffers)
    header = _Header(
        identity=states.identity, after=after, tokens=states.length, buffers=tuple(buffers)
    )
    text = msgspec.json.encode(header)
    return text.ljust(_padded(_CONTENT_AT + len(text)) - _CONTENT_AT)


def _header_size(path: Path, start: bytes, size: int) -> int:
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise _refused(path, "a file that Ortolan saved", "another")
    _, version, header_size = _START.unpack(start)
    if version != VERSION:
        raise _refused(path, f"version {VERSION}", f"{version}")
    if header_size > size:
        raise _refused(path, f"a header of at most {size} bytes", f"{header_size}")
    return int(header_size)


def _decoded(path: Path, text: bytes) -> _Header:
    try:
        return msgspec.json.decode(text, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(path, "a header", str(error)[:300]) from error


def _placed(
    path: Path, header: _Header, content: NDArray[np.uint8], slots: "Slots", after: str, row: int
) -> tuple[list[int], Snapshot]:
    """Cut the content into ids and buffers, if it belongs to these slots."""
    identity = slots.identity(row=row)
    if header.identity != identity:
        raise _refused(
            path, f"states of the bundle and adapter {identity[:12]}", header.identity[:12]
        )
    if header.after != after:
        raise _refused(
            path,
            f"tokens after {after[:12] or 'none'}",
            f"some after {header.after[:12] or 'none'}",
        )
    layout = [(buffer.shape, np.dtype(buffer.dtype)) for buffer in header.buffers]
    windowed = slots.windowed_of(layout)
    may_hold = slots.windows.may_hold(header.tokens, windowed)
    if not may_hold or layout != slots.layout(header.tokens, windowed):
        raise _refused(path, "the states of the bundle", "others")
    parts, end = [], 0
    for size in header.sizes:
        parts.append(content[end : end + size])
        end += _padded(size)
    buffers = [
        part.view(dtype).reshape(shape)
        for part, (shape, dtype) in zip(parts[1:], layout, strict=True)
    ]
    ids: list[int] = parts[0].view(_IDS).tolist()
    return ids, Snapshot(
        identity=header.identity,
        length=header.tokens,
        buffers=tuple(buffers),
        windowed=windowed,
    )


def _contents(ids: Sequence[int], states: Snapshot) -> Iterator[memoryview]:
    """The bytes of the ids and of each buffer, each followed by its padding."""
    for array in (np.array(ids, _IDS), *states.buffers):
        part = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        yield part.data
        yield memoryview(bytes(_padded(len(part)) - len(part)))


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _refused(path: Path, expected: str, got: str) -> StateFileError:
    return StateFileError(
        f"{path.name}: expected {expected}, got {got}. "
        "Use the file unchanged, with the bundle that it was saved from."
    )
