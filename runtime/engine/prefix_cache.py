"""Prefix cache: states computed for one prompt, reused by prompts that begin with the same tokens.

A prompt is cut into blocks of `GRID` tokens. The key of a block is a hash of everything before it
and of its ids; the first key covers the bundle and all else that decides results:

    root = hash(bundle and adapter, onnxruntime, processor, exact, GRID)
    key1 = hash(root + ids[0:128])
    key2 = hash(key1 + ids[128:256])     ...a hash chain, as in vLLM

(https://docs.vllm.ai/en/latest/design/prefix_caching.html). Ids are compared as well, so colliding
hashes do no harm. A block holds the states that grew by its tokens and, for states that are
replaced, their values after its last token. Blocks are copied into rows, not shared, since the
states of a row are contiguous; copying is far cheaper than computing.

The next prompt of a conversation usually continues where the last one ended, in the middle of a
block. So the tokens after the last whole block are cached too, unless it matters where prompts are
cut (docs/adr/0031).

A chain is used from its first block on. Eviction takes the least recently used block, and a block
always counts as more recent than those after it, so no block loses the ones that it follows.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.prefix_files import PrefixFiles
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.machine.processor import processor_features

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine

CACHE_BYTES = 1 << 28
"""Default size in memory: 256 MiB, or 4,096 tokens of a model with 1B parameters."""

FOLDER_BYTES = 1 << 32
"""Default size on disk: 4 GiB, or 65,536 tokens of such a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCounts:
    """Statistics of a prefix cache.

    Attributes:
        prompts: prompts looked up.
        hits: prompts that began with a cached block.
        tokens: tokens that did not have to be computed.
        blocks: blocks in memory now.
        bytes: size of these blocks.
        evicted: blocks evicted from memory.
        read: blocks read from files.
    """

    prompts: int = 0
    hits: int = 0
    tokens: int = 0
    blocks: int = 0
    bytes: int = 0
    evicted: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True)
class _Link:
    """A block of a prompt: its key, the key of the block before it, and its ids."""

    key: bytes
    after: bytes
    ids: bytes


