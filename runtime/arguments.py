"""What callers give, checked before anything is touched, and made plain.

A number of NumPy counts in its own width and wraps, and a bool is an int: neither goes further.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ortolan.runtime.errors import InputError

__all__ = ["checked_count", "checked_flag", "checked_path"]


def checked_count(what: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """A whole number of at least `least`.

    Raises:
        InputError: it is something else, or more than `most`.
    """
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_number and value >= least and (most is None or value <= most):
        return int(value)
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"{what}: expected a whole number {allowed}, got {value!r}.")


def checked_flag(what: str, value: Any) -> bool:
    """True or False.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InputError(f"{what}: expected True or False, got {value!r}.")


def checked_path(what: str, value: Any) -> Path:
    """The path of a file or folder.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str):
        path = os.fspath(value)
        if path and "\0" not in path:
            return Path(path)
    raise InputError(f"{what}: expected a path, got {value!r}.")
