"""What one request leaves for the next: buffers, and all that is bound to them.

Making, binding and freeing these takes as long as a step or two of a small model.

Knows sizes. Does not know what is kept. There is no lock: the garbage collector runs at any time,
and in a child made by `os.fork()` a lock that another thread held would never be free.
"""

from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

__all__ = ["KEPT_BYTES", "Shelf"]

KEPT_BYTES = 64 << 20
"""Buffers up to this size are kept."""


class Sized(Protocol):
    """Something that takes memory."""

    @property
    def size_bytes(self) -> int:
        """Memory that stays taken while it is kept."""


Kept = TypeVar("Kept", bound=Sized)


class Shelf(Generic[Kept]):
    """Room for one thing, that of the last request. Threads may share it.

    Whoever takes it has it alone, and puts it back when a request has come to its end: behind an
    error nobody knows what buffers hold.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[Hashable, Kept]] = deque(maxlen=1)

    def take(self, shape: Hashable) -> Kept | None:
        """What was put here for requests of this shape; anything else is dropped."""
        try:
            kept_shape, kept = self._kept.pop()
        except IndexError:
            return None
        return kept if kept_shape == shape else None

    def put(self, shape: Hashable, kept: Kept) -> None:
        """Keep something for requests of this shape, unless it is too large."""
        if kept.size_bytes <= KEPT_BYTES:
            self._kept.append((shape, kept))
