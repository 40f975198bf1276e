"""Vectors of images, under ids that stand for them in a prompt.

A prompt holds an id beyond every vocabulary for each vector of an image, between the tokens of
texts that a model may want around them. The ids follow from the pixels, so whatever compares
tokens, such as a prefix cache, tells images apart. Only the runner looks behind them: it gives the
graph the vectors, and a placeholder in place of the ids.

    prompt      1 845 <image a, 0> <image a, 1> 99
    ids         1 845 32000 32000 99
    rows        0   0     1     2  0

Images may be grids, with multimodal rotary embeddings (M-RoPE). The vectors of an image of R rows
and C columns take R * C places in a row of states, but only max(R, C) positions (Wang et al. 2024,
"Qwen2-VL", section 2.1). So the position of a later token is its place less a shift:

    place       0  1 | 2  3  4  5  6  7 | 8  9      an image of 2 rows and 3 columns
    time        0  1 | 2  2  2  2  2  2 | 5  6
    row         0  1 | 2  2  2  3  3  3 | 5  6
    column      0  1 | 2  3  4  2  3  4 | 5  6
    shift                               | 3  3
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import limits

if TYPE_CHECKING:
    from ortolan.runtime.bundle.parts import Features

FIRST = 1 << 62
"""The lowest id of a vector."""

_NUMBERS = (FIRST - 1) // limits.MAX_FEATURES
"""Number of images that have ids of their own."""

AXES = 3
"""Time, row and column."""

KEPT_BYTES = 1 << 26
"""Vectors that are kept for later prompts: 64 MiB, or 14 images of LLaVA 1.5 7B."""


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


class Picture:
    """The vectors `(P, E)` of an image, and their ids, valid as long as this object exists."""

    def __init__(
        self, vectors: NDArray[np.float32], number: int, columns: int | None = None
    ) -> None:
        self.vectors = vectors
        self.columns = columns or len(vectors)
        first = FIRST + number * limits.MAX_FEATURES
        self.ids = range(first, first + len(vectors))

    def parts(self, counts: Sequence[int]) -> list[Sequence[int]]:
        """Split the ids into parts of so many vectors."""
        ends = list(accumulate(counts))
        return [self.ids[end - count : end] for count, end in zip(counts, ends, strict=True)]


class Placed(NamedTuple):
    """A part of a prompt as inputs of a graph.

    Attributes:
        ids: int64 `(1, S)`, with placeholders.
        vectors: float32 `(F, E)`, of which the first is not used.
        rows: int64 `(1, S)`; the vector of each token, or 0.
        positions: int64 `(1, S, 3)`; time, row and column of each token, if images are grids.
        shifts: images that end in this part.
    """

    ids: NDArray[np.int64]
    vectors: NDArray[np.float32]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    shifts: Sequence[Shift] = ()


def placed(ids: Sequence[int], placeholder: int, parts: Iterable[Sequence[int]]) -> list[int]:
    """Ids with the next part in place of each placeholder."""
    left = iter(parts)
    return [own for token in ids for own in (next(left) if token == placeholder else (token,))]


def runs(ids: Sequence[int]) -> Iterator[slice]:
    """Split ids of a prompt into places of tokens and of adjacent vectors, in turn."""
    start = 0
    for _, run in groupby(ids, lambda own: own >= FIRST):
        stop = start + sum(1 for _ in run)
        yield slice(start, stop)
        start = stop


def run_around(ids: Sequence[int], place: int) -> slice:
    """Places of the adjacent vectors that a cut before `place` divides; empty if there are none."""
    if not 0 < place < len(ids) or min(ids[place - 1], ids[place]) < FIRST:
        return slice(place, place)
    start = stop = place
    while start > 0 and ids[start - 1] >= FIRST:
        start -= 1
    while stop < len(ids) and ids[stop] >= FIRST:
        stop += 1
    return slice(start, stop)


class Pictures:
    """The images that prompts hold now, and some that they held before. Threads may share it."""

    def __init__(self, features: "Features", *, most_bytes: int = KEPT_BYTES) -> None:
        self.token, self._size = features.token, features.size
        self.are_grids = features.positions == "grid"
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[int, Picture] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, Picture] = OrderedDict()  # least recent first
        self._kept_bytes = 0

    def find(
        self,
        parts: Sequence[NDArray[np.float32]],
        compute: Callable[[], NDArray[np.float32]],
        *,
        columns: int | None = None,
    ) -> Picture:
        """Return the picture of an image with these tiles, from kept or computed vectors."""
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(repr(part.shape).encode() + part.tobytes())
        digest = hashed.digest()
        with self._lock:
            picture = self._kept.get(digest)
            if picture is not None:
                self._kept.move_to_end(digest)
                return picture
        picture = self.hold(compute(), int.from_bytes(digest[:8]), columns=columns)
        with self._lock:
            if digest not in self._kept:
                self._kept[digest] = picture
                self._kept_bytes += picture.vectors.nbytes
            while self._kept_bytes > self._most_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= oldest.vectors.nbytes
        return picture

    def hold(
        self, vectors: NDArray[np.float32], number: int = 0, *, columns: int | None = None
    ) -> Picture:
        """Give vectors `(P, E)` ids; `number` chooses them, unless others have them now."""
        with self._lock:
            number %= _NUMBERS
            while (held := self._held.get(number)) is not None:
                is_same = held.columns == (columns or len(vectors))
                if is_same and np.array_equal(held.vectors, vectors):
                    return held
                number = (number + 1) % _NUMBERS
            picture = Picture(np.ascontiguousarray(vectors, np.float32), number, columns)
            self._held[number] = picture
            return picture

    def place(self, ids: Sequence[int], next_position: int = 0) -> Placed:
        """Split ids of a prompt into placeholders and vectors."""
        ids_S = np.array(ids, np.int64)
        rows_S = np.zeros_like(ids_S)
        parts = [np.zeros((1, self._size), np.float32)]
        places = np.flatnonzero(ids_S >= FIRST)
        if len(places):
            numbers, indices = np.divmod(ids_S[places] - FIRST, limits.MAX_FEATURES)
            for number in dict.fromkeys(numbers.tolist()):
                mine = numbers == number
                parts.append(self._held[number].vectors[indices[mine]])
                first = sum(map(len, parts[:-1]))
                rows_S[places[mine]] = np.arange(first, first + int(mine.sum()))
            ids_S[places] = self.token
        positions_SA, shifts = self._positions(ids, next_position)
        return Placed(ids_S[None], np.concatenate(parts), rows_S[None], positions_SA[None], shifts)

    def _positions(
        self, ids: Sequence[int], next_position: int
    ) -> tuple[NDArray[np.int64], list[Shift]]:
        """Time, row and column of each id, and the images that end among them."""
        positions_SA = np.empty((len(ids) if self.are_grids else 0, AXES), np.int64)
        shifts: list[Shift] = []
        for place in range(len(positions_SA)):
            if ids[place] < FIRST:
                positions_SA[place] = next_position
                next_position += 1
                continue
            number, index = divmod(ids[place] - FIRST, limits.MAX_FEATURES)
            picture = self._held[number]
            count, columns = len(picture.vectors), picture.columns
            # its first vectors may lie before these ids, and each counts until the last is there
            start = max(next_position - index, 0)
            positions_SA[place] = start, start + index // columns, start + index % columns
            next_position += 1
            if index == count - 1:
                saved = count - max(count // columns, columns)
                shifts.append(Shift(place + 1, saved))
                next_position -= saved
        return positions_SA, shifts

    def nothing(self, ids: NDArray[np.int64], positions: NDArray[np.int64] | None = None) -> Placed:
        """Inputs for ids `(B, S)` that are all tokens, with their positions `(B, S, 3)`."""
        if positions is None:
            positions = np.zeros((*ids.shape, AXES), np.int64)
        vectors = np.zeros((1, self._size), np.float32)
        return Placed(ids, vectors, np.zeros_like(ids), positions)
