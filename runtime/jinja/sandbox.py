"""Jinja's sandbox with a bound on time and memory.

Jinja's own sandbox protects Python objects only. Here a rendering has one budget, in units, and a
deadline. Whatever a template builds, walks or repeats is paid, before it happens where the result
can be much larger than what is read. Filters and methods that are not listed are refused.

`Template` adds payments to a parsed template where Jinja has no hook.
"""

import copy
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from operator import length_hint
from string import Formatter
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import pass_context

from ortolan.runtime.errors import ChatTemplateError

BASE_UNITS = 2_000_000  # units without any message. A unit is a character of a string.
GROWTH = 512  # units per unit of the values. Published templates need a few dozen.
MAX_UNITS = 100_000_000  # most units, whatever the values: at four bytes each, 400 MB
ITEM = 16  # units per item of a list, and per node of a template that is evaluated
MAX_SECONDS = 3.0  # CPU time of a rendering. Published templates need milliseconds.
CHECK_UNITS = 20_000  # units between two looks at the clock

# templates count messages; repeated squaring would fill memory within forty steps
MAX_INTEGER_BITS = 256

MAX_INDENT = 32  # columns of an indentation, and digits to round to
MAX_WIDTH = 999  # width of a format, in characters
_WIDTH = re.compile(r"\d{4,}|[*{]")  # a large or variable width in the form of a number
_PERCENT = re.compile(r"[%)]([^a-zA-Z%)]*)")  # flags and width of a place in `%` formatting
_LIBRARY = ImmutableSandboxedEnvironment()

_SCALARS = (str, int, float, type(None), Undefined)

