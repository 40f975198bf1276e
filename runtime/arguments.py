"""Checks arguments from the caller before anything uses them, and returns plain Python values.

NumPy integers wrap at their own width, and a bool is an int: neither gets past these checks.
"""

import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ortolan.runtime.errors import InputError, shown

_MOST = 2**63 - 1  # largest count of tokens, slots or bytes: a signed 64-bit integer


def checked_count(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return an integer from `least` to `most`, which is 2^63 - 1 by default; or InputError."""
    if _is_integer(value) and least <= value <= (_MOST if most is None else most):
        return int(value)
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"{name} must be a whole number {allowed} (got {shown(value)}).")


def checked_integer(name: str, value: Any) -> int:
    """Return an integer of 64 bits, which may be negative; or InputError."""
    if _is_integer(value) and abs(int(value)) <= _MOST:
        return int(value)
    raise InputError(f"{name} must be a whole number (got {shown(value)}).")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_flag(name: str, value: Any) -> bool:
    """Return True or False; or InputError."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InputError(f"{name} must be True or False (got {shown(value)}).")


def checked_number(name: str, value: Any, *, most: float) -> float:
    """Return a number whose magnitude is at most `most`; or InputError."""
    if _is_number(value) and abs(value) <= most:
        return float(value)
    raise InputError(f"{name} must be a number from {-most:g} to {most:g} (got {shown(value)}).")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds that a lock can wait; or InputError."""
    if _is_number(value) and abs(value) <= threading.TIMEOUT_MAX:
        return float(value)
    raise InputError(f"{name} must be a number of seconds (got {shown(value)}).")


@contextmanager
def time_limit(timeout: Any) -> Iterator[float | None]:
    """Check the seconds that a wait for a result may take, and say so once they are over."""
    seconds = None if timeout is None else checked_seconds("timeout", timeout)
    try:
        yield seconds
    except TimeoutError:
        raise TimeoutError(
            f"The result was not ready within {timeout} s. Wait longer, or cancel."
        ) from None


def checked_path(name: str, value: Any) -> Path:
    """Return the path of a file or folder; or InputError."""
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        with suppress(UnicodeEncodeError):  # half a surrogate pair
            if path and b"\0" not in os.fsencode(path):
                return Path(path)
    raise InputError(f"{name} must be a path (got {shown(value)}).")


def refuse_unknown(what: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Reject names of keyword arguments that do not exist."""
    for name in names:
        if name not in allowed:
            close = get_close_matches(name, allowed, n=1)
            advice = f"Did you mean {close[0]}?" if close else f"Use {', '.join(sorted(allowed))}."
            raise InputError(f"{what}: there is no {shown(name)}. {advice}")
