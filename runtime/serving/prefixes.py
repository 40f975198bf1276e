"""Prefix cache: what was computed for the beginnings of prompts, for others that begin alike.

A prompt is cut into blocks of `GRID` tokens, and a block is kept under a hash of all tokens up to
its end, of the bundle, and of what else decides what is computed: a hash chain, as in vLLM
(https://docs.vllm.ai/en/latest/design/prefix_caching.html). The ids are compared as well. A block
has the states of its tokens; of states that are replaced, what they are after the last one.

Blocks are copied into a row, not shared, since the states of a row lie in one piece. A copy takes a
small part of the time that computing takes.

The next prompt of a conversation mostly goes on where the last one ended, in the middle of a
block. So the tokens after the last whole block of its last prompt are kept, too, where the parts of
prompts do not matter (docs/adr/0031).

A chain is used from its first block on. So the least recent block goes first, and a block always
counts as more recent than those that follow it: none loses what it follows.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ortolan.runtime.engine.runner import GRID
from ortolan.runtime.engine.session import Engine, onnxruntime_version
from ortolan.runtime.engine.slots import Slots, Snapshot
from ortolan.runtime.machine.processor import processor_features
from ortolan.runtime.serving.prefix_counts import PrefixCounts
from ortolan.runtime.serving.prefix_files import PrefixFiles

__all__ = ["CACHE_BYTES", "FOLDER_BYTES", "PrefixCache"]

CACHE_BYTES = 1 << 28
"""256 MiB: 4,096 tokens of a model of 1B parameters."""

FOLDER_BYTES = 1 << 32
"""4 GiB: 65,536 tokens of such a model."""


@dataclass(frozen=True, slots=True)
class _Block:
    ids: bytes
    states: Snapshot

    @property
    def size(self) -> int:
        return _size(self.states)


@dataclass(frozen=True, slots=True)
class _Link:
    """A block of a prompt: its key, that of the block before it, and its ids."""

    key: bytes
    after: bytes
    ids: bytes


class PrefixCache:
    """Keeps blocks in memory, and in files if there is a folder for them.

    One thread at a time looks up and offers; `counts` and `free_bytes` may be read from any.

    Args:
        engine: computes what is kept. Nothing is taken that another bundle, onnxruntime or kind of
            processor computed.
        exact: whether what is kept was computed by exact parts; such blocks and others never mix.
        most_bytes: of the blocks in memory.
        folder: where blocks are kept for later processes, which may share it at any time; made
            where it is missing. `None` for nowhere.
        most_file_bytes: of all files of prefix caches in that folder.

    Raises:
        InputError: the folder can be neither made nor written to.

    Attributes:
        grid: tokens of a block.
    """

    grid = GRID

    def __init__(
        self,
        engine: Engine,
        *,
        exact: bool,
        most_bytes: int = CACHE_BYTES,
        folder: str | os.PathLike[str] | None = None,
        most_file_bytes: int = FOLDER_BYTES,
    ) -> None:
        computed_by = (engine.identity, onnxruntime_version(), *processor_features(), exact, GRID)
        self._root = _hash(repr(computed_by).encode())
        self._most_bytes = most_bytes
        self._keeps_ends = not engine.parts_matter and not engine.mixes_rows
        self._files = None
        if folder is not None:
            self._files = PrefixFiles(Path(folder), most_bytes=most_file_bytes)
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()  # least recent first
        self._counts = PrefixCounts()

    @property
    def counts(self) -> PrefixCounts:
        """What it has done so far, and what it holds."""
        return self._counts

    def free_bytes(self) -> int:
        """Bytes that the cache may still take."""
        return self._most_bytes - self._counts.bytes

    def fetch(self, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Put the longest known beginning of a prompt into an empty row.

        Returns:
            Tokens of the row now, a multiple of `GRID` and fewer than those of the prompt.
        """
        known: list[bytes] = []
        for link in self._chain(ids, (len(ids) - 1) // GRID):
            states = self._find(link, known, slots)
            if states is None:
                break
            slots.extend(states, row=row)
            known.append(link.key)
        self._touch(known)
        if self._files is not None:
            self._files.touch(known)
        tokens = GRID * len(known)
        self._count(prompts=1, hits=int(tokens > 0), tokens=tokens)
        return tokens

    def offer(self, ids: Sequence[int], slots: Slots, row: int, tokens: int) -> None:
        """Keep the first tokens of a row, as far as there is room.

        Args:
            ids: of the row, these and others.
            slots: of replaced states, what they are after `lengths[row]` tokens.
            row: holds at least `tokens` tokens.
            tokens: a multiple of `GRID`.
        """
        known: list[bytes] = []
        for link in self._chain(ids, tokens // GRID):
            if not self._holds(link):
                end = GRID * (len(known) + 1)
                if slots.replaces and end != slots.lengths[row]:
                    break  # what they were is gone
                if not self._keep(link, slots.view(row=row, start=end - GRID, end=end), known):
                    break
            known.append(link.key)
        self._touch(known)

    def fetch_end(self, conversation: bytes, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Add the end of a conversation's last prompt to a row, as far as a prompt shares it.

        Returns:
            Tokens of the row now, fewer than those of the prompt.
        """
        held = slots.lengths[row]
        link = self._end(conversation, ids, held)
        block = self._blocks.get(link.key)
        if block is None or not block.ids.startswith(link.after):
            return held
        if held + block.states.length > len(ids):  # there may be no room for all of it
            return held
        known = np.frombuffer(block.ids[len(link.after) :], "<i4")
        wanted = np.array(ids[held:-1], "<i4")[: len(known)]
        differ = np.flatnonzero(known[: len(wanted)] != wanted)
        shared = int(differ[0]) if len(differ) else len(wanted)
        if shared:
            slots.extend(block.states, row=row)
            slots.rewind(held + shared, row=row)
            self._touch([link.key])
            self._count(tokens=shared)
        return held + shared

    def offer_end(self, conversation: bytes, ids: Sequence[int], slots: Slots, row: int) -> None:
        """Keep the end of a prompt that a row holds, in place of that of the one before."""
        held = len(ids) - len(ids) % GRID
        link = self._end(conversation, ids, held)
        if link.key in self._blocks:
            self._drop(link.key)
        if not self._keeps_ends or held == len(ids):
            return
        view = slots.view(row=row, start=held, end=len(ids))
        blocks = [each.key for each in self._chain(ids, held // GRID)]
        if self._make_room(_size(view), blocks):
            self._put(link, view.copy())
            self._touch(blocks)

    def clear(self) -> None:
        """Forget what is in memory."""
        self._blocks.clear()
        self._count(blocks=-self._counts.blocks, bytes=-self._counts.bytes)

    def close(self) -> None:
        """Forget what is in memory, and wait until everything is in its file."""
        self.clear()
        if self._files is not None:
            self._files.close()

    def _chain(self, ids: Sequence[int], count: int) -> Iterator[_Link]:
        """The first blocks of a prompt."""
        after = self._root
        for start in range(0, count * GRID, GRID):
            part = np.array(ids[start : start + GRID], "<i4").tobytes()
            key = _hash(after + part)
            yield _Link(key, after, part)
            after = key

    def _end(self, conversation: bytes, ids: Sequence[int], held: int) -> _Link:
        """The key of the end of a conversation's prompt, whose first `held` tokens are blocks."""
        after = self._root
        for link in self._chain(ids, held // GRID):
            after = link.key
        part = np.array(ids[held:], "<i4").tobytes()
        return _Link(_hash(b"end" + self._root + conversation), after, after + part)

    def _find(self, link: _Link, known: list[bytes], slots: Slots) -> Snapshot | None:
        block = self._blocks.get(link.key)
        if block is not None and block.ids == link.ids:
            self._write(link, block.states, known)  # unless it has been
            return block.states
        if self._files is None:
            return None
        states = self._files.read(link.key, link.ids, slots, after=link.after)
        if states is not None:
            self._count(read=1)
            if self._make_room(_size(states), known):
                self._put(link, states)
        return states

    def _holds(self, link: _Link) -> bool:
        block = self._blocks.get(link.key)
        if block is not None and block.ids == link.ids:
            return True
        return self._files is not None and self._files.has(link.key)

    def _keep(self, link: _Link, view: Snapshot, known: list[bytes]) -> bool:
        """Copy a block to where there is room for it; whether there is."""
        has_room = self._make_room(_size(view), known)
        if not has_room and self._files is None:
            return False
        states = view.copy()
        if has_room:
            self._put(link, states)
        self._write(link, states, known)
        return True

    def _write(self, link: _Link, states: Snapshot, known: list[bytes]) -> None:
        if self._files is not None:
            self._files.write([*known, link.key], link.ids, states, after=link.after)

    def _make_room(self, size: int, known: list[bytes]) -> bool:
        """Evict what is used least, but none of the blocks that the new one follows."""
        if size > self._most_bytes:
            return False
        self._touch(known)
        before = set(known)
        while self._counts.bytes + size > self._most_bytes:
            key = next(iter(self._blocks))
            if key in before:
                return False
            self._drop(key)
            self._count(evicted=1)
        return True

    def _put(self, link: _Link, states: Snapshot) -> None:
        if link.key in self._blocks:  # of other ids with the same hash
            self._drop(link.key)
        block = self._blocks[link.key] = _Block(link.ids, states)
        self._count(blocks=1, bytes=block.size)

    def _drop(self, key: bytes) -> None:
        self._count(blocks=-1, bytes=-self._blocks.pop(key).size)

    def _touch(self, keys: list[bytes]) -> None:
        """Make the blocks of a chain the most recent ones, the first of them most of all."""
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


def _size(states: Snapshot) -> int:
    return sum(buffer.nbytes for buffer in states.buffers) + 4 * states.length
