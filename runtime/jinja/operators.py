"""The operators of templates: Python's, each paid for before it is applied."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from ortolan.runtime.jinja.budget import Budget
from ortolan.runtime.jinja.methods import check_percent_format

__all__ = ["binary", "compare", "unary"]

MAX_POWER = 64
"""Largest exponent."""


def unary(sign: str, value: Any) -> Any:
    """`not value`, `-value` or `+value`."""
    return _UNARY[sign](value)


def binary(budget: Budget, sign: str, left: Any, right: Any) -> Any:
    """An arithmetic operation, on numbers, strings or lists.

    Raises:
        ChatTemplateError: the result would be too large.
        TypeError: Python does not have it for these values.
    """
    match sign, left, right:
        case "+", str(), str():
            budget.text(len(left) + len(right))
        case "+", list() | tuple(), list() | tuple():
            budget.step(len(left) + len(right))
        case "*", _, _:
            _pay_repeated(budget, left, right)
            _pay_repeated(budget, right, left)
        case "%", str(), _:
            check_percent_format(left, right, budget)
        case "**", _, _ if abs(left) >= 1 << MAX_POWER or abs(right) > MAX_POWER:
            raise OverflowError("numbers too large for a power")
    return budget.integer(_BINARY[sign](left, right))


def compare(budget: Budget, sign: str, left: Any, right: Any) -> Any:
    """A comparison, or `in`.

    Raises:
        ChatTemplateError: there are too many values to compare.
        TypeError: Python does not have it for these values.
    """
    if isinstance(right, list | tuple | Mapping):
        budget.walk([left, right])
    elif isinstance(right, str) and sign in {"in", "notin"}:
        budget.text(len(right))
    return _COMPARE[sign](left, right)


def _pay_repeated(budget: Budget, value: Any, times: Any) -> None:
    if isinstance(value, str | list | tuple) and isinstance(times, int):
        length = len(value) * max(0, times)
        (budget.text if isinstance(value, str) else budget.step)(length)


_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "not": operator.not_,
    "-": operator.neg,
    "+": operator.pos,
}

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
