"""The filters of templates, as Jinja 3.1 and the chat templates of transformers have them.

Source: https://jinja.palletsprojects.com/en/stable/templates/#list-of-builtin-filters and, for
`tojson`, https://huggingface.co/docs/transformers/chat_templating_writing.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined
from jinja2.tests import TESTS

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget
from ortolan.runtime.jinja.methods import check_percent_format, has_method, replaced
from ortolan.runtime.jinja.values import Bound, Loop, Namespace, undefined

__all__ = ["FILTERS", "attribute", "item", "listed", "plain", "test", "written"]

MAX_INDENT = 32
"""Columns of an indentation."""


def written(budget: Budget, value: Any) -> str:
    """A value as the text that `{{ value }}` writes.

    Raises:
        ChatTemplateError: it is a function or the like, or the text is too long.
    """
    if isinstance(value, str):
        return value
    found = str(plain(budget, value))
    budget.text(len(found))
    return found


def plain(budget: Budget, value: Any) -> Any:
    """A value that is data through and through, paid for.

    Raises:
        ChatTemplateError: it is a function, a namespace or the like.
    """
    if not isinstance(value, str | int | float | Mapping | list | tuple | Undefined | None):
        raise ChatTemplateError(
            f"chat template: expected data to write, got a {type(value).__name__.lower()}. "
            "Use another template."
        )
    if isinstance(value, Mapping | list | tuple):
        budget.walk(value)
    return value


def listed(budget: Budget, value: Any) -> list[Any]:
    """What a loop over a value gives.

    Raises:
        ChatTemplateError: too many.
        TypeError: nothing to go through.
    """
    if isinstance(value, Namespace | Loop | Bound):
        raise TypeError(f"a {type(value).__name__.lower()} is not iterable")
    length = 0 if isinstance(value, Undefined) else len(value)
    budget.step(length)
    return list(value)


def attribute(value: Any, name: str) -> Any:
    """`value.name`: a method, or an item of a dictionary."""
    if isinstance(value, Loop):
        return value.get(name)
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if has_method(value, name):
        return Bound(value, name)
    values = value.values if isinstance(value, Namespace) else value
    if isinstance(values, Mapping) and name in values:
        return values[name]
    return undefined(name)


def item(value: Any, key: Any) -> Any:
    """`value[key]`: an item, or a method of that name."""
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if not isinstance(key, str | int | float | None):
        raise TypeError(f"a {type(key).__name__} is no key")
    values: Any = value.values if isinstance(value, Namespace) else value
    try:
        return values[key]
    except (KeyError, IndexError, TypeError):
        return attribute(value, key) if isinstance(key, str) else undefined(str(key))


def test(budget: Budget, name: str, value: Any, *args: Any) -> bool:
    """Whether a test of Jinja holds.

    Raises:
        ChatTemplateError: there is no such test.
    """
    found: Any = TESTS.get(name)
    if found is None or name in {"filter", "test"}:  # these two ask Jinja
        raise ChatTemplateError(f"chat template: expected a test of Jinja, got {name!r}.")
    for each in (value, *args) if args else ():
        budget.walk(each)
    return bool(found(value, *args))


def _tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise ValueError(f"expected an indent of at most {MAX_INDENT}, got {indent}")
    value = plain(budget, value)
    separators = tuple(separators) if separators is not None else None
    if separators and sum(map(len, separators)) > MAX_INDENT:
        raise ValueError("expected separators of some characters")
    found = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    budget.text(len(found))
    return found


def _join(budget: Budget, value: Any, d: str = "", attribute: Any = None) -> str:
    parts = [written(budget, _by(attribute)(each)) for each in listed(budget, value)]
    budget.text(sum(map(len, parts)) + len(d) * len(parts))
    return d.join(parts)


def _default(_: Budget, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    missing = isinstance(value, Undefined) or (boolean and not value)
    return default_value if missing else value


def _length(_: Budget, value: Any) -> int:
    return len(value)


def _first(_: Budget, value: Any) -> Any:
    return next(iter(value), undefined("first"))


def _last(_: Budget, value: Any) -> Any:
    return next(reversed(value), undefined("last"))


def _reverse(budget: Budget, value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else listed(budget, value)[::-1]


def _items(budget: Budget, value: Any) -> list[Any]:
    return [] if isinstance(value, Undefined) else listed(budget, value.items())


def _dictsort(
    budget: Budget,
    value: Any,
    case_sensitive: bool = False,
    by: str = "key",
    reverse: bool = False,
) -> list[Any]:
    place = {"key": 0, "value": 1}[by]
    return _sorted(budget, _items(budget, value), _by(place), reverse, case_sensitive)


def _sort(
    budget: Budget,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> list[Any]:
    return _sorted(budget, listed(budget, value), _by(attribute), reverse, case_sensitive)


def _sorted(
    budget: Budget, values: list[Any], by: Callable[[Any], Any], reverse: bool, exact: bool
) -> list[Any]:
    budget.walk(values)
    budget.step(len(values) * 16)

    def key(value: Any) -> Any:
        found = by(value)
        return found if exact or not isinstance(found, str) else found.lower()

    return sorted(values, key=key, reverse=reverse)


def _unique(
    budget: Budget, value: Any, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    seen: list[Any] = []
    kept = []
    for each in listed(budget, value):
        found = _by(attribute)(each)
        key = found.lower() if isinstance(found, str) and not case_sensitive else found
        budget.walk(seen)
        if key not in seen:
            seen.append(key)
            kept.append(each)
    return kept


def _map(
    budget: Budget, value: Any, *args: Any, attribute: Any = None, default: Any = None, **named: Any
) -> list[Any]:
    values = listed(budget, value)
    if attribute is not None:
        found = [_by(attribute)(each) for each in values]
        return [default if default is not None and isinstance(f, Undefined) else f for f in found]
    name, *rest = args
    return [FILTERS[name](budget, each, *rest, **named) for each in values]


def _choose(*, keep: bool, by_attribute: bool) -> Callable[..., Any]:
    def chosen(budget: Budget, value: Any, *args: Any) -> list[Any]:
        by = _by(args[0]) if by_attribute else _by(None)
        rest = args[1:] if by_attribute else args

        def holds(each: Any) -> bool:
            budget.step()
            return test(budget, rest[0], by(each), *rest[1:]) if rest else bool(by(each))

        return [each for each in listed(budget, value) if holds(each) == keep]

    return chosen


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def found(
        budget: Budget, value: Any, case_sensitive: bool = False, attribute: Any = None
    ) -> Any:
        values = _sort(budget, value, False, case_sensitive, attribute)
        return function(values) if values else undefined("item")

    return found


def _sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    values = [_by(attribute)(each) for each in listed(budget, value)]
    if not all(isinstance(each, int | float) for each in (start, *values)):
        raise TypeError("sum: expected numbers")
    return budget.integer(sum(values, start))


def _indent(
    budget: Budget, value: str, width: Any = 4, first: bool = False, blank: bool = False
) -> str:
    margin = width if isinstance(width, str) else " " * min(width, MAX_INDENT + 1)
    if len(margin) > MAX_INDENT:
        raise ValueError(f"expected an indent of at most {MAX_INDENT}")
    begin, *rest = f"{value}\n".splitlines()
    budget.text(len(value) + (1 + len(rest)) * (1 + len(margin)))
    lines = [begin, *(f"{margin}{line}" if line or blank else line for line in rest)]
    return (margin if first else "") + "\n".join(lines)


def _int(budget: Budget, value: Any, default: int = 0, base: int = 10) -> Any:
    try:
        found = int(value[:99], base) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        found = int(_float(budget, value, float(default)))
    return budget.integer(found)


def _float(_: Budget, value: Any, default: float = 0.0) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def _round(_: Budget, value: Any, precision: int = 0, method: str = "common") -> Any:
    if method != "common" or abs(precision) > MAX_INDENT:
        raise ValueError("round: expected the common method and a small precision")
    return round(value, precision)


def _abs(_: Budget, value: Any) -> Any:
    return abs(value)


def _same(_: Budget, value: Any) -> Any:
    return value


def _string(name: str) -> Callable[..., str]:
    def filtered(budget: Budget, value: Any, *args: Any, **named: Any) -> str:
        text = written(budget, value)
        budget.text(len(text))
        found: str = getattr(text, name)(*args, **named)
        return found

    return filtered


def _trim(budget: Budget, value: Any, chars: str | None = None) -> str:
    return _string("strip")(budget, value, chars)


def _replace(budget: Budget, value: Any, old: str, new: str, count: int | None = None) -> str:
    return replaced(budget, written(budget, value), old, new, -1 if count is None else count)


def _format(budget: Budget, value: str, *args: Any, **named: Any) -> str:
    values: Any = named or args
    check_percent_format(value, values, budget)
    text: str = value % values
    return text


def _title(budget: Budget, value: Any) -> str:
    text = written(budget, value)
    budget.text(len(text))
    return re.sub(r"[^-\s({\[<]+", lambda word: word[0][0].upper() + word[0][1:].lower(), text)


def _by(name: Any) -> Callable[[Any], Any]:
    """What gives the attribute of that name, dotted or a number, or the value itself."""
    if name is None:
        return lambda value: value
    path = [int(part) if part.isdigit() else part for part in str(name).split(".")]

    def found(value: Any) -> Any:
        for part in path:
            value = item(value, part)
        return value

    return found


def _wordcount(budget: Budget, value: str) -> int:
    budget.text(len(value))
    return len(value.split())


FILTERS: Mapping[str, Callable[..., Any]] = {
    "abs": _abs,
    "capitalize": _string("capitalize"),
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "float": _float,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": listed,
    "lower": _string("lower"),
    "map": _map,
    "max": _extreme(lambda values: values[-1]),
    "min": _extreme(lambda values: values[0]),
    "reject": _choose(keep=False, by_attribute=False),
    "rejectattr": _choose(keep=False, by_attribute=True),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": _same,
    "select": _choose(keep=True, by_attribute=False),
    "selectattr": _choose(keep=True, by_attribute=True),
    "sort": _sort,
    "string": written,
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "unique": _unique,
    "upper": _string("upper"),
    "wordcount": _wordcount,
}
"""Every filter: a function of the budget, the value and the arguments."""
