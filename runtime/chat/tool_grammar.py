"""Grammars for `tool_choice`, in llguidance's variant of Lark syntax.

A forced call has the frame that the chat template shows, the name of an offered tool, and arguments
that its schema accepts. Markers that are special tokens are written as those tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.chat.call_frame import ID, Frame, Pairs, common_start
from ortolan.runtime.chat.call_syntax import python_calls, types_of
from ortolan.runtime.chat.formats import CallFormat, Format, any_of
from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.generation.grammar import Grammar

# white space inside JSON; bounded, because models may repeat it endlessly
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,32}"

# schema keys that may add properties
_OPEN = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")

_PYTHON = r"""
py_string: /"([^"\\\x00-\x1f]|\\["\\nrt])*"/
py_integer: /-?(0|[1-9][0-9]{0,17})/
py_number: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/
py_boolean: "True" | "False"
py_null: "None"
py_array: "[" (py_value (", " py_value)*)? "]"
py_object: "{" (py_string ": " py_value (", " py_string ": " py_value)*)? "}"
py_value: py_string | py_number | py_boolean | py_null | py_array | py_object
"""


def call_grammar(
    frame: Frame,
    form: Format,
    functions: Sequence[Mapping[str, Any]],
    control: Mapping[int, str],
    *,
    is_reasoning: bool,
    several: bool,
) -> Grammar:
    """Return the grammar of replies that end in one or more calls."""
    rules = _Rules(control)
    before = frame.before.removeprefix(form.begun)
    start = f"{_reasoning(rules, form, is_reasoning)} {rules.text(before)} calls"
    rules.add("start", f"{start} {rules.text(frame.after)}")
    again = f"({rules.text(frame.between)} call)*" if several and frame.between else ""
    rules.add("calls", f"call {again}")
    keyed = None if frame.pairs is None else _Keyed(rules, frame.pairs, form.calls)
    bodies = []
    for number, function in enumerate(functions):
        name, arguments = rules.text(function["name"]), f"arguments_{number}"
        add, head = (keyed.add, "") if keyed else (rules.json, f"{rules.text(frame.head)} ")
        add(arguments, _parameters(function))
        bodies.append(f"{name} {head}{arguments}")
    rules.add("call", " | ".join(bodies))
    return Grammar.lark("\n".join(rules.lines))


def no_call_grammar(form: Format, control: Mapping[int, str]) -> Grammar:
    """Return the grammar of replies without a call marker."""
    calls, rules, opens = form.calls, _Rules(control), form.calls.opens
    by_text = {text: token for token, text in control.items()}
    if any(mark not in by_text and any(text in mark for text in by_text) for mark in opens):
        raise ChatError(
            "This model's calls cannot be prevented while it writes an answer, so "
            "tool_choice='none' is not available. Leave tools out."
        )
    texts = [mark for mark in opens if mark not in by_text]
    words = f"/(?s:.+)/{_without(texts)}"
    first = words
    if calls.bare:
        first = rf"/(?s:\s*[^\s{_escaped(calls.bare[0])}].*)/{_without(texts)}"
    others = [f"<[{token}]>" for text, token in by_text.items() if text not in opens]
    rules.add("start", "FIRST? (other WORDS?)*" if others else "FIRST?")
    rules.add("FIRST", first)
    if others:
        rules.add("other", " | ".join(others))
        rules.add("WORDS", words)
    return Grammar.lark("\n".join(rules.lines))


class _Rules:
    """Rules of a grammar, line by line."""

    def __init__(self, control: Mapping[int, str]) -> None:
        self._terms = {text: f"<[{token}]>" for token, text in control.items()}
        self._parts = re.compile(f"({any_of((ID, *self._terms)).pattern})")
        self.lines: list[str] = []

    def add(self, name: str, body: str) -> None:
        self.lines.append(f"{name}: {body}")

    def text(self, text: str | None) -> str:
        """Terms for a literal text: special tokens as tokens, the probe id as any call id."""
        terms = {ID: "/[a-zA-Z0-9]{9}/", **self._terms}
        parts = filter(None, self._parts.split(text or ""))
        found = [terms.get(part) or json.dumps(part, ensure_ascii=False) for part in parts]
        return " ".join(found) or '""'

    def json(self, name: str, schema: Mapping[str, Any]) -> None:
        """Add a rule for JSON that a schema accepts."""
        Grammar.json_schema(schema)  # rejects unsupported schemas, with a reason
        options = {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
        self.add(name, f"%json {json.dumps({**schema, **options})}")

    def until(self, name: str, end: str, *, without: Sequence[str] = ()) -> None:
        """Add a rule for any text up to and including the first occurrence of `end`."""
        mark = end.strip()
        if any(mark.startswith(text) for text in self._terms):
            words = f"{name.upper()}_WORDS"
            self.add(name, f"{words}? {self.text(end.lstrip())}")
            self.add(words, f"/(?s:.+)/{_without([mark, *without])}")
        else:
            excluded = _without(without, rf"{_escaped(mark)}(?s:.)")
            self.lines.append(f"{name}[lazy]: /(?s:.*){_escaped(end)}/{excluded}")


class _Keyed:
    """Rules for arguments that are written one by one."""

    def __init__(self, rules: _Rules, pairs: Pairs, calls: CallFormat) -> None:
        self._rules = rules
        self._pairs = pairs
        self._is_python = calls.reader is python_calls
        self._close = "" if self._is_python else common_start(pairs.next, pairs.last)
        self._next = rules.text(pairs.next.removeprefix(self._close))
        self._last = rules.text(pairs.last.removeprefix(self._close))
        if self._is_python:
            rules.lines += _PYTHON.strip().splitlines()
        else:
            key = pairs.next.removeprefix(self._close).strip()
            rules.until("text_value", self._close, without=[key, calls.close, *calls.opens])

    def add(self, name: str, schema: Mapping[str, Any]) -> None:
        """Add rules for the arguments of one function, in the order of its schema."""
        rules, pairs = self._rules, self._pairs
        keys, required = [*schema.get("properties", ())], {*schema.get("required", ())}
        others = [*(key for key in _OPEN if key in schema), *sorted(required - {*keys})]
        if others:
            raise ChatError(
                f"This model writes arguments one by one, so a forced call needs all of them in "
                f"`properties` (got {others[0]!r}). Use tool_choice='auto'."
            )
        last = max((n for n, key in enumerate(keys) if key in required), default=-1)
        for n, key in enumerate(keys):
            value = f"{name}_value_{n}"
            rules.add(value, self._value(value, schema, key))
            skips = key not in required and n + 1 < len(keys)
            rules.add(
                f"{name}_from_{n}",
                f"{rules.text(key + pairs.equals)} {value} {name}_after_{n}"
                + f" | {name}_from_{n + 1}" * skips,
            )
            more = [f"{self._next} {name}_from_{n + 1}"] if n + 1 < len(keys) else []
            ends = [self._last] if n >= last else []
            rules.add(f"{name}_after_{n}", " | ".join([*ends, *more]))
        some = [f"{rules.text(pairs.first)} {name}_from_0"] if keys else []
        none = [rules.text(pairs.none)] if last < 0 else []
        rules.add(name, " | ".join([*none, *some]))

    def _value(self, name: str, schema: Mapping[str, Any], key: str) -> str:
        """The rule for a value and the marker that closes it."""
        rules, own = self._rules, schema["properties"][key]
        kinds = types_of(own, schema)
        choices = _choices(own)
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        if self._is_python:
            if choices:
                return " | ".join(rules.text(_as_python(value)) for value in choices)
            if kinds and kinds <= {"integer", "number"}:  # written as in JSON
                rules.json(f"{name}_json", {**own, **shared})
                return f"{name}_json"
            return " | ".join(f"py_{kind}" for kind in sorted(kinds) or ["value"])
        close = rules.text(self._close)
        if choices:
            texts = [value if isinstance(value, str) else json.dumps(value) for value in choices]
            return f"({' | '.join(map(rules.text, texts))}) {close}"
        if not kinds or "string" in kinds:
            return "text_value"
        rules.json(f"{name}_json", {**own, **shared})
        return f"{name}_json {close}"


def _reasoning(rules: _Rules, form: Format, is_begun: bool) -> str:
    """The rule for reasoning before a call; if the prompt opened it, it has to end."""
    reasoning = form.reasoning
    if not reasoning.open or (reasoning.around and not is_begun):
        return ""  # a model with channels starts a new message after its reasoning
    rules.until("thought", reasoning.close)
    rules.add("SPACE", r"/[ \n]{1,4}/")
    following = " ".join(map(rules.text, reasoning.around[:1]))
    if is_begun:
        return f"thought SPACE? {following}"
    return f"({rules.text(reasoning.open)} thought SPACE?)?"


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments.

    Additional properties are forbidden unless the schema allows them.
    """
    schema = function.get("parameters")
    schema = {"properties": {}} if schema is None else dict(schema)
    kinds = schema.setdefault("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ChatError(
            f"The parameters of {function['name']} must be a schema of type 'object' (got "
            f"{shown(kinds)})."
        )
    schema["type"] = "object"
    if "properties" in schema and not any(key in schema for key in _OPEN):
        schema.setdefault("additionalProperties", False)
    Grammar.json_schema(schema)
    return schema


def _choices(schema: Any) -> list[Any]:
    """The values that a schema lists; empty if it allows others."""
    if not isinstance(schema, Mapping):
        return []
    return [schema["const"]] if "const" in schema else [*(schema.get("enum") or ())]


def _as_python(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _without(texts: Sequence[str], *patterns: str) -> str:
    """Pattern suffix that excludes texts which contain any of these."""
    held = "|".join([*map(_escaped, filter(None, texts)), *patterns])
    return f" & ~/(?s:.*({held}).*)/" if held else ""


def _escaped(text: str) -> str:
    """Escape a literal text for a pattern between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\n", r"\n")
