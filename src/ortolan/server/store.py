"""`Store`: bytes by id, in memory."""

from collections import OrderedDict


class Store:
    """Keeps what was used last, within a number of entries and bytes."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._bytes = 0

    def get(self, key: str) -> bytes | None:
        """Return an entry, or `None` if there is none."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Keep an entry, and drop the least recently used ones that no longer fit."""
        self.drop(key)
        self._entries[key] = data
        self._bytes += len(data)
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self.drop(next(iter(self._entries)))

    def drop(self, key: str) -> bool:
        """Drop an entry. Returns whether there was one."""
        data = self._entries.pop(key, None)
        self._bytes -= len(data or b"")
        return data is not None
