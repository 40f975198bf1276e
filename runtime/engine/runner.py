"""Prefill and decode: tokens in, logits out, states updated in a cache.

Knows ids, rows and lengths. Does not know text, sampling, or when to stop.

Prefill takes one row at a time, in chunks: kernels take several new tokens over a past only for
a batch of 1, and work can be cancelled only between calls. Decode takes one token for every row.

Shape letters: B rows, R positions, V vocabulary.
"""

from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.attention_kernels import CHUNK, chunk_tokens
from ortolan.runtime.engine.cache import Cache
from ortolan.runtime.engine.session import Encoded, Engine
from ortolan.runtime.engine.step import Step

__all__ = ["Decoder", "chunks", "feed", "prefill"]


def feed(
    engine: Engine,
    cache: Cache,
    ids: Sequence[int],
    *,
    positions: Sequence[int],
    row: int = 0,
    logits_RV: NDArray[np.float32] | None = None,
    source: Encoded | None = None,
) -> NDArray[np.float32]:
    """Append tokens to a row in one call of the graph.

    Args:
        engine: the sessions to compute with.
        cache: whose states to append to.
        ids: at least one id, each within the vocabulary.
        positions: indices into `ids` to give logits for, at least one.
        row: which row of the cache.
        logits_RV: where to write the logits; `None` for a new array.
        source: what the row stands behind, for a decoder behind an encoder.

    Returns:
        The logits, `(R, V)`.

    Raises:
        ContextLengthError: the row would be longer than the context; nothing has changed.
    """
    length = cache.lengths[row] + len(ids)
    # a total beyond the capacity would make the kernel give a longer buffer than the one bound
    cache.reserve(length)
    step = Step(engine, batch=1, new_tokens=len(ids), positions=len(positions), logits=logits_RV)
    step.ids[0] = ids
    step.last_index[0] = length - 1
    step.total[()] = length
    step.positions[0] = positions
    step.bind(cache.buffers(row))
    if source is not None:
        step.bind_source(source)
    step.run()
    cache.lengths[row] = length
    logits: NDArray[np.float32] = step.logits[0]
    return logits


def chunks(
    engine: Engine, cache: Cache, ids: Sequence[int], *, row: int = 0, most: int = CHUNK
) -> Iterator[tuple[int, Sequence[int]]]:
    """Cut tokens into what one call takes, while the row grows by them.

    Args:
        engine: says how many fit into a call.
        cache: of the row.
        ids: what to cut.
        row: which row of the cache.
        most: new tokens of one call at most.

    Yields:
        Where each part begins, and the part.
    """
    start = 0
    while start < len(ids):
        size = min(most, chunk_tokens(engine.heads, cache.lengths[row]))
        yield start, ids[start : start + size]
        start += size


def prefill(
    engine: Engine,
    cache: Cache,
    ids: Sequence[int],
    *,
    row: int = 0,
    chunk: int = CHUNK,
    cancelled: Callable[[], bool] = lambda: False,
    source: Encoded | None = None,
) -> NDArray[np.float32] | None:
    """Append tokens to a row, a chunk at a time.

    Args:
        engine: the sessions to compute with.
        cache: whose states to append to.
        ids: at least one id, each within the vocabulary.
        row: which row of the cache.
        chunk: most new tokens of one call.
        cancelled: asked before every call.
        source: what the row stands behind, for a decoder behind an encoder.

    Returns:
        The logits of the last position, `(V,)`; `None` when it was cancelled, after which the
        row holds the chunks before that.

    Raises:
        ContextLengthError: the row would be longer than the context; nothing has changed.
    """
    cache.reserve(cache.lengths[row] + len(ids))
    logits: NDArray[np.float32] | None = None
    for _, part in chunks(engine, cache, ids, row=row, most=chunk):
        if cancelled():
            return None
        # One position of every chunk, though only the last chunk's is of use: not every kernel
        # is to be trusted with an empty tensor, and one row of logits is nothing beside a chunk.
        last = [len(part) - 1]
        logits = feed(engine, cache, part, positions=last, row=row, source=source)[0]
    return logits