_LISTS: tuple[type[Any], ...] = (
    list, tuple, range, type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip

# fmt: off
_FREE = frozenset(["abs", "count", "d", "default", "first", "last", "length"])
_OF_ITEMS = frozenset([
    "items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr",
])
_OF_ALL = frozenset([
    "capitalize", "dictsort", "e", "escape", "float", "format", "indent", "int", "join", "lower",
    "max", "min", "replace", "round", "safe", "sort", "string", "sum", "title", "trim", "unique",
    "upper", "wordcount",
])
# filters and methods that compare each item several times, or build many small strings
_REPEATED = frozenset(["dictsort", "rsplit", "sort", "split", "splitlines", "title", "wordcount"])

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


def refused(text: str) -> ChatTemplateError:
    """The error about a template that does something a chat template may not do."""
    return ChatTemplateError(f"{text} Use another template.")


class _Generation(Extension):
    """`{% generation %}`, which marks replies for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@pass_context
def _finalized(context: Context, value: Any) -> str:
    return context.environment.written(value)  # type: ignore[attr-defined, no-any-return]


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment to compile and render templates, configured as in transformers."""

    intercepted_binops = frozenset(["+", "-", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, LoopControlExtension],
            finalize=_finalized,
            optimized=False,  # would compute constants before anything is paid
        )
        free = {name: FILTERS[name] for name in _FREE}
        self.filters = {**{name: _filter(name) for name in FILTERS}, **free, "tojson": _tojson}
        walking = [name for name, test in TESTS.items() if test.__module__ == "_operator"]
        self.tests = {**TESTS, **{name: _test(name) for name in ("in", "lower", "upper", *walking)}}
        self.globals = {}
        self._functions: Sequence[Any] = ()
        self._units: float = inf
        self._deadline = self._next_check = inf

    def rendering(self, values: Mapping[str, Any], functions: Sequence[Any]) -> "Sandbox":
        """Return a copy for one rendering of values, which may also call these functions."""
        twin = copy.copy(self)
        twin._functions = functions
        twin._units = min(BASE_UNITS + GROWTH * self.walked(dict(values)), MAX_UNITS)
        twin._next_check = twin._units
        twin._deadline = time.thread_time() + MAX_SECONDS
        return twin

    # --- payments -------------------------------------------------------------------------------

    def pay(self, units: int) -> bool:
        """Pay for something; ChatTemplateError if too few units are left."""
        self._units -= units
        if self._units < self._next_check:
            self._next_check = max(self._units - CHECK_UNITS, 0)
            if self._units < 0 or time.thread_time() > self._deadline:
                raise refused(
                    "The chat template takes too many steps or builds too long texts for these "
                    "messages, and may never end."
                )
        return True

    def walked(self, value: Any, times: int = 1) -> int:
        """Pay for walking all of a value a number of times, and return its units.

        A list that contains another one twice, and so on, is small but takes forever to walk.
        """
        units = ITEM + (len(value) if isinstance(value, str) else 0)
        self.pay(units * times)
        if isinstance(value, dict):
            value = chain(value, value.values())
        elif isinstance(value, _SCALARS):
            return units
        elif not isinstance(value, _LISTS):
            raise refused(f"The chat template uses a {type(value).__name__.lower()} as data.")
        for item in value:
            units += self.walked(item, times)
        return units

    def paid(self, value: Any) -> Any:
        """Pay for a result and return it, with generators exhausted."""
        if isinstance(value, Iterator):
            return iter(self.paid([*value]))
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, list | tuple | dict):
            self.pay(ITEM * len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            bits = f"{value.bit_length()} bits, more than {MAX_INTEGER_BITS}"
            raise refused(f"The chat template computes an integer of {bits}.")
        return value

    def written(self, value: Any) -> str:
        """Return the text of `{{ value }}`."""
        if isinstance(value, str):
            return value
        self.walked(value)
        return str(value)

    def joined(self, *values: Any) -> str:
        """Compute `a ~ b`."""
        return self.concat(map(self.written, values))

    def compared(self, value: Any) -> Any:
        """Pay for a side of a comparison, or for a key, which may be walked."""
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, list | tuple | dict):
            self.walked(value)
        return value

    def pay_format(self, template: str, values: Any, forms: Iterable[str]) -> None:
        """Pay for a template whose places have these forms, filled with values."""
        places = [*forms]
        if any(_WIDTH.search(form) for form in places):
            raise refused(f"The chat template uses the complex format {template[:40]!r}.")
        self.pay(len(places) * (self.walked(values) + MAX_WIDTH))

    # --- hooks of Jinja -------------------------------------------------------------------------

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """Call a function or method that is allowed."""
        if getattr(called, "__self__", None) is self:  # a payment in a template
            return called(*args)
        self.pay(ITEM * (1 + len(args) + len(named)))
        if isinstance(called, Macro | LoopContext | Undefined):
            return super().call(context, called, *args, **named)
        method = getattr(called, "__wrapped__", called)  # Jinja wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        args = tuple([*arg] if isinstance(arg, Iterator) else arg for arg in args)
        own = {key: value for key, value in named.items() if key not in _OF_JINJA}
        if args or own:
            self.walked((args, own))
        if name in next((METHODS[kind] for kind in METHODS if isinstance(owner, kind)), ()):
            if isinstance(owner, str) or name in ("count", "index"):
                self.walked(owner, ITEM if name in _REPEATED else 1)
            if isinstance(owner, str):
                pay: Callable[..., None] = _COSTS.get(f".{name}", _search)
                pay(self, owner, *args, **own)
        elif not isinstance(owner, LoopContext) and not any(called is f for f in self._functions):
            raise SecurityError(f"a call of {name or type(called).__name__}")
        return self.paid(super().call(context, called, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an arithmetic operation."""
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, str | list | tuple):
                    self.pay(len(value) * max(times, 0) * (1 if isinstance(value, str) else ITEM))
        elif operator == "%" and isinstance(left, str):
            self.pay_format(left, right, _PERCENT.findall(left))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_INTEGER_BITS:
                raise OverflowError("numbers too large for a power")
        elif operator == "-" and not isinstance(left, int | float):
            raise TypeError("only numbers can be subtracted")
        return self.paid(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Get an item. Its key is hashed, and printed if the item is missing."""
        key = argument if isinstance(argument, str | int) else self.compared(argument)
        return super().getitem(obj, key)

    def concat(self, parts: Iterable[str]) -> str:
        """Join the output of a macro or block."""
        return str(self.paid("".join(parts)))


_OF_JINJA = frozenset(["_block_vars", "_loop_vars"])  # arguments added by compiled templates


# --- filters, tests and methods -----------------------------------------------------------------


def _filter(name: str) -> Callable[..., Any]:
    @pass_context
    def filtered(context: Context, value: Any, *args: Any, **named: Any) -> Any:
        sandbox: Sandbox = context.environment  # type: ignore[assignment]
        if name not in _OF_ITEMS | _OF_ALL:
            raise refused(f"Chat templates may not use the filter {name!r}.")
        if args or named:
            sandbox.walked((args, named))
        if name in _OF_ITEMS:
            sandbox.pay(ITEM * length_hint(value))
        else:
            value = [*value] if isinstance(value, Iterator) else value
            sandbox.walked(value, ITEM if name in _REPEATED else 1)
            pay: Callable[..., None] = _COSTS.get(name, _search)
            pay(sandbox, value, *args, **named)
        return sandbox.paid(_LIBRARY.call_filter(name, value, args, named, context))

    return filtered


def _test(name: str) -> Callable[..., bool]:
    test: Any = TESTS[name]

    @pass_context
    def tested(context: Context, *values: Any) -> bool:
        context.environment.walked(values)  # type: ignore[attr-defined]
        return bool(test(*values))

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
    sandbox: Sandbox = context.environment  # type: ignore[assignment]
    _columns(indent)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return "".join(part for part in encoder.iterencode(value) if sandbox.pay(ITEM + len(part)))


def _columns(width: Any) -> int:
    columns: int = len(width) if isinstance(width, str) else width or 0
    if columns > MAX_INDENT:
        raise ValueError(f"indent must be at most {MAX_INDENT} (got {columns})")
    return columns


def _search(sandbox: Sandbox, value: Any, *args: Any, **_: Any) -> None:
    """The worst case of a search, such as `rfind`, is the product of both lengths."""
    if isinstance(value, str):
        sandbox.pay(len(value) * sum(len(arg) // 64 for arg in args if isinstance(arg, str)))


def _replace(sandbox: Sandbox, value: Any, old: Any, new: Any, count: Any = None) -> None:
    sandbox.pay(str(value).count(str(old)) * len(str(new)))


def _join(sandbox: Sandbox, value: Any, d: Any = "", attribute: Any = None) -> None:
    sandbox.pay(len(str(d)) * length_hint(value))


def _indent(
    sandbox: Sandbox, value: Any, width: Any = 4, first: Any = False, blank: Any = False
) -> None:
    sandbox.pay(len(str(value)) * _columns(width))


def _braces(sandbox: Sandbox, value: str, *args: Any, **named: Any) -> None:
    forms = [form or "" for _, name, form, _ in Formatter().parse(value) if name is not None]
    sandbox.pay_format(value, (args, named), forms)


def _round(_: Sandbox, value: Any, precision: int = 0, method: str = "common") -> None:
    if abs(precision) > MAX_INDENT:
        raise ValueError(f"round allows at most {MAX_INDENT} digits (got {precision})")


def _sum(_: Sandbox, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TypeError("sum is for numbers")


# cost of what filters build beyond what they read; names of methods begin with a dot
_COSTS: Mapping[str, Callable[..., None]] = {
    "format": lambda sandbox, value, *args, **named: sandbox.pay_format(
        str(value), (args, named), _PERCENT.findall(str(value))
    ),
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "unique": lambda sandbox, value, *_, **__: sandbox.pay(len(value) ** 2),  # equal hashes
    ".format": _braces,
    ".join": lambda sandbox, value, parts: _join(sandbox, parts, value),
    ".replace": _replace,
}
