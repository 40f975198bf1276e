"""Methods of strings, lists and dictionaries that a template may call, and what they cost.

Python's own objects have more, and ways from each to all others; only these exist here. None
changes the value that it belongs to.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget, count_values
from ortolan.runtime.jinja.values import Bound

__all__ = ["call_method", "check_percent_format", "has_method", "replaced"]

# fmt: off
_SHORT = frozenset([
    "strip", "lstrip", "rstrip", "startswith", "endswith", "upper", "lower", "title",
    "capitalize", "swapcase", "casefold", "find", "rfind", "index", "rindex", "count",
    "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "istitle", "isnumeric",
    "isdecimal", "isidentifier", "removeprefix", "removesuffix", "partition", "rpartition",
    "split", "rsplit", "splitlines",
])
# fmt: on
"""Methods of strings whose result is about as long as the string."""

_METHODS: Mapping[type, frozenset[str]] = {
    str: _SHORT | {"replace", "join", "format"},
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"index", "count", "copy"}),
    tuple: frozenset({"index", "count"}),
}

MOST_WIDTH = 999
"""Characters that a format may ask for."""

_WIDTH = re.compile(r"\d{4,}|\*")


def has_method(value: Any, name: str) -> bool:
    """Whether a template may call that method."""
    return name in _METHODS.get(type(value), ())


def call_method(method: Bound, budget: Budget, *args: Any, **named: Any) -> Any:
    """Call a method, paying for its result first.

    Raises:
        ChatTemplateError: the result would be too long.
    """
    value, name = method.value, method.name
    if isinstance(value, str):
        return _of_text(value, name, budget, *args, **named)
    budget.step(len(value))
    if name in {"index", "count"}:
        budget.walk([value, *args])
    found = getattr(value, name)(*args, **named)
    return list(found) if name in {"items", "keys", "values"} else found


def replaced(budget: Budget, value: str, old: str, new: str, count: int = -1) -> str:
    """A string with one text in place of another.

    Raises:
        ChatTemplateError: it would be too long.
    """
    times = value.count(old) if count < 0 else min(count, value.count(old))
    budget.text(len(value) + times * max(0, len(new) - len(old)))
    return value.replace(old, new, count)


def check_percent_format(template: str, values: Any, budget: Budget) -> None:
    """Pay for `template % values`.

    Raises:
        ChatTemplateError: it asks for a width that nobody needs.
    """
    if _WIDTH.search(template):
        raise _too_wide(template)
    budget.walk(values)
    longest = max(MOST_WIDTH, count_values(values)[1])
    budget.text(len(template) + template.count("%") * longest)


def _of_text(value: str, name: str, budget: Budget, *args: Any, **named: Any) -> Any:
    if name == "replace":
        return replaced(budget, value, *args, **named)
    if name == "join":
        parts: list[str] = list(*args)
        budget.step(len(parts))
        budget.text(sum(map(len, parts)) + len(value) * len(parts))
        return value.join(parts)
    if name == "format":
        return _formatted(value, budget, *args, **named)
    budget.text(len(value))
    found = getattr(value, name)(*args, **named)
    if isinstance(found, list):
        budget.step(len(found))
    return found


def _formatted(template: str, budget: Budget, *args: Any, **named: Any) -> str:
    """`str.format` without attributes, items and nested widths."""
    for literal, name, form, _ in string.Formatter().parse(template):
        budget.text(len(literal))
        if name is None:
            continue
        if not (name == "" or name.isalnum()) or _WIDTH.search(form or "") or "{" in (form or ""):
            raise _too_wide(template)
        budget.text(MOST_WIDTH if form else 0)
        given: Any = [*args, *named.values()]
        budget.walk(given if not name else args[int(name)] if name.isdigit() else named[name])
    return template.format(*args, **named)


def _too_wide(template: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"chat template: expected a simple format, got {template[:40]!r}. Use another template."
    )
