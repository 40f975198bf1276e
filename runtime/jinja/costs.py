"""Costs of filters, tests and methods, paid before Jinja or Python runs them.

Most return about as much as they read. Others build a long string from a short one and a number, or
take time proportional to the product of two lengths.
"""

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from operator import length_hint
from typing import Any

from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import pass_context

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget

MAX_INDENT = 32
"""Columns of an indentation, and digits to round to."""

MAX_POWER = 64
"""Largest exponent, and bits of its base."""

MAX_WIDTH = 999
"""Width of a format, in characters."""

_WIDTH = re.compile(r"[%)][^a-zA-Z%)]*(?:\d{4,}|\*)")
"""A large or variable width in `%` formatting, after the sign or the name in brackets."""

_LIBRARY = ImmutableSandboxedEnvironment()

# fmt: off
_FREE = frozenset(["abs", "count", "d", "default", "first", "last", "length"])
_OF_ITEMS = frozenset([
    "items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr",
])
_OF_TEXT = frozenset([
    "capitalize", "e", "escape", "format", "indent", "lower", "replace", "safe", "string", "title",
    "trim", "upper", "wordcount",
])
_OF_ALL = frozenset(["float", "int", "join", "round", "sum"])
_SORTING = frozenset(["dictsort", "max", "min", "sort", "unique"])

METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset([
        "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum",
        "isalpha", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isspace",
        "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
        "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    ]),
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index"]),
}
# fmt: on
"""Methods that a template may call. Others build much from little, such as `to_bytes`."""

_PIECES = frozenset(["title", "wordcount", "split", "rsplit", "splitlines"])
"""Methods and filters whose result is many small objects of a few dozen bytes."""


def filters() -> dict[str, Any]:
    """Return Jinja's filters with costs, and the `tojson` of transformers."""
    paid = _OF_ITEMS | _OF_TEXT | _OF_ALL | _SORTING
    return {
        **{name: _refused_filter(name) for name in FILTERS},
        **{name: FILTERS[name] for name in _FREE},
        **{name: _paid_filter(name) for name in paid},
        "tojson": _tojson,
    }


def tests() -> dict[str, Any]:
    """Return Jinja's tests, with costs if they walk a value."""
    of_text = {"in", "lower", "upper"}
    paid = [
        name for name, test in TESTS.items() if name in of_text or test.__module__ == "_operator"
    ]
    return {**TESTS, **{name: _paid_test(name) for name in paid}}


def pay_operator(budget: Budget, sign: str, left: Any, right: Any) -> None:
    """Pay for an operation that can return far more than it reads."""
    if sign == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, str | list | tuple):
                (budget.text if isinstance(value, str) else budget.step)(len(value) * max(times, 0))
    elif sign == "%" and isinstance(left, str):
        _pay_format(budget, left, right)
    elif sign == "**" and (abs(left) >= 1 << MAX_POWER or abs(right) > MAX_POWER):
        raise OverflowError("numbers too large for a power")
    elif sign == "-" and not isinstance(left, int | float):  # sets from keys()
        budget.walk((left, right))


def pay_method(budget: Budget, value: Any, name: str, /, *args: Any, **named: Any) -> None:
    """Pay for a call of one of `METHODS`; ChatTemplateError if beyond the budget."""
    budget.walk((args, named))
    if isinstance(value, str):
        pay: Callable[..., None] = _TEXT_METHODS.get(name) or _pay_search
        _pay_text(budget, name, value)
        pay(budget, value, *args, **named)
    elif name in {"count", "index"}:
        budget.walk(value)


