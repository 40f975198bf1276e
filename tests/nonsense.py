"""Values that break code which trusts its input, for parametrized tests and for fuzzing."""

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

NAN, INF = math.nan, math.inf


class Index:
    """An integer only by `__index__`."""

    def __index__(self) -> int:
        return 3


INTEGERS = (
    *(0, 1, -1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 127, 128, 255, 256, -2, -8),
    *(2**15, 2**16, 2**31 - 1, 2**31, 2**31 + 1, -(2**31), 2**32, 2**32 + 1, 2**40),
    *(2**53 + 1, 2**62, 2**63 - 1, -(2**63) + 1, -(2**63)),
)
"""Integers that fit into 64 bits."""

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, -3.4e38, NAN, INF, -INF)

NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, -1, -2, 96, 97, 2**15, 2**31, 2**32 - 1, 2**63, -(2**63), 2**80, 10**5000),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e308, 5e-324, NAN, INF, -INF),
    *(True, False, np.bool_(True), np.uint8(2), np.int8(-1), np.uint64(2**64 - 1), np.float16(1)),
    *(np.float32("nan"), np.longdouble(1), Decimal("NaN"), Decimal(1), Fraction(1, 3)),
    *(1j, Index()),
)
"""Numbers of all types. Python refuses to print the digits of 10**5000."""

STRINGS = (
    *("", " ", "\0", "a", "x" * 300, "..", "../x", "/", "manifest.json", "input_ids", "logits"),
    *("\x1b[2K", "\n", "\u202e", "\ud800", "\U0001f600", "batch", "capacity", "float16", "int8"),
)
"""Names, paths and values in documents."""

PROMPTS = (
    *("", " ", "a", "def main(", "[PAD] a b", "<bos>", "x" * 3000, "\0", "\ud800", "a\udfff"),
    *("\U0001f600" * 40, "\u0301" * 500, "\x1b[2K", "e\u0301", "\ufeff", "/", "cpu", "exact"),
)

ARRAYS: tuple[Any, ...] = (
    *(np.array([1, 2]), np.array([1.5]), np.array([[1, 2]]), np.array(3), np.array([])),
    *(np.array([2**63], np.uint64), np.array(["a"]), np.array([None]), np.array([True, False])),
    *(np.zeros((4, 6, 3), np.uint8), np.zeros((0, 0, 3), np.uint8), np.zeros((2, 2, 9), np.uint8)),
    np.array([1, 2, 3], dtype=">i4"),
)

ARGUMENTS: tuple[Any, ...] = (
    *(None, True, -1, 1.0, 1.5, NAN, 2**80, 10**5000, "", "/", "x", "\ud800", b"x"),
    *([], [None], {}, object(), np.array([1.5]), np.array([1, 2]), np.array([object()])),
)
"""One or two values of each type, to try as every argument of a function."""

NOT_INTEGERS: tuple[Any, ...] = (True, 1.0, 1.5, NAN, "1", b"1", [1], 1j, np.float32(1))

NOT_NUMBERS: tuple[Any, ...] = (True, np.True_, NAN, "1", b"1", [1], 1j)
"""Not even None, which often means that an argument is absent."""

NOT_FINITE = (NAN, INF, -INF)

CONFIG_VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, 2, 3, -1, 10**9, 10**30, 0.0, 0.5, -0.5, NAN, INF, "", [], [1], {}),
)
"""Values of JSON that no key of a config.json expects."""
