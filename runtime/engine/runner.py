"""Runner: calls the model for a chunk of one row, or for one token in each of several rows.

    prefill   chunk(row, ids)   one row, several tokens: kernels take several new tokens after a
                                cache only for a batch of 1
    decode    step(tokens)      rows [:k] of the buffers, one token each, in place

Rows below `k` that take no part in a step (free ones, ones still in prefill, padding) get a dummy
token just after their valid part. Their next token overwrites it, so a step does not change them.

An `exact` runner computes the same for a row, to the bit, whatever the other rows hold and however
its prompt is cut (`ortolan.runtime.engine.exactness`).

Vectors of an image that see each other are computed in a call of their own, by another graph
(docs/adr/0046). Their states do not depend on what follows them, so a row may end within an image:
the rest of it joins them in the next call.

Some graphs take one token per row and call (docs/adr/0026). A chunk is then one call per token, so
neither earlier chunks nor other rows can change it.

Shape letters: B rows of a step, S new tokens, R positions, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import (
    ADAPTERS,
    FEATURE_ROWS,
    FEATURES,
    HIDDEN,
    LOGITS,
    PREVIOUS,
    SOURCE_LENGTHS,
    STEP_INPUTS,
    WINDOW_STARTS,
)
from ortolan.runtime.bundle.source import POSITIONS
from ortolan.runtime.engine.attention_kernels import CHUNK, GRID, chunk_tokens
from ortolan.runtime.engine.device_states import DeviceStates
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.pictures import AXES, FIRST, Placed, run_around, runs
from ortolan.runtime.engine.providers import bind_state, share
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.errors import NumericError

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine

TOGETHER = 16
"""Most tokens per chunk if the graph takes one at a time; other sequences wait that long."""

_log = logging.getLogger("ortolan.runtime")

CHECKED, SHORT = 96, 16
"""Tokens that a device computes in one call and in short ones, to compare them."""

LARGEST_ERROR, LARGEST_ERROR_FP32 = 1e-2, 1e-4
"""Root mean square of their difference, relative to the standard deviation of the logits.