def _paid_filter(name: str) -> Callable[..., Any]:
    pay = _FILTERS.get(name)

    @pass_context
    def filtered(context: Context, value: Any, *args: Any, **named: Any) -> Any:
        budget: Budget = context.environment.budget  # type: ignore[attr-defined]
        budget.step()
        if args or named:
            budget.walk((args, named))
        if name in _OF_TEXT:
            value = value if isinstance(value, str) else _written(budget, value)
            _pay_text(budget, name, value)
        elif name in _OF_ITEMS:
            budget.step(length_hint(value))
        else:
            value = [*value] if isinstance(value, Iterator) else value
            budget.walk(value, 16 if name in _SORTING else 1)
        if pay is not None:
            pay(budget, value, *args, **named)
        return budget.pay_result(_LIBRARY.call_filter(name, value, args, named, context))

    return filtered


def _refused_filter(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise ChatTemplateError(
            f"Chat templates may not use the filter {name!r}. Use another template."
        )

    return refused


def _paid_test(name: str) -> Callable[..., bool]:
    @pass_context
    def tested(context: Context, value: Any, *args: Any) -> bool:
        context.environment.budget.walk((value, args))  # type: ignore[attr-defined]
        return bool(_LIBRARY.call_test(name, value, args, context=context))

    return tested


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Source: https://huggingface.co/docs/transformers/chat_templating_writing."""
    _check_indent(indent)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    budget: Budget = context.environment.budget  # type: ignore[attr-defined]
    parts = []
    for part in encoder.iterencode(value):
        budget.step()
        budget.text(len(part))
        parts.append(part)
    return "".join(parts)


def _written(budget: Budget, value: Any) -> str:
    budget.walk(value)
    return str(value)


def _check_indent(width: Any) -> int:
    columns: int = len(width) if isinstance(width, str) else width or 0
    if columns > MAX_INDENT:
        raise ValueError(f"indent must be at most {MAX_INDENT} (got {columns})")
    return columns


def _pay_text(budget: Budget, name: str, value: str) -> None:
    budget.text(len(value) * (16 if name in _PIECES else 1))


def _pay_search(budget: Budget, value: str, *args: Any, **_: Any) -> None:
    """The worst case of a search, such as `rfind`, is the product of both lengths."""
    budget.text(len(value) * sum(len(arg) // 64 for arg in args if isinstance(arg, str)))


def _pay_replace(budget: Budget, value: str, old: Any, new: Any, count: Any = None) -> None:
    budget.text(value.count(str(old)) * len(str(new)))


def _pay_join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    budget.text(len(str(d)) * length_hint(value))


def _pay_indent(
    budget: Budget, value: str, width: Any = 4, first: Any = False, blank: Any = False
) -> None:
    budget.text(len(value) * _check_indent(width))


def _pay_format(budget: Budget, template: str, values: Any) -> None:
    if _WIDTH.search(template):
        raise _too_wide(template)
    budget.text(template.count("%") * (budget.walk(values) + MAX_WIDTH))


def _pay_braces(budget: Budget, template: str, *args: Any, **named: Any) -> None:
    longest = budget.walk((args, named))
    for _, name, form, _ in string.Formatter().parse(template):
        if name is not None:
            if form and re.search(r"\d{4,}|\{", form):
                raise _too_wide(template)
            budget.text(longest + MAX_WIDTH)


def _pay_sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TypeError("sum is for numbers")


def _pay_round(budget: Budget, value: Any, precision: int = 0, method: str = "common") -> None:
    if abs(precision) > MAX_INDENT:
        raise ValueError(f"round allows at most {MAX_INDENT} digits (got {precision})")


_FILTERS: Mapping[str, Callable[..., None]] = {
    "format": lambda budget, value, *args, **named: _pay_format(budget, value, (args, named)),
    "indent": _pay_indent,
    "join": _pay_join,
    "replace": _pay_replace,
    "round": _pay_round,
    "sum": _pay_sum,
    "trim": _pay_search,
}

_TEXT_METHODS: Mapping[str, Callable[..., None]] = {
    "format": _pay_braces,
    "join": lambda budget, value, parts: _pay_join(budget, parts, value),
    "replace": _pay_replace,
}


def _too_wide(template: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"The chat template uses the complex format {template[:40]!r}. Use another template."
    )
