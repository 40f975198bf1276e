"""What callers give, checked before anything is touched, and made plain.

A number of NumPy counts in its own width and wraps, and a bool is an int: neither goes further.
"""

import os
import threading
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ortolan.runtime.errors import InputError, shown

__all__ = [
    "checked_count",
    "checked_flag",
    "checked_integer",
    "checked_number",
    "checked_path",
    "checked_seconds",
    "refuse_unknown",
]

_MOST = 2**63 - 1
"""What counts tokens, slots or bytes has a place in 64 bits."""

_MOST_SECONDS = threading.TIMEOUT_MAX


def checked_count(what: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """A whole number of at least `least`, and of 64 bits.

    Raises:
        InputError: it is something else, or more than `most`.
    """
    if _is_integer(value) and least <= value <= (_MOST if most is None else most):
        return int(value)
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"{what}: expected a whole number {allowed}, got {shown(value)}.")


def checked_integer(what: str, value: Any) -> int:
    """A whole number of 64 bits, negative ones too.

    Raises:
        InputError: it is something else.
    """
    if _is_integer(value) and abs(int(value)) <= _MOST:
        return int(value)
    raise InputError(f"{what}: expected a whole number, got {shown(value)}.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_flag(what: str, value: Any) -> bool:
    """True or False.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InputError(f"{what}: expected True or False, got {shown(value)}.")


def checked_number(what: str, value: Any, *, most: float) -> float:
    """A number of at most this size, negative ones too.

    Raises:
        InputError: it is something else.
    """
    if _is_number(value) and abs(value) <= most:
        return float(value)
    raise InputError(f"{what}: expected a number from {-most:g} to {most:g}, got {shown(value)}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def checked_seconds(what: str, value: Any) -> float:
    """A number of seconds.

    Raises:
        InputError: it is none, or more than a clock counts.
    """
    if _is_number(value) and abs(value) <= _MOST_SECONDS:
        return float(value)
    raise InputError(f"{what}: expected a number of seconds, got {shown(value)}.")


def checked_path(what: str, value: Any) -> Path:
    """The path of a file or folder.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str):
        path = os.fspath(value)
        if path and "\0" not in path and _has_bytes(path):
            return Path(path)
    raise InputError(f"{what}: expected a path, got {shown(value)}.")


def refuse_unknown(what: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Reject names of keyword arguments that do not exist.

    Raises:
        InputError: a name is not one of `allowed`.
    """
    for name in names:
        if name not in allowed:
            close = get_close_matches(name, allowed, n=1)
            advice = f"Did you mean {close[0]}?" if close else f"Use {', '.join(sorted(allowed))}."
            raise InputError(f"{what}: there is no {shown(name)}. {advice}")


def _has_bytes(path: str) -> bool:
    """Whether a file can have this name; half a surrogate pair is none."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
