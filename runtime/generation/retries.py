"""How often the work of a sequence is tried again after an error."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortolan.runtime.generation.active_sequence import ActiveSequence

TRIES = 3
"""Times that work is tried before its request fails, unless it gets on in between."""


class Retries:
    """Counts how often the work of each sequence has failed where it is now."""

    def __init__(self) -> None:
        self._failures: dict[ActiveSequence, tuple[tuple[int, int], int]] = {}

    def may_try(self, sequence: "ActiveSequence") -> bool:
        """Count a failure; return whether to try again."""
        reached, count = self._failures.get(sequence, ((-1, -1), 0))
        count = 1 if sequence.progress > reached else count + 1
        self._failures[sequence] = max(reached, sequence.progress), count
        return count < TRIES

    def forget(self, sequence: "ActiveSequence") -> None:
        """Forget a sequence that has ended."""
        self._failures.pop(sequence, None)

    def keep(self, sequences: "Iterable[ActiveSequence]") -> None:
        """Forget all but these."""
        kept = set(sequences)
        self._failures = {one: at for one, at in self._failures.items() if one in kept}
