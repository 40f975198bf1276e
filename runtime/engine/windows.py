"""Windows: which tokens the states of layers with a sliding window hold.

A layer that attends to the last `size` tokens needs the states of no others. Its states have a
fixed number of slots, and a row's tokens move to the front when these are used up:

    tokens dropped   start ◄──────────────── capacity ────────────────►
                           x x x x x x x x x x x x x x x x x x . . . . .
                           ◄─ step ─►◄── kept ──►        ◄─ one call ─►

A row keeps `size - 1` tokens and `BACK` more, so it can go back that far. It moves by multiples of
`step`, which depends on its length alone. Kernels sum the values of attended tokens in blocks that
begin at multiples of `step`; so a row computes the same, to the bit, wherever its tokens lie.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.attention_kernels import GRID

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Manifest, State

BACK = GRID
"""Tokens that a row can always be rewound by."""

PART = GRID
"""Most new tokens of one call."""

_BLOCK, _WIDEST = 128, 1024
"""Tokens that onnxruntime's products of scores and values sum in one block: `_BLOCK` for heads of
that width or wider. Each halving of the width doubles them, up to `_WIDEST`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of a model: the largest of its layers.

    A token attends to `size` tokens, itself included. Rows move by multiples of `step`, can always
    be rewound by `back`, and get at most `part` new tokens in one call.
    """

    size: int
    step: int
    back: int
    part: int

    @property
    def kept(self) -> int:
        """Tokens that a row keeps when it moves."""
        return self.size - 1 + self.back

    @property
    def capacity(self) -> int:
        """Slots of each row."""
        return self.kept + self.step + self.part

    def start(self, length: int) -> int:
        """Tokens that a row of this length drops before its next call."""
        return self.aligned(length - self.kept)

    def needed(self, length: int) -> int:
        """The first token that the next token of a row of this length attends to."""
        return max(0, length - self.size + 1)

    def aligned(self, token: int) -> int:
        """The last token up to this one at which the slots of a row may start."""
        return max(0, token) // self.step * self.step


class WindowedRows:
    """Where the tokens of each row begin, in states with a window.

    Attributes:
        starts: tokens of each row before its first slot, int32; graphs are bound to it.
    """

    def __init__(self, window: Window | None, rows: int) -> None:
        self.window = window
        self.starts: NDArray[np.int32] = np.zeros(rows, np.int32)
        self._firsts = [0] * rows  # the first token that is still there
        # a memoryview: reading single numbers through NumPy would cost much of a small step
        self._starts = self.starts.data
        self._used_up = 0 if window is None else window.kept + window.step

    def slide(self, row: int, length: int) -> tuple[int, int] | None:
        """Slide a row's window before its next call: which slots to drop, and how many to keep."""
        if self.window is None or length - self._starts[row] < self._used_up:
            return None
        start = self.window.start(length)
        count = start - self._starts[row]
        self.put(row, start, max(start, self._firsts[row]))
        return count, length - start

    def place(self, row: int) -> tuple[int, int]:
        """The start of a row, and the first token that it holds."""
        return self._starts[row], self._firsts[row]

    def put(self, row: int, start: int, first: int) -> None:
        """Set the start of a row, and the first token that it holds."""
        self._starts[row], self._firsts[row] = start, first

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Give some rows the places of others, all at once."""
        places = [self.place(row) for row in sources]
        for row, place in zip(targets, places, strict=True):
            self.put(row, *place)

    def least(self, row: int) -> int:
        """The shortest length, besides 0, that a row can be rewound to."""
        first = self._firsts[row]
        return 0 if self.window is None or not first else first + self.window.size - 1

    def slots(self, row: int, start: int, end: int) -> slice | None:
        """Slots of the last tokens from `start` to `end` that a snapshot keeps of a row."""
        if self.window is None:
            return None
        first = max(start, self._firsts[row], end - self.window.kept)
        return slice(first - self._starts[row], end - self._starts[row])

    def may_hold(self, length: int, windowed: int | None) -> bool:
        """Whether a snapshot of this length can have so many tokens of states with a window."""
        if self.window is None or windowed is None:
            return self.window is None and windowed is None
        return min(length, self.window.size - 1) <= windowed <= min(length, self.window.kept)

    def fill(self, row: int, start: int, end: int, windowed: int) -> slice:
        """Slots for the last tokens of a snapshot that follows the first `start` tokens of a row.

        The row has moved before. If the snapshot lacks tokens, nothing before them is kept.
        """
        if self.window is not None and (start == 0 or windowed < end - start):
            first = end - windowed
            self.put(row, self.window.aligned(first), first)
        return slice(end - windowed - self._starts[row], end - self._starts[row])


def window_of(
    states: "Iterable[State]", context_length: int, *, min_call_tokens: int = 1
) -> Window | None:
    """Return the window of a model; `None` if it has none that is worth moving rows for."""
    windowed = [state for state in states if state.window is not None]
    if not windowed:
        return None
    width = min(size for state in windowed for size in state.shape[-1:] if isinstance(size, int))
    window = Window(
        size=max(state.window or 0 for state in windowed),
        step=block_tokens(width),
        back=BACK,
        part=max(PART, min_call_tokens),
    )
    return window if window.capacity < context_length else None


def block_tokens(width: int) -> int:
    """Tokens that a kernel sums in one block, for heads of this width."""
    tokens = _BLOCK
    while tokens < _WIDEST and width <= _BLOCK * _BLOCK // (2 * tokens):
        tokens *= 2
    return tokens


def sums_in_blocks(state: "State", *, is_int8: bool) -> bool:
    """Whether the kernel for a state sums tokens in blocks of `block_tokens`.

    That for 8 bits works in tiles, whose length is a power of two only if the width is.
    """
    width = state.shape[-1]
    return not is_int8 or (isinstance(width, int) and width & (width - 1) == 0)


def row_bytes(manifest: "Manifest", tokens: int, rows: int = 1) -> int:
    """Bytes of the growing states of rows that hold this many tokens together."""
    window = window_of(
        manifest.states, manifest.context_length, min_call_tokens=manifest.min_call_tokens
    )
    held = tokens if window is None else min(tokens, rows * window.capacity)
    return sum(
        state.unit_bytes * (tokens if state.window is None else held)
        for state in manifest.states
        if state.update == "append"
    )
