"""Positions of rows whose images are grids: multimodal rotary embeddings (M-RoPE).

The vectors of an image of R rows and C columns take R * C places in a row of states, but only
max(R, C) positions (Wang et al. 2024, "Qwen2-VL", section 2.1). So the position of a later token is
its place less a shift:

    place       0  1 | 2  3  4  5  6  7 | 8  9      an image of 2 rows and 3 columns
    time        0  1 | 2  2  2  2  2  2 | 5  6
    row         0  1 | 2  2  2  3  3  3 | 5  6
    column      0  1 | 2  3  4  2  3  4 | 5  6
    shift                               | 3  3
"""

from collections.abc import Sequence
from typing import NamedTuple

AXES = 3
"""Time, row and column."""


class Shift(NamedTuple):
    """An image of a row: the place after it, and its places less the positions that it takes."""

    end: int
    saved: int


class Shifts:
    """Complete images of several rows.

    Whoever shortens a row does not say so here. So rows forget images after their present length
    when they are next extended.
    """

    def __init__(self, rows: int) -> None:
        self._rows: list[list[Shift]] = [[] for _ in range(rows)]

    def before(self, length: int, *, row: int) -> int:
        """Return the shift of the next token of a row of `length` tokens."""
        shifts = self._rows[row]
        while shifts and shifts[-1].end > length:
            shifts.pop()
        return sum(shift.saved for shift in shifts)

    def add(self, shifts: Sequence[Shift], start: int, *, row: int) -> None:
        """Append images, whose ends count from `start`, to a row of `start` tokens."""
        self.before(start, row=row)
        self._rows[row] += [Shift(start + end, saved) for end, saved in shifts]

    def within(self, start: int, end: int, *, row: int) -> tuple[Shift, ...]:
        """Return the images that end in a part of a row, with ends that count from `start`."""
        return tuple(
            Shift(shift.end - start, shift.saved)
            for shift in self._rows[row]
            if start < shift.end <= end
        )

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows to others, all at once."""
        rows = [list(self._rows[row]) for row in sources]
        for row, shifts in zip(targets, rows, strict=True):
            self._rows[row] = shifts
