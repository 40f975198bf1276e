"""What a reply may be by a choice of tools: a grammar in llguidance's variant of Lark's syntax.

A forced call is written in the frame that the chat template shows, with a name that was offered and
arguments by the schema of that tool. Marks that are tokens of their own come as these tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.chat.argument_types import kinds_of
from ortolan.runtime.chat.call_bodies import python_calls
from ortolan.runtime.chat.call_frame import ID, Frame, Pairs, common_start
from ortolan.runtime.chat.formats import CallFormat, Format
from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.generation.grammar import Grammar

__all__ = ["call_grammar", "no_call_grammar"]

_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,32}"
"""Between the parts of a JSON text: bounded, since models run on in it."""

_OPEN = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")
"""Keys of a schema that may bring in further properties."""

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
    """Replies that end in a call of one of some functions, or in several.

    Args:
        frame: of the calls.
        form: of the replies; it has calls.
        functions: as tools have them; at least one.
        control: the texts of tokens of their own, by id.
        is_reasoning: whether the prompt has begun the reasoning.
        several: whether there may be more than one call.

    Raises:
        ChatError: a schema describes no arguments by name.
        GrammarError: a schema is not supported.
        MissingExtraError: llguidance is not installed.
    """
    rules, calls = _Rules(control), form.calls
    if calls is None:
        raise ValueError("form: expected one with calls")
    before = frame.before.removeprefix(form.begun)
    start = f"{_reasoning(rules, form, is_reasoning)} {rules.text(before)} calls"
    rules.add("start", f"{start} {rules.text(frame.after)}")
    again = f"({rules.text(frame.between)} call)*" if several and frame.between else ""
    rules.add("calls", f"call {again}")
    keyed: _Keyed | None = None
    bodies = []
    for number, function in enumerate(functions):
        schema = _parameters(function)
        name, arguments = rules.text(function["name"]), f"arguments_{number}"
        if frame.pairs is None:
            rules.json(arguments, schema)
            bodies.append(f"{name} {rules.text(frame.head)} {arguments}")
        else:
            keyed = keyed or _Keyed(rules, frame.pairs, calls)
            keyed.add(arguments, schema)
            bodies.append(f"{name} {arguments}")
    rules.add("call", " | ".join(bodies))
    return Grammar.lark(rules.source)


def no_call_grammar(form: Format, control: Mapping[int, str]) -> Grammar:
    """Replies that hold no mark of a call.

    Raises:
        ChatError: the marks of the format are made of others, which a reply needs.
        MissingExtraError: llguidance is not installed.
    """
    calls, rules = form.calls, _Rules(control)
    opens = () if calls is None else calls.opens
    by_id = {text: token for token, text in control.items()}
    if calls is None or any(o not in by_id and any(t in o for t in by_id) for o in opens):
        raise ChatError(
            "tool_choice: a reply of this model without calls cannot be told from one with calls "
            "while it is written. Leave tools out."
        )
    texts = [mark for mark in opens if mark not in by_id]
    words = f"/(?s:.+)/{_without(texts)}"
    first = words
    if calls.bare:
        first = rf"/(?s:\s*[^\s{_escaped(calls.bare[0])}].*)/{_without(texts)}"
    others = [f"<[{token}]>" for text, token in by_id.items() if text not in opens]
    rules.add("start", "FIRST? (other WORDS?)*" if others else "FIRST?")
    rules.add("FIRST", first)
    if others:
        rules.add("other", " | ".join(others))
        rules.add("WORDS", words)
    return Grammar.lark(rules.source)


class _Rules:
    """Rules of a grammar."""

    def __init__(self, control: Mapping[int, str]) -> None:
        self._by_text = {text: token for token, text in control.items()}
        longest = sorted(self._by_text, key=len, reverse=True)
        self._parts = re.compile(f"({'|'.join(map(re.escape, (ID, *longest)))})")
        self.lines: list[str] = []

    @property
    def source(self) -> str:
        return "\n".join(self.lines)

    def add(self, name: str, body: str) -> None:
        self.lines.append(f"{name}: {body}")

    def text(self, text: str | None) -> str:
        """A text as it is, its marks as tokens and ids of calls as any."""
        terms = []
        for part in filter(None, self._parts.split(text or "")):
            if part == ID:
                terms.append("/[a-zA-Z0-9]{9}/")
            elif part in self._by_text:
                terms.append(f"<[{self._by_text[part]}]>")
            else:
                terms.append(json.dumps(part, ensure_ascii=False))
        return " ".join(terms) or '""'

    def json(self, name: str, schema: Mapping[str, Any]) -> None:
        """A rule for JSON that is valid by a schema."""
        Grammar.json_schema(schema)  # refuses, with a reason, what is not supported
        options = {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
        self.add(name, f"%json {json.dumps({**schema, **options})}")

    def until(self, name: str, end: str, *, without: Sequence[str] = ()) -> None:
        """A rule for any text up to an end, which it holds nowhere else, and the end."""
        mark = end.strip()
        if any(mark.startswith(text) for text in self._by_text):
            words = f"{name.upper()}_WORDS"
            self.add(name, f"{words}? {self.text(end.lstrip())}")
            self.add(words, f"/(?s:.+)/{_without([mark, *without])}")
        else:
            excluded = _without(without, rf"{_escaped(mark)}(?s:.)")
            self.lines.append(f"{name}[lazy]: /(?s:.*){_escaped(end)}/{excluded}")


class _Keyed:
    """Arguments that are keys and values rather than an object.

    Args:
        rules: gets theirs.
        pairs: what stands around keys and values.
        calls: the format.
    """

    def __init__(self, rules: _Rules, pairs: Pairs, calls: CallFormat) -> None:
        self._rules = rules
        self._pairs = pairs
        self._is_python = calls.body is python_calls
        self._close = "" if self._is_python else common_start(pairs.next, pairs.last)
        self._next = rules.text(pairs.next.removeprefix(self._close))
        self._last = rules.text(pairs.last.removeprefix(self._close))
        if self._is_python:
            rules.lines += _PYTHON.strip().splitlines()
        else:
            key = pairs.next.removeprefix(self._close).strip()
            rules.until("text_value", self._close, without=[key, calls.close, *calls.opens])

    def add(self, name: str, schema: Mapping[str, Any]) -> None:
        """Rules for the arguments of one function, in the order of its schema.

        Raises:
            ChatError: they are described by more than `properties`.
        """
        rules, pairs = self._rules, self._pairs
        keys, required = [*schema.get("properties", ())], {*schema.get("required", ())}
        others = [*(key for key in _OPEN if key in schema), *sorted(required - {*keys})]
        if others:
            raise ChatError(
                f"tools: this model writes arguments one by one, so a forced call needs them all "
                f"in `properties`, got {others[0]!r}. Use tool_choice='auto'."
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
        """The rule of a value, and of the mark that closes it."""
        rules, own = self._rules, schema["properties"][key]
        kinds = kinds_of(own, schema)
        choices = _choices(own)
        shared = {each: schema[each] for each in ("$defs", "definitions") if each in schema}
        if self._is_python:
            if choices:
                return " | ".join(rules.text(_as_python(each)) for each in choices)
            if kinds and kinds <= {"integer", "number"}:  # written as in JSON
                rules.json(f"{name}_json", {**own, **shared})
                return f"{name}_json"
            return " | ".join(f"py_{kind}" for kind in sorted(kinds) or ["value"])
        close = rules.text(self._close)
        if choices:
            texts = [each if isinstance(each, str) else json.dumps(each) for each in choices]
            return f"({' | '.join(map(rules.text, texts))}) {close}"
        if not kinds or "string" in kinds:
            return "text_value"
        rules.json(f"{name}_json", {**own, **shared})
        return f"{name}_json {close}"


def _reasoning(rules: _Rules, form: Format, is_begun: bool) -> str:
    """What may stand before a call: reasoning; that which the prompt has begun has to end."""
    reasoning = form.reasoning
    if reasoning is None or (reasoning.around and not is_begun):
        return ""  # after reasoning of several channels a message begins anew
    rules.until("thought", reasoning.close)
    rules.add("SPACE", r"/[ \n]{1,4}/")
    following = " ".join(map(rules.text, reasoning.around[:1]))
    if is_begun:
        return f"thought SPACE? {following}"
    return f"({rules.text(reasoning.open)} thought SPACE?)?"


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments: an object.

    It has none but those that are described, unless the schema says otherwise.

    Raises:
        ChatError: it is no schema of an object.
        GrammarError: it is not supported.
    """
    schema = function.get("parameters")
    schema = {"properties": {}} if schema is None else dict(schema)
    kinds = schema.setdefault("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ChatError(
            f"tools: the parameters of {function['name']} must be a schema of type 'object', got "
            f"{shown(kinds)}."
        )
    schema["type"] = "object"
    if "properties" in schema and not any(key in schema for key in _OPEN):
        schema.setdefault("additionalProperties", False)
    Grammar.json_schema(schema)
    return schema


def _choices(schema: Any) -> list[Any]:
    """The only values that a schema allows, where it lists them."""
    if not isinstance(schema, Mapping):
        return []
    return [schema["const"]] if "const" in schema else [*(schema.get("enum") or ())]


def _as_python(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _without(texts: Sequence[str], *patterns: str) -> str:
    """The rest of a pattern whose texts hold none of some others."""
    held = "|".join([*map(_escaped, filter(None, texts)), *patterns])
    return f" & ~/(?s:.*({held}).*)/" if held else ""


def _escaped(text: str) -> str:
    """A text within a pattern between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\n", r"\n")
