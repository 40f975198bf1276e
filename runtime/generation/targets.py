"""Texts behind their sources, all of one length, which grow by a token each per step.

Knows ids, rows and buffers. Does not know text, scores, or when to stop.

Buffers and everything bound to them stay from one request to the next of the same number of rows:
binding takes longer than a step of a small model.

Shape letters: B rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.cache import Cache
from ortolan.runtime.engine.session import Encoded, Engine
from ortolan.runtime.engine.step import Step

__all__ = ["Targets"]


class _Rows:
    """Rows with a step of their own, bound to their buffers as far as `capacity`."""

    __slots__ = ("cache", "capacity", "identity", "ids_B", "logits_BV", "step")

    def __init__(self, engine: Engine, cache: Cache, per_source: int) -> None:
        self.cache = cache
        self.step = Step(
            engine, batch=cache.batch, new_tokens=1, positions=1, rows_per_source=per_source
        )
        self.ids_B = self.step.ids[:, 0]
        self.logits_BV = self.step.logits[:, 0]
        self.identity = np.arange(cache.batch)
        self.capacity = 0


class Targets:
    """The rows of a batch: each source has as many, one after the other.

    Not to be used from two threads at once.
    """

    __slots__ = ("_all", "_engine", "_length", "_per_source", "_rows", "_source", "_source_bytes")

    def __init__(self, engine: Engine, *, sources: int, per_source: int) -> None:
        self._engine = engine
        self._per_source = per_source
        cache = engine.cache(batch=sources * per_source)
        self._rows = self._all = _Rows(engine, cache, per_source)
        self._source: Encoded | None = None
        self._source_bytes = 0
        self._length = 0

    @property
    def size(self) -> tuple[int, int]:
        """Sources to begin with, and rows of each."""
        return self._all.cache.batch // self._per_source, self._per_source

    @property
    def size_bytes(self) -> int:
        """Memory of the buffers and the sources that are bound."""
        buffers = (*self._all.cache.buffers(), self._all.logits_BV)
        return self._source_bytes + sum(buffer.nbytes for buffer in buffers)

    def begin(self, source: Encoded) -> None:
        """Start over with empty texts in all rows, behind other sources."""
        self._rows = self._all
        self._rows.cache.clear()
        self._length = 0
        self._source, self._source_bytes = source, source.size_bytes
        if self._rows.capacity:
            self._rows.step.bind_source(source)

    def step(self, tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Append a token to every row and compute what follows it.

        Args:
            tokens: one id per row, each within the vocabulary.

        Returns:
            Logits `(B, V)`, overwritten by the next step; the caller may overwrite them too.

        Raises:
            ContextLengthError: the rows would be longer than the context; nothing has changed.
            ForkedError: the process was forked after the engine was made.
        """
        rows, length = self._rows, self._length + 1
        if length > rows.capacity:
            self._rebind(length)
        step = rows.step
        rows.ids_B[:] = tokens
        step.last_index.fill(self._length)
        step.total.fill(length)
        step.run()
        self._length = length
        rows.cache.lengths[:] = [length] * rows.cache.batch
        return rows.logits_BV

    def reorder(self, parents: Sequence[int]) -> None:
        """Let each row go on from what another was: row `b` from `parents[b]`."""
        parents_B = np.asarray(parents)
        moved = np.flatnonzero(parents_B != self._rows.identity)
        if moved.size:
            self._rows.cache.copy_rows(parents_B[moved], moved)

    def keep(self, rows: Sequence[int], sources: Sequence[int]) -> None:
        """Go on with some of the rows alone, in this order, until the next `begin`.

        Args:
            rows: which; as many of each source that is kept.
            sources: which are kept, in the order of their rows.
        """
        if self._source is not None:
            self._source = self._source.take(sources)
        self.reorder([*rows, *self._rows.identity[len(rows) :].tolist()])
        self._rows = _Rows(self._engine, self._rows.cache.part(len(rows)), self._per_source)

    def _rebind(self, length: int) -> None:
        rows = self._rows
        rows.step.release()
        rows.capacity = 0
        rows.cache.reserve(length)
        rows.step.bind(rows.cache.buffers())
        if self._source is not None:
            rows.step.bind_source(self._source)
        rows.capacity = rows.cache.capacity