class PrefixCache:
    """Caches blocks in memory and, given a folder, in files.

    Calls come from one thread at a time; `counts` and `free_bytes` may be read from any thread.
    """

    def __init__(
        self,
        engine: "Engine",
        *,
        exact: bool,
        most_bytes: int = CACHE_BYTES,
        folder: str | os.PathLike[str] | None = None,
        most_file_bytes: int = FOLDER_BYTES,
    ) -> None:
        computed_by = (onnxruntime_version(), *processor_features(), exact, GRID)
        self._roots = tuple(  # by adapter
            _hash(repr((identity, *computed_by)).encode()) for identity in engine.identities
        )
        self._most_bytes = most_bytes
        self._caches_ends = engine.exactness.tokens_multiple == 1
        self._files = None
        if folder is not None:
            self._files = PrefixFiles(Path(folder), most_bytes=most_file_bytes)
        # ids and states by key, least recent first
        self._blocks: OrderedDict[bytes, tuple[bytes, Snapshot]] = OrderedDict()
        self._counts = PrefixCounts()

    @property
    def counts(self) -> PrefixCounts:
        """Statistics so far."""
        return self._counts

    def free_bytes(self) -> int:
        """Bytes that the cache may still take."""
        return self._most_bytes - self._counts.bytes

    def fetch(self, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Copy the longest prefix cached for a row's adapter into it, empty and large enough.

        Writes the states and `slots.lengths[row]`.
        """
        keys: list[bytes] = []
        root = self._root(slots, row)
        for link in self._chain(ids, (len(ids) - 1) // GRID, root):
            states = self._find(link, keys, slots, row)
            if states is None:
                break
            slots.extend(states, row=row)
            keys.append(link.key)
        self._touch(keys)
        if self._files is not None:
            self._files.touch(keys)
        tokens = GRID * len(keys)
        self._count(prompts=1, hits=int(tokens > 0), tokens=tokens)
        return tokens

    def offer(self, ids: Sequence[int], slots: Slots, row: int, tokens: int) -> None:
        """Cache the first tokens of a row, if there is room.

        Call it whenever part of a prompt has completed one block or more. In exact mode these
        tokens must have been computed by exact chunks of prompts, never by decode steps.
        """
        keys: list[bytes] = []
        for link in self._chain(ids, tokens // GRID, self._root(slots, row)):
            has_file = self._files is not None and self._files.has(link.key)
            if not has_file and self._held(link) is None:
                end = GRID * (len(keys) + 1)
                if slots.replaces and end != slots.lengths[row]:
                    break  # the states after this block are gone
                if not slots.holds(end - GRID, row=row):
                    break  # these tokens have left the windows
                if not self._insert(link, slots.view(row=row, start=end - GRID, end=end), keys):
                    break
            keys.append(link.key)
        self._touch(keys)

    def fetch_end(self, conversation: bytes, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Append what a prompt shares with the cached end of its conversation's last prompt."""
        held = slots.lengths[row]
        link = self._end(conversation, ids, held, self._root(slots, row))
        kept, states = self._blocks.get(link.key, (b"", None))
        if states is None or not kept.startswith(link.after):
            return held
        if held + states.length > len(ids):  # the row may not have room for all of it
            return held
        cached = np.frombuffer(kept[len(link.after) :], "<i8")
        wanted = np.array(ids[held:-1], "<i8")[: len(cached)]
        differ = np.flatnonzero(cached[: len(wanted)] != wanted)
        shared = int(differ[0]) if len(differ) else len(wanted)
        if shared:
            slots.extend(states, row=row)
            slots.rewind(held + shared, row=row)
            self._touch([link.key])
            self._count(tokens=shared)
        return held + shared

    def offer_end(self, conversation: bytes, ids: Sequence[int], slots: Slots, row: int) -> None:
        """Cache the end of a prompt that a row holds, replacing that of the conversation's last."""
        held, root = len(ids) - len(ids) % GRID, self._root(slots, row)
        link = self._end(conversation, ids, held, root)
        if link.key in self._blocks:
            self._drop(link.key)
        if not self._caches_ends or held == len(ids):
            return
        view = slots.view(row=row, start=held, end=len(ids))
        keys = [block.key for block in self._chain(ids, held // GRID, root)]
        if self._make_room(_size(view), keys) and (states := _copied(view)) is not None:
            self._put(link, states)
            self._touch(keys)

    def close(self) -> None:
        """Drop all blocks in memory, and wait until pending files are written."""
        self._blocks.clear()
        self._count(blocks=-self._counts.blocks, bytes=-self._counts.bytes)
        if self._files is not None:
            self._files.close()

    def _root(self, slots: Slots, row: int) -> bytes:
        """The key that the chains of a row's adapter begin with."""
        return self._roots[int(slots.adapters[row])]

    def _chain(self, ids: Sequence[int], count: int, root: bytes) -> Iterator[_Link]:
        """The first blocks of a prompt."""
        after = root
        for start in range(0, count * GRID, GRID):
            part = np.array(ids[start : start + GRID], "<i8").tobytes()
            key = _hash(after + part)
            yield _Link(key, after, part)
            after = key

    def _end(self, conversation: bytes, ids: Sequence[int], held: int, root: bytes) -> _Link:
        """The end of a conversation's prompt, after the blocks of its first `held` tokens."""
        after = root
        for link in self._chain(ids, held // GRID, root):
            after = link.key
        part = np.array(ids[held:], "<i8").tobytes()
        return _Link(_hash(b"end" + root + conversation), after, after + part)

    def _find(self, link: _Link, before: list[bytes], slots: Slots, row: int) -> Snapshot | None:
        held = self._held(link)
        if held is not None:
            self._write(link, held, before)  # it may not be in a file yet
            return held
        if self._files is None:
            return None
        states = self._files.read(link.key, link.ids, slots, after=link.after, row=row)
        if states is not None:
            self._count(read=1)
            if self._make_room(_size(states), before):
                self._put(link, states)
        return states

    def _held(self, link: _Link) -> Snapshot | None:
        """The states of a block in memory."""
        ids, states = self._blocks.get(link.key, (b"", None))
        return states if ids == link.ids else None

    def _insert(self, link: _Link, view: Snapshot, before: list[bytes]) -> bool:
        """Copy a block to memory, to a file, or both; `False` if neither has room."""
        has_room = self._make_room(_size(view), before)
        if not has_room and self._files is None:
            return False
        states = _copied(view)
        if states is None:
            return False
        if has_room:
            self._put(link, states)
        self._write(link, states, before)
        return True

    def _write(self, link: _Link, states: Snapshot, before: list[bytes]) -> None:
        if self._files is not None:
            self._files.write([*before, link.key], link.ids, states, after=link.after)

    def _make_room(self, size: int, before: list[bytes]) -> bool:
        """Evict the least recent blocks, but none of those that the new block follows."""
        if size > self._most_bytes:
            return False
        self._touch(before)
        protected = set(before)
        while self._counts.bytes + size > self._most_bytes:
            key = next(iter(self._blocks))
            if key in protected:
                return False
            self._drop(key)
            self._count(evicted=1)
        return True

    def _put(self, link: _Link, states: Snapshot) -> None:
        if link.key in self._blocks:  # other ids with the same hash
            self._drop(link.key)
        self._blocks[link.key] = link.ids, states
        self._count(blocks=1, bytes=_size(states))

    def _drop(self, key: bytes) -> None:
        self._count(blocks=-1, bytes=-_size(self._blocks.pop(key)[1]))

    def _touch(self, keys: list[bytes]) -> None:
        """Make a chain the most recent, its first block most of all."""
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def _count(self, **changes: int) -> None:
        counts = self._counts
        self._counts = replace(
            counts, **{name: getattr(counts, name) + more for name, more in changes.items()}
        )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _copied(view: Snapshot) -> Snapshot | None:
    """A copy; `None` if memory is short: then the states are not cached."""
    try:
        return view.copy()
    except MemoryError:
        return None


def _size(states: Snapshot) -> int:
    return sum(buffer.nbytes for buffer in states.buffers) + 4 * states.length
