"""Reads the bodies of calls that a model wrote: JSON, XML, Python, or a name before JSON.

A model writes what it likes, so every reader raises `ValueError` where it is no call, and takes
time in proportion to the text.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ortolan.runtime.chat.messages import is_name

__all__ = [
    "Body",
    "ToolCall",
    "json_calls",
    "named_calls",
    "pair_calls",
    "python_calls",
    "xml_calls",
]

MAX_PYTHON = 16_384
"""Characters of calls in Python; its parser is not made for hostile ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that a model asks for.

    Attributes:
        name: of the tool; nobody has checked that there is one.
        arguments: by name; nobody has checked them against the schema.
        id: what the answer to it has to name.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""


Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the tools' parameters, by the tools' names."""

Body = Callable[[str, Schemas], list[ToolCall]]
"""Reads the calls of a body, or raises `ValueError`."""

_NAMES, _ARGUMENTS, _IDS = (
    ("name", "tool_name"),
    ("arguments", "parameters"),
    ("id", "tool_call_id"),
)

_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_PAIR = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_NAMED = re.compile(
    r"\s*(?:function<｜tool▁sep｜>)?([\w.:/-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?"
    r"(?:\[ARGS\]|<｜tool▁sep｜>)?\s*(?:```json)?\s*(\{.*\})\s*(?:```)?\s*",
    re.DOTALL,
)


def json_calls(text: str, _: Schemas) -> list[ToolCall]:
    """`{"name": ..., "arguments": {...}}`, a list of these, or several with `;` between."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    rest = text.strip()
    try:
        while rest:
            value, end = decoder.raw_decode(rest)
            found += value if isinstance(value, list) else [value]
            rest = rest[end:].lstrip().removeprefix(";").lstrip()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return _checked([_from_object(each) for each in found])


def xml_calls(text: str, schemas: Schemas) -> list[ToolCall]:
    """`<function=name><parameter=key>value</parameter></function>`."""
    calls = []
    for name, body in _FUNCTION.findall(text):
        properties = _properties(schemas, name)
        closed, end, _ = body.rpartition("</parameter>")  # so that every search finds an end
        arguments = {
            key: _typed(value.removeprefix("\n").removesuffix("\n"), properties.get(key))
            for key, value in _PARAMETER.findall(closed + end)
        }
        calls.append(ToolCall(name=name, arguments=arguments))
    return _checked(calls)


def pair_calls(text: str, schemas: Schemas) -> list[ToolCall]:
    """`name<arg_key>key</arg_key><arg_value>value</arg_value>` of GLM."""
    name, mark, rest = text.partition("<arg_key>")
    rest, name = mark + rest, name.strip()
    properties = _properties(schemas, name)
    arguments: dict[str, Any] = {}
    at = 0
    while found := _PAIR.match(rest, at):
        key, value = found[1].strip(), found[2]
        arguments[key] = _typed(value, properties.get(key))
        at = found.end()
    if at < len(rest):
        raise ValueError("no pairs of keys and values")
    return _checked([ToolCall(name=name, arguments=arguments)])


def python_calls(text: str, _: Schemas) -> list[ToolCall]:
    """`[name(key=value), ...]`, or calls on lines of their own."""
    text = text.strip()
    if len(text) > MAX_PYTHON:
        raise ValueError("too long")
    source = text if text.startswith("[") else f"[{','.join(text.splitlines())}]"
    try:
        tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List):
            raise ValueError("no list of calls")
        return _checked([_from_python(each) for each in tree.elts])
    except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error


def named_calls(text: str, _: Schemas) -> list[ToolCall]:
    """`name[ARGS]{...}` of Mistral, and the calls of DeepSeek, with JSON after the name."""
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ValueError("no name before an object")
    name, call_id, arguments = found.groups()
    return _checked([ToolCall(name=name, arguments=_object(arguments), id=call_id or "")])


def _from_object(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError("no object")
    if isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}
    name = _first(value, _NAMES)
    if not isinstance(name, str) or not name:
        raise ValueError("no name")
    call_id = _first(value, _IDS)
    arguments = _object(_first(value, _ARGUMENTS))
    return ToolCall(name=name, arguments=arguments, id=call_id if isinstance(call_id, str) else "")


def _from_python(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise ValueError("no call by names")
    arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}
    json.dumps(arguments)  # a set or the like is no argument
    return ToolCall(name=ast.unparse(node.func), arguments=arguments)


def _object(value: Any) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) and value.strip() else value or {}
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("no object of arguments")
    return found


def _properties(schemas: Schemas, name: str) -> Mapping[str, Any]:
    schema = schemas.get(name)
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _typed(text: str, schema: Any) -> Any:
    """A value as its schema has it; text where the schema says so, or nothing."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind in (None, "string"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _checked(calls: list[ToolCall]) -> list[ToolCall]:
    """Calls that may stand in a message: their names and ids are identifiers."""
    if not calls or not all(is_name(call.name) for call in calls):
        raise ValueError("no call of a tool")
    return [call if is_name(call.id) else replace(call, id="") for call in calls]
