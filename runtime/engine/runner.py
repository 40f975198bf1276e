"""Runner: computes a chunk of one row of the slots, or one token for each of the first rows.

A prompt is prefilled one row at a time, in chunks: kernels take several new tokens after a cache
only for a batch of 1. A step decodes the rows `[:k]` of the buffers in place. Rows among them that
take no part in it (free ones, those of a prompt that is still prefilled, those that pad the step)
get a token just after their valid part, where the next token of the row overwrites it: a step
changes nothing of such a row.

What a row gives is the same, to the bit, whatever stands in the others and however its prompt was
cut, where the runner is `exact` (docs/adr/0021). Kernels add up a lone row, or the last of an odd
number of rows, in another order than rows in pairs. So nothing is computed by odd numbers: a step
has an even number of rows, a part of a prompt an even number of tokens, of which the last may be a
dummy that the next token overwrites, and logits are asked for an even number of positions.

Some graphs take one token of each row at a time (docs/adr/0026). A chunk is then as many calls as
it has tokens, each the same whatever was computed before or beside it.

Shape letters: B rows of a step, S new tokens, R positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import LOGITS, SOURCE_LENGTHS, STEP_INPUTS
from ortolan.runtime.engine.attention_kernels import CHUNK, GRID, chunk_tokens
from ortolan.runtime.engine.ort_session import share
from ortolan.runtime.engine.slots import Encoded, Slots, Snapshot

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine

__all__ = ["GRID", "Runner"]

TOGETHER = 16
"""Most tokens of a part of a prompt where the graph takes one at a time: others wait that long."""

WIDE = 32
"""Most tokens of a wide step: of more, each costs nearly what a step does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of one row that stays bound, and what it reads and writes."""

    run: Callable[[], None]
    ids: NDArray[np.int64]
    last: NDArray[np.int32]
    total: NDArray[np.int32]
    logits: NDArray[np.float32]


class Runner:
    """Computes over slots. Not to be used from two threads at once.

    A step that is prepared stays bound: it writes a few numbers, runs the graph, and finds its
    logits in place. So whatever moves buffers of the slots goes through here.

    Args:
        engine: the sessions to compute with.
        slots: the states.
        exact: whether a row gives the same, to the bit, whatever the rows beside it, and however
            its prompt is cut.
        chunk: most new tokens of one call; an even divisor of `GRID` if `exact`.
            Where results depend on the cuts (`Engine.parts_matter`) exact parts have `GRID` tokens
            whatever is said here.

    Attributes:
        logits_BV: of each row, float32, overwritten by the next step.
    """

    def __init__(
        self, engine: "Engine", slots: Slots, *, exact: bool = False, chunk: int = CHUNK
    ) -> None:
        rows, multiple = len(slots.lengths), engine.rows_multiple if exact else 1
        if rows % multiple:
            raise ValueError(f"slots: expected a multiple of {multiple} rows, got {rows}")
        self.slots = slots
        self._engine = engine
        self._exact = exact
        self._chunk = GRID if exact and engine.parts_matter else chunk
        self._multiple = multiple
        self._session = engine.ort_session(1, rows_per_source=slots.beams)
        self._ids = np.zeros((rows, 1), np.int64)
        self._last = np.zeros(rows, np.int32)
        self._total = np.zeros((), np.int32)
        self._positions = np.zeros((rows, 1), np.int64)
        self._logits = np.empty((rows, 1, engine.manifest.vocab_size), np.float32)
        # views without NumPy: much less code between two steps
        self._set_id, self._set_last = self._ids.reshape(-1).data, self._last.data
        self._set_total = self._total.reshape(1).data
        self.logits_BV: NDArray[np.float32] = self._logits[:, 0]
        self._rows: list[int] = []
        self._idle: list[int] = []
        self._covered = 0
        self._calls: dict[int, Callable[[], None]] = {}
        self._row_calls: dict[tuple[int, int, int], _Call] = {}

    # --- a prompt ---------------------------------------------------------------------------------

    def chunk(
        self,
        row: int,
        ids: Sequence[int],
        *,
        positions: Sequence[int],
        logits_RV: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Append tokens to a row in one call of the graph.

        Args:
            row: of the slots.
            ids: at least one id, each within the vocabulary.
            positions: indices into `ids` to give logits for, at least one.
            logits_RV: where to write the logits; `None` for a new array.

        Returns:
            The logits, `(R, V)`.

        Raises:
            ContextLengthError: the row would be longer than the context; nothing has changed.
            ForkedError: the process was forked after the engine was made.
        """
        if self._engine.manifest.takes_one:
            if logits_RV is None:
                logits_RV = np.empty((len(positions), self._logits.shape[2]), np.float32)
            self._one_by_one(row, ids, positions, logits_RV)
            return logits_RV
        slots, length = self.slots, self.slots.lengths[row] + len(ids)
        computed, asked = [*ids], [*positions]
        if self._exact:
            if not slots.replaces:  # a sum cannot forget a token
                computed += [0] * (len(computed) % 2)
            if len(computed) > 1 or self._engine.decode_tokens > 1:
                asked += asked[:1] * (len(asked) % 2)
        end = length + len(computed) - len(ids)
        # a total beyond the capacity would make the kernel give a longer buffer than the one bound
        self.reserve(end)
        slots.begin([row])
        shape = (1, len(asked), self._engine.manifest.vocab_size)
        if logits_RV is None or len(asked) > len(positions):
            logits = np.empty(shape, np.float32)
        else:
            logits = logits_RV.reshape(shape)
        run = self._bind(
            self._engine.ort_session(len(computed)),
            slice(row, row + 1),
            np.array([computed], np.int64),
            np.array([end - 1], np.int32),
            np.array(end, np.int32),
            np.array([asked], np.int64),
            logits,
        )
        run()
        slots.lengths[row] = length
        slots.take_over([row])
        written: NDArray[np.float32] = logits[0, : len(positions)]
        if logits_RV is not None and len(asked) > len(positions):
            logits_RV[...] = written
        return written

    def _one_by_one(
        self, row: int, ids: Sequence[int], positions: Sequence[int], logits_RV: NDArray[np.float32]
    ) -> None:
        """A chunk by a graph that takes one token at a time."""
        lengths = self.slots.lengths
        self.reserve(lengths[row] + len(ids))
        self._engine.check_process()
        for place, token in enumerate(ids):
            self.slots.begin([row])
            call = self._bound_call(row, 1)
            call.ids[0, 0], call.last[0], call.total[()] = token, lengths[row], lengths[row] + 1
            call.run()
            lengths[row] += 1
            self.slots.take_over([row])
            logits_RV[np.equal(positions, place)] = call.logits[0, 0]

    def chunks(
        self, row: int, ids: Sequence[int], *, most: int = GRID
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Cut tokens into what one call takes, while the row grows by them.

        Yields:
            Where each part begins, and the part.
        """
        start = 0
        while start < len(ids):
            size = min(most, self.chunk_tokens(row))
            yield start, ids[start : start + size]
            start += size

    def chunk_tokens(self, row: int) -> int:
        """Most new tokens that the next call of a row takes."""
        length = self.slots.lengths[row]
        most = min(self._chunk, chunk_tokens(self._engine.heads, length))
        if self._engine.manifest.takes_one:
            most = min(most, TOGETHER)
        if not self._exact:
            return most
        most -= most % 2
        if not self._engine.parts_matter and not self._engine.mixes_rows:
            return most
        # by place alone: never by what was asked for, or by how many texts there are
        return min(most, self._chunk - length % self._chunk)

    def prefill(self, row: int, ids: Sequence[int], *, most: int = GRID) -> NDArray[np.float32]:
        """Append tokens to a row, a chunk of at most `most` at a time.

        Returns:
            The logits of the last position, `(V,)`.

        Raises:
            ContextLengthError: the row would be longer than the context; nothing has changed.
            ForkedError: the process was forked after the engine was made.
        """
        self.reserve(self.slots.lengths[row] + len(ids))
        logits_RV = np.empty((1, self._engine.manifest.vocab_size), np.float32)
        for _, part in self.chunks(row, ids, most=most):
            # One position of every chunk, though only the last one's is of use: not every kernel is
            # to be trusted with an empty tensor, and one row of logits is nothing beside a chunk.
            self.chunk(row, part, positions=[len(part) - 1], logits_RV=logits_RV)
        last: NDArray[np.float32] = logits_RV[0]
        return last

    @property
    def wide_tokens(self) -> int:
        """Most tokens of a wide step: beyond, another graph may compute them."""
        return min(WIDE, self._engine.decode_tokens - self._engine.decode_tokens % 2)

    def wide_step(self, row: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append a few tokens to a row of an exact runner, as a part of a prompt, time and again.

        Rows without replaced states alone: the caller takes back what it does not want.

        Args:
            row: of the slots.
            tokens: at least one, at most `wide_tokens`.

        Returns:
            What follows each of them, `(len(tokens), V)`, overwritten by the next wide step.

        Raises:
            ContextLengthError: the row would be longer than the context; nothing has changed.
            ForkedError: the process was forked after the engine was made.
        """
        lengths, size = self.slots.lengths, len(tokens) + len(tokens) % 2
        end = lengths[row] + size
        self.reserve(end)
        self._engine.check_process()
        wide = self._bound_call(row, size)
        wide.ids[0, : len(tokens)] = tokens
        wide.ids[0, len(tokens) :] = 0
        wide.last[0], wide.total[()] = end - 1, end
        wide.run()
        lengths[row] += len(tokens)
        written: NDArray[np.float32] = wide.logits[0, : len(tokens)]
        return written

    def _bound_call(self, row: int, size: int) -> "_Call":
        """A call of some tokens of a row, until the buffers change."""
        key = (row, size, self.slots.turn)
        if key in self._row_calls:
            return self._row_calls[key]
        ids, last = np.zeros((1, size), np.int64), np.zeros(1, np.int32)
        total, positions = np.zeros((), np.int32), np.arange(size, dtype=np.int64)[None]
        logits = np.empty((1, size, self._engine.manifest.vocab_size), np.float32)
        session, rows = self._engine.ort_session(size), slice(row, row + 1)
        run = self._bind(session, rows, ids, last, total, positions, logits)
        call = _Call(run=run, ids=ids, last=last, total=total, logits=logits)
        self._row_calls[key] = call
        return call

    # --- a step -----------------------------------------------------------------------------------

    def select(self, rows: Sequence[int]) -> None:
        """Choose the rows that take a token in each of the steps that follow, at least one."""
        if not rows:
            raise ValueError("select: expected at least one row; a batch of none ends the process")
        self._rows = list(rows)
        multiple = self._multiple * self.slots.beams
        covered = -(-(max(rows) + 1) // multiple) * multiple
        if covered != self._covered:
            self._calls.clear()
            self._covered = covered
        part = set(rows)
        self._idle = [row for row in range(self._covered) if row not in part]

    def step(self, tokens: Sequence[int]) -> None:
        """Append a token to each of the selected rows; `logits_BV` has what follows.

        Args:
            tokens: one id per selected row, each within the vocabulary.

        Raises:
            ContextLengthError: a row would be longer than the context; nothing has changed.
            ForkedError: the process was forked after the engine was made.
        """
        if not self._rows:
            raise ValueError("step: expected rows to be selected before")
        slots, lengths, ids, last = self.slots, self.slots.lengths, self._set_id, self._set_last
        for row, token in zip(self._rows, tokens, strict=True):
            ids[row], last[row] = token, lengths[row]
        for row in self._idle:
            ids[row], last[row] = 0, lengths[row]
        self._set_total[0] = total = 1 + max(lengths[: self._covered])
        if total > slots.capacity:
            self.reserve(total)
        if slots.replaces:
            slots.begin(self._rows)
        run = self._calls.get(slots.turn) or self._bind_step()
        if self._engine.is_stranded:
            self._engine.check_process()
        run()
        for row in self._rows:
            lengths[row] += 1
        if slots.replaces:
            slots.take_over(self._rows)

    def _bind_step(self) -> Callable[[], None]:
        """What runs a step of the selected rows, until they or the buffers change."""
        rows = slice(0, self._covered)
        run = self._calls[self.slots.turn] = self._bind(
            self._session,
            rows,
            self._ids[rows],
            self._last[rows],
            self._total,
            self._positions[rows],
            self._logits[rows],
        )
        return run

    # --- memory -----------------------------------------------------------------------------------

    def put_sources(self, slots: Sequence[int], encoded: Encoded) -> None:
        """Give slots their sources; see `Slots.put_sources`."""
        self._unbind()
        self.slots.put_sources(slots, encoded)

    def restore(self, snapshot: Snapshot, *, row: int = 0) -> None:
        """Put a snapshot into a row; see `Slots.restore`."""
        self._unbind()
        self.slots.restore(snapshot, row=row)

    def reserve(self, length: int) -> None:
        """Make room for rows of this length.

        Raises:
            ContextLengthError: the length is beyond the context.
            MemoryError: there is no memory; everything is as it was.
        """
        self.slots.check(length)
        if length > self.slots.capacity:
            # bound buffers would stay in memory beside the new ones
            self._unbind()
            self.slots.reserve(length)

    def _unbind(self) -> None:
        self._calls.clear()
        self._row_calls.clear()

    def _bind(
        self, session: Any, rows: slice, *feeds_and_logits: NDArray[Any]
    ) -> Callable[[], None]:
        """What runs a session over buffers: its inputs, the logits, and the states of some rows."""
        self._engine.check_process()
        *feeds, logits = feeds_and_logits
        binding = session.io_binding()
        for name, array in zip(STEP_INPUTS, feeds, strict=True):
            binding.bind_ortvalue_input(name, share(array))
        binding.bind_ortvalue_output(LOGITS, share(logits))
        for state, read, written in self.slots.bound(rows):
            shared = share(read)
            binding.bind_ortvalue_input(state.input, shared)
            binding.bind_ortvalue_output(
                state.output, shared if written is read else share(written)
            )
        beams = self.slots.beams
        source = self.slots.sources(slice(rows.start // beams, -(-rows.stop // beams)))
        if source is not None:
            binding.bind_ortvalue_input(SOURCE_LENGTHS, share(source.lengths))
            for state, values in zip(self._engine.source_states, source.states, strict=True):
                binding.bind_ortvalue_input(state.input, share(values))
        return partial(session.run_with_iobinding, binding)