Kernels of fewer bits may round activations in another way for another number of tokens.
"""

WIDE = 32
"""Most tokens of a wide step; beyond this each costs nearly as much as a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A bound call of one row, with the arrays that it reads and writes."""

    run: Callable[[], None]
    ids: NDArray[np.int64]
    last: NDArray[np.int32]
    total: NDArray[np.int32]
    logits: NDArray[np.float32]
    hidden: NDArray[np.float32]
    axes: NDArray[np.int64]


class Runner:
    """Runs the model over slots. For one thread at a time.

    A step stays bound to its buffers: the next one writes a few numbers, runs the graph, and finds
    its logits in place. So anything that moves buffers of the slots has to go through the runner.
    Methods that run the model raise `ForkedError` in a child of `os.fork()`.

    Attributes:
        logits_BV: logits of the selected rows, float32; the next step overwrites them.
        hidden_SE: states of the tokens of the last chunk or wide step, float32, if the graphs
            return them; the next one may overwrite them.
    """

    def __init__(
        self,
        engine: "Engine",
        slots: Slots,
        *,
        exact: bool = False,
        chunk: int = CHUNK,
        call_tokens: int | None = None,
    ) -> None:
        rows = len(slots.lengths)  # in an exact runner a multiple of `rows_multiple`
        self.slots = slots
        self._engine = engine
        self._exact = exact
        self._chunk = GRID if exact and engine.exactness.depends_on_chunks else chunk
        self._multiple = engine.exactness.rows_multiple if exact else 1
        self._session = engine.ort_session(1, rows_per_source=slots.beams)
        self._ids = np.zeros((rows, 1), np.int64)
        self._last = np.zeros(rows, np.int32)
        self._total = np.zeros((), np.int32)
        self._positions = np.zeros((rows, 1), np.int64)
        self._axes = np.zeros((rows, 1, AXES), np.int64)
        self._has_axes = engine.pictures is not None and engine.pictures.are_grids
        self._logits = np.empty((rows, 1, engine.manifest.vocab_size), np.float32)
        # memoryviews: writing single numbers through NumPy would cost much of a small step
        self._set_id, self._set_last = self._ids.reshape(-1).data, self._last.data
        self._set_total = self._total.reshape(1).data
        self.logits_BV: NDArray[np.float32] = self._logits[:, 0]
        self.hidden_SE = np.empty((0, 0), np.float32)
        self._hidden_BSE = self.hidden_SE[None]
        self._rows: list[int] = []
        self._idle: list[int] = []
        self._covered = 0
        window = slots.windows.window
        self._moves = window is not None
        self._call_tokens = call_tokens or longest_call(engine)
        if window is not None:
            self._call_tokens = min(self._call_tokens, window.part)
        self._calls: dict[int, Callable[[], None]] = {}
        self._row_calls: dict[tuple[int, int, int], _Call] = {}

    def head(self) -> "Runner":
        """An empty row of the head that predicts further tokens; see `Engine.head`."""
        engine = self._engine.head()
        return Runner(engine, engine.slots())

    # --- a prompt ---------------------------------------------------------------------------------

    def chunk(
        self,
        row: int,
        ids: Sequence[int],
        *,
        positions: Sequence[int],
        previous_SE: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Append tokens to a row, and return the logits `(R, V)` at some of their positions."""
        if self._engine.manifest.takes_one:
            return self._token_by_token(row, ids, positions)
        parts = self._parts(ids)
        if len(parts) == 1:
            return self._call(row, ids, positions, previous_SE)
        self.reserve(self.slots.lengths[row] + len(ids))
        logits_RV = np.empty((len(positions), self._logits.shape[2]), np.float32)
        wanted, hidden = np.asarray(positions), []
        for part in parts:
            inside = (wanted >= part.start) & (wanted < part.stop)
            some = (wanted[inside] - part.start).tolist() or [part.stop - part.start - 1]
            before = None if previous_SE is None else previous_SE[part]
            logits = self._call(row, ids[part], some, before)
            hidden.append(self.hidden_SE)
            if inside.any():
                logits_RV[inside] = logits
        self.hidden_SE = np.concatenate(hidden)
        return logits_RV

    def _call(
        self,
        row: int,
        ids: Sequence[int],
        positions: Sequence[int],
        previous_SE: NDArray[np.float32] | None,
    ) -> NDArray[np.float32]:
        """Run a chunk, or a part of it, in one call."""
        slots, length = self.slots, self.slots.lengths[row] + len(ids)
        padded_ids, padded_positions = self._padded(ids, positions)
        end = length + len(padded_ids) - len(ids)
        # with a total beyond the capacity the kernel would return a longer buffer than is bound
        self.reserve(end)
        slots.begin([row])
        slots.slide_windows([row])
        logits = np.empty((1, len(padded_positions), self._logits.shape[2]), np.float32)
        pictures, start = self._engine.pictures, slots.lengths[row]
        placed = None if pictures is None else pictures.place(padded_ids, self._next(row))
        run = self._bind(
            self._engine.both_ways_session()
            if self._see_each_other(padded_ids)
            else self._engine.ort_session(len(padded_ids)),
            slice(row, row + 1),
            [
                np.array([padded_ids], np.int64) if placed is None else placed.ids,
                np.array([end - 1], np.int32),
                np.array(end, np.int32),
                np.array([padded_positions], np.int64),
            ],
            logits,
            placed=placed,
            previous_SE=previous_SE,
        )
        run()
        if placed is not None:
            slots.shifts.add(placed.shifts, start, row=row)
        slots.lengths[row] = length
        slots.take_over([row])
        self.hidden_SE = self._hidden_BSE[0, : len(ids)]
        result: NDArray[np.float32] = logits[0, : len(positions)]
        return result

    def _next(self, row: int) -> int:
        """Position of the next token of a row, on all axes."""
        length = self.slots.lengths[row]
        return length - self.slots.shifts.before(length, row=row)

    def _padded(self, ids: Sequence[int], positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ids and positions of a chunk, of even numbers in an exact runner."""
        padded_ids, padded_positions = [*ids], [*positions]
        if self._exact:
            # a replaced state could not forget the dummy token, and vectors would see it
            if not (self.slots.replaces or self._see_each_other(ids)):
                padded_ids += [0] * (len(ids) % 2)
            if len(padded_ids) > 1 or self._engine.decode_tokens > 1:
                padded_positions += padded_positions[:1] * (len(positions) % 2)
        return padded_ids, padded_positions

    def _see_each_other(self, ids: Sequence[int]) -> bool:
        """Whether these are vectors that see each other, not tokens."""
        return self._engine.sees_both_ways and ids[0] >= FIRST

    def _parts(self, ids: Sequence[int]) -> list[slice]:
        """Places of the tokens of each call that a chunk takes."""
        if not self._engine.sees_both_ways:
            return _cut(slice(0, len(ids)), self._call_tokens)
        return [
            part
            for run in runs(ids)
            for part in ([run] if self._see_each_other(ids[run]) else _cut(run, self._call_tokens))
        ]

    def _token_by_token(
        self, row: int, ids: Sequence[int], positions: Sequence[int]
    ) -> NDArray[np.float32]:
        """Run a chunk on a graph that takes one token at a time."""
        lengths = self.slots.lengths
        self.reserve(lengths[row] + len(ids))
        logits_RV = np.empty((len(positions), self._logits.shape[2]), np.float32)
        self._engine.check_usable()
        for position, token in enumerate(ids):
            self.slots.begin([row])
            call = self._bound_call(row, 1)
            call.ids[0, 0], call.last[0], call.total[()] = token, lengths[row], lengths[row] + 1
            call.run()
            lengths[row] += 1
            self.slots.take_over([row])
            logits_RV[np.equal(positions, position)] = call.logits[0, 0]
        return logits_RV

    def chunks(self, row: int, ids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Cut tokens into chunks, while the caller appends each to the row."""
        start = 0
        while start < len(ids):
            end = self.chunk_end(row, ids, start)
            yield start, ids[start:end]
            start = end

    def chunk_end(self, row: int, ids: Sequence[int], start: int) -> int:
        """Return where the next chunk of a row ends."""
        end = min(start + self.chunk_tokens(row), len(ids))
        if not self._engine.sees_both_ways:
            return end
        cut = run_around(ids, end)
        return int(cut.start if cut.start > start else cut.stop)

    def rewind_to_cut(self, row: int, prompt: Sequence[int]) -> int:
        """Rewind a row that holds the start of a prompt to where a call may begin: its length.

        If it ends within vectors that see each other, the rest of them are computed in a call of
        their own. It must be even in an exact runner, and whole where cuts change results; so the
        row is rewound.
        """
        engine, length = self._engine, int(self.slots.lengths[row])
        if not self._exact or not engine.sees_both_ways:
            return length
        cut = run_around(prompt, length)
        inside = length - cut.start
        is_even = (cut.stop - cut.start) % 2 == 0
        is_free = is_even and engine.exactness.tokens_multiple == 1
        target = length - (inside % 2 if is_free else inside)
        if target < length:
            # windows may not reach back that far
            length = target if target >= self.slots.windows.least(row) else 0
            self.slots.rewind(length, row=row)
        return length

    def chunk_tokens(self, row: int) -> int:
        """Most new tokens that the next chunk of a row may have."""
        length = self.slots.lengths[row]
        most = min(self._chunk, chunk_tokens(self._engine.heads, length))
        if self._engine.manifest.takes_one:
            most = min(most, TOGETHER)
        if not self._exact:
            return most
        return self._engine.exactness.chunk_tokens(length, most=most, chunk=self._chunk)

    def prefill(self, row: int, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens to a row in chunks; return the logits `(V,)` of the last position."""
        self.reserve(self.slots.lengths[row] + len(ids))
        for _, part in self.chunks(row, ids):
            # Only the last chunk's logits are used. Every chunk computes one position all the
            # same: some kernels mishandle empty tensors, and one row of logits costs little.
            logits_RV = self.chunk(row, part, positions=[len(part) - 1])
        last: NDArray[np.float32] = logits_RV[0]
        return last

    def teacher_forced(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens to row 0 and return the logits after each of them, `(S, V)`."""
        self.reserve(self.slots.lengths[0] + len(ids))
        logits_SV = np.empty((len(ids), self._logits.shape[2]), np.float32)
        for start, part in self.chunks(0, ids):
            rows = self.chunk(0, part, positions=range(len(part)))
            logits_SV[start : start + len(part)] = rows
            if not np.isfinite(rows.max(axis=-1)).all():
                # a kernel may spread a NaN over its whole call, so the exact position is unknown
                raise NumericError(
                    f"The logits at positions {start} to {start + len(part) - 1} are not finite. "
                    "Run `ortolan verify` on the bundle."
                )
        return logits_SV

    @property
    def wide_tokens(self) -> int:
        """Most tokens of a wide step; more may go through another graph."""
        return min(WIDE, self._engine.decode_tokens - self._engine.decode_tokens % 2)

    def wide_step(self, row: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append a few tokens to a row of an exact runner, like a chunk that stays bound.

        Only without replaced states: the caller rewinds the tokens that it rejects. The next wide
        step overwrites the logits `(len(tokens), V)`.
        """
        lengths, size = self.slots.lengths, len(tokens) + len(tokens) % 2
        end = lengths[row] + size
        self.reserve(end)
        self._engine.check_usable()
        self.slots.slide_windows([row])
        call = self._bound_call(row, size)
        call.ids[0, : len(tokens)] = tokens
        call.ids[0, len(tokens) :] = 0
        call.last[0], call.total[()] = end - 1, end
        if self._has_axes:
            call.axes[0] = (self._next(row) + np.arange(size))[:, None]
        call.run()
        lengths[row] += len(tokens)
        self.hidden_SE = call.hidden[0, : len(tokens)]
        logits: NDArray[np.float32] = call.logits[0, : len(tokens)]
        return logits

    def _bound_call(self, row: int, size: int) -> "_Call":
        """A call of `size` tokens of a row, bound until the buffers change."""
        key = (row, size, self.slots.held.turn)
        if key in self._row_calls:
            return self._row_calls[key]
        ids, last = np.zeros((1, size), np.int64), np.zeros(1, np.int32)
        total, positions = np.zeros((), np.int32), np.arange(size, dtype=np.int64)[None]
        logits = np.empty((1, size, self._engine.manifest.vocab_size), np.float32)
        session, rows = self._engine.ort_session(size), slice(row, row + 1)
        axes = np.zeros((1, size, AXES), np.int64)
        run = self._bind(session, rows, [ids, last, total, positions], logits, axes=axes)
        hidden = self._hidden_BSE
        call = _Call(
            run=run, ids=ids, last=last, total=total, logits=logits, hidden=hidden, axes=axes
        )
        self._row_calls[key] = call
        return call

    # --- a step -----------------------------------------------------------------------------------

    def select(self, rows: Sequence[int]) -> None:
        """Choose the rows, at least one, that take a token in each of the following steps."""
        self._rows = list(rows)
        multiple = self._multiple * self.slots.beams
        covered = -(-(max(rows) + 1) // multiple) * multiple
        if covered != self._covered:
            self._calls.clear()
            self._covered = covered
        selected = set(rows)
        self._idle = [row for row in range(self._covered) if row not in selected]

    def step(self, tokens: Sequence[int]) -> None:
        """Append a token to each of the selected rows; their logits appear in `logits_BV`."""
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
        if self._moves:
            slots.slide_windows(self._rows)
        if self._has_axes:
            for row in self._rows:
                self._axes[row] = self._next(row)
        run = self._calls.get(slots.held.turn) or self._bind_step()
        if not self._engine.is_usable:
            self._engine.check_usable()
        run()
        for row in self._rows:
            lengths[row] += 1
        if slots.replaces:
            slots.take_over(self._rows)

    def _bind_step(self) -> Callable[[], None]:
        """Bind a step of the selected rows, until they or the buffers change."""
        rows = slice(0, self._covered)
        run = self._calls[self.slots.held.turn] = self._bind(
            self._session,
            rows,
            [self._ids[rows], self._last[rows], self._total, self._positions[rows]],
            self._logits[rows],
            axes=self._axes[rows],
        )
        return run

    # --- memory -----------------------------------------------------------------------------------

    def put_sources(self, slots: Sequence[int], encoded: Encoded) -> None:
        """Set the sources of slots; see `Sources.put`."""
        self._unbind()
        self.slots.sources.put(slots, encoded)

    def restore(self, snapshot: Snapshot, *, row: int = 0) -> None:
        """Copy a snapshot into a row; see `Slots.restore`."""
        self._unbind()
        self.slots.restore(snapshot, row=row)

    def reserve(self, length: int) -> None:
        """Make room for rows of this length; see `Slots.reserve`."""
        if length > self.slots.capacity:
            # bound buffers would stay in memory next to the new ones
            self._unbind()
            self.slots.reserve(length)

    def _unbind(self) -> None:
        self._calls.clear()
        self._row_calls.clear()

    def _bind(
        self,
        session: Any,
        rows: slice,
        feeds: Sequence[NDArray[Any]],
        logits: NDArray[np.float32],
        *,
        placed: Placed | None = None,
        axes: NDArray[np.int64] | None = None,
        previous_SE: NDArray[np.float32] | None = None,
    ) -> Callable[[], None]:
        """Bind a session to feeds, as in `STEP_INPUTS`, to its logits, and the states of rows."""
        self._engine.check_usable()
        binding = session.io_binding()
        inputs = {name: share(array) for name, array in zip(STEP_INPUTS, feeds, strict=True)}
        if self._engine.pictures is not None:
            placed = placed or self._engine.pictures.nothing(feeds[0], axes)
            inputs |= {FEATURES: share(placed.vectors), FEATURE_ROWS: share(placed.rows)}
            if self._has_axes:
                inputs[POSITIONS] = share(placed.positions)
        hidden = self._engine.manifest.hidden_states
        if hidden is not None:
            # a new array: calls that stay bound keep theirs
            self._hidden_BSE = np.empty((*feeds[0].shape, hidden.size), np.float32)
            binding.bind_ortvalue_output(HIDDEN, share(self._hidden_BSE))
        if self._engine.manifest.is_head:
            previous_BSE = np.zeros_like(self._hidden_BSE)
            if previous_SE is not None:
                previous_BSE[0, : len(previous_SE)] = previous_SE
            inputs[PREVIOUS] = share(previous_BSE)
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(LOGITS, share(logits))
        if self._engine.manifest.has_windows:
            binding.bind_ortvalue_input(WINDOW_STARTS, share(self.slots.windows.starts[rows]))
        if self._engine.adapters is not None:
            binding.bind_ortvalue_input(ADAPTERS, share(self.slots.adapters[rows]))
        for state, read, written in self.slots.held.bound(rows):
            bind_state(binding, state, read, written)
        beams = self.slots.beams
        source = self.slots.sources.of(slice(rows.start // beams, -(-rows.stop // beams)))
        if source is not None:
            binding.bind_ortvalue_input(SOURCE_LENGTHS, share(source.lengths))
            for state, values in zip(self._engine.source_states, source.states, strict=True):
                binding.bind_ortvalue_input(state.input, share(values))
        run = partial(session.run_with_iobinding, binding)
        if isinstance(self.slots.held, DeviceStates):
            return self.slots.held.around(rows, partial(_fed, binding, inputs, run))
        return run


def _cut(run: slice, size: int) -> list[slice]:
    """Cut places into parts of at most `size`."""
    return [slice(start, min(start + size, run.stop)) for start in range(run.start, run.stop, size)]


def longest_call(engine: "Engine") -> int:
    """Return the most new tokens of a call that a device computes right, and warn if it is short.

    Attention kernels of WebGPU from 32 new tokens on are wrong on GPUs whose subgroups are narrower
    than they assume (onnxruntime-ep-webgpu 0.4 with 4 lanes). So long calls are compared with short
    ones on this model when a GPU is first used.
    """
    if engine.is_on_host:
        return engine.manifest.context_length
    with engine.lock:
        if engine.longest_call is None:
            engine.longest_call = longest = _compared(engine)
            if longest < engine.manifest.context_length:
                _log.warning(
                    "%s computes calls of %d tokens wrong. Prompts are computed in calls of %d, "
                    "which is slower.",
                    *(engine.device, CHECKED, longest),
                )
        return engine.longest_call


def _compared(engine: "Engine") -> int:
    manifest = engine.manifest
    longest = manifest.context_length
    size = min(CHECKED, longest)
    if size <= SHORT or manifest.takes_one:
        return longest
    ids = [index % manifest.vocab_size for index in range(size)]
    positions = range(SHORT - 1, size, SHORT)  # the logits of all would take a while
    got, right = (
        Runner(engine, _slots(engine), call_tokens=most).chunk(0, ids, positions=positions)
        for most in (longest, SHORT)
    )
    error = np.sqrt(np.mean((got - right) ** 2)) / max(float(right.std(axis=-1).mean()), 1e-6)
    most = LARGEST_ERROR_FP32 if manifest.precision == "fp32" else LARGEST_ERROR
    return longest if error <= most else SHORT


def _slots(engine: "Engine") -> Slots:
    """A slot with a source of one zero vector, if the decoder reads one."""
    slots = engine.slots()
    if engine.source_states:
        shapes = [[n if isinstance(n, int) else 1 for n in s.shape] for s in engine.source_states]
        pairs = zip(shapes, engine.source_states, strict=True)
        states = tuple(np.zeros(shape, state.dtype) for shape, state in pairs)
        slots.sources.put([0], Encoded(lengths=np.ones(1, np.int32), states=states))
    return slots


def _fed(binding: Any, inputs: Mapping[str, Any], run: Callable[[], None]) -> None:
    """Run with the present contents of the inputs: binding copies them to the device."""
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    run()
