"""How an export reports its progress."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the work done in it, and all of its work."""


def silent(step: str, done: int, total: int) -> None:
    """Report nothing."""
