"""How an export reports its progress."""

from typing import Protocol

ESTIMATE = "estimate"
"""Step that tells how long the work will take, before it begins; `--precision auto` has none."""


class Progress(Protocol):
    """Called as each step advances."""

    def __call__(self, step: str, done: int, total: int, what: str = "") -> None:
        """Report progress.

        Args:
            step: its name. Steps may take turns, as rounding and writing weights do. `ESTIMATE`
                comes first, with the seconds that the export is expected to take as `total`: once
                with a sentence as `what`, then for each step with its name as `what`, and as `done`
                the second at which it is expected to end.
            done: work done in it.
            total: all of its work, in the same unit.
            what: the part in work, such as the name of a weight.
        """


def silent(step: str, done: int, total: int, what: str = "") -> None:
    """Report nothing."""