class Decoder:
    """Appends one token to every row of a cache per step.

    Everything is bound once per capacity: a step writes a few numbers, runs the graph and gives
    its logits in place. Not to be used from two threads at once.

    Attributes:
        cache: the rows.
        logits: of each row `(V,)`, overwritten by every step.
    """

    __slots__ = (
        "_capacity",
        "_ids_B",
        "_last_index_B",
        "_logits_BV",
        "_source",
        "_step",
        "_total",
        "cache",
        "logits",
    )

    def __init__(self, engine: Engine, cache: Cache, source: Encoded | None = None) -> None:
        """Prepare for the first step; `source` is what the rows stand behind, if anything."""
        self.cache = cache
        self._source = source
        self._step = Step(engine, batch=cache.batch, new_tokens=1, positions=1)
        # views without NumPy: much less code between two steps
        self._ids_B = self._step.ids.reshape(-1).data
        self._last_index_B = self._step.last_index.data
        self._total = self._step.total.reshape(1).data
        self._logits_BV = self._step.logits[:, 0]
        self.logits = tuple(self._logits_BV)
        self._capacity = 0

    @property
    def size_bytes(self) -> int:
        """Memory of the buffers: the cache's and those of the logits."""
        return self._logits_BV.nbytes + sum(buffer.nbytes for buffer in self.cache.buffers())

    def begin(self, length: int) -> None:
        """Start over with empty rows that have room for so many tokens.

        Raises:
            ContextLengthError: the length is beyond the context.
            MemoryError: there is no memory.
        """
        self.cache.clear()
        if length > self.cache.capacity:
            self.release()  # bound buffers would stay in memory beside the new ones
            self.cache.reserve(length)

    def step(self, tokens: Sequence[int], lengths: Sequence[int]) -> NDArray[np.float32]:
        """Write one token per row and compute what follows it.

        A row that is to stay as it is gets its last token and its length once more: the same
        values are written to the same place.

        Args:
            tokens: one id per row, each within the vocabulary.
            lengths: of each row after the step; a row's token stands at its length minus one.

        Returns:
            Logits `(B, V)`, overwritten by the next step.

        Raises:
            ContextLengthError: a row would be longer than the context; nothing has changed.
        """
        total = max(lengths)
        if total > self._capacity or self._capacity != self.cache.capacity:
            self._rebind(total)
        for row, token in enumerate(tokens):
            self._ids_B[row] = token
            self._last_index_B[row] = lengths[row] - 1
        self._total[0] = total
        self._step.run()
        self.cache.lengths[:] = lengths
        return self._logits_BV

    def write(
        self,
        tokens: list[int],
        choose: Callable[[NDArray[np.float32]], int],
        *,
        most: int,
        eos: Container[int],
    ) -> None:
        """Append the last of some tokens to the only row, choose one behind it, and so on.

        What `step` does for a token of each row, with less between two steps: the weights of a
        model have displaced Python's code from the caches, and each line is read anew.

        Args:
            tokens: at least one, each within the vocabulary; gets those that are chosen.
            choose: the next token, from logits `(V,)`.
            most: how many tokens there are to be in the end.
            eos: tokens that end the row.

        Raises:
            ContextLengthError: the row would be longer than the context.
        """
        run, lengths, (logits_V,) = self._step.run, self.cache.lengths, self.logits
        ids, last_index, total = self._ids_B, self._last_index_B, self._total
        if self._capacity != self.cache.capacity:
            self._capacity = 0  # what is bound are buffers that are gone
        while len(tokens) < most:
            before = lengths[0]
            if before >= self._capacity:
                self._rebind(before + 1)
            ids[0], last_index[0], total[0] = tokens[-1], before, before + 1
            run()
            lengths[0] = before + 1
            tokens.append(choose(logits_V))
            if tokens[-1] in eos:
                return

    def release(self) -> None:
        """Let go of the cache's buffers until the next step."""
        self._step.release()
        self._capacity = 0

    def _rebind(self, total: int) -> None:
        self.release()
        self.cache.reserve(total)
        self._step.bind(self.cache.buffers())
        if self._source is not None:
            self._step.bind_source(self._source)
        self._capacity = self.cache.capacity
