"""Syntaxes of tool calls: JSON, tags, Python, or a name before an object.

A model may write anything, so a reader accepts a complete call or raises `ValueError`; it never
drops a part. Each reader runs in linear time.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ortolan.runtime.chat.messages import is_name

# maximum characters handed to Python's parser, which is not safe for long hostile input
MAX_PYTHON = 16_384

MAX_SCHEMAS = 64  # maximum schemas visited for one argument: alternatives, references and theirs
_TYPE_NAMES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    dict: "object", list: "array",
}  # fmt: skip

_TYPES = frozenset(_TYPE_NAMES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that a model wrote. Neither name nor arguments are validated.

    Attributes:
        name: name of the tool.
        arguments: values by parameter name.
        id: `tool_call_id` for the tool's answer.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""


class UnfinishedError(ValueError):
    """The text ends inside a value, so the marker after it may belong to that value."""


Schemas = Mapping[str, Mapping[str, Any]]  # JSON schemas of the tools' parameters, by tool name

# reads the calls between two markers, or raises `ValueError`
Reader = Callable[[str, Schemas], list[ToolCall]]

_NAMES, _ARGUMENTS, _IDS = (
    ("name", "tool_name"),
    ("arguments", "parameters"),
    ("id", "tool_call_id"),
)

_OPEN_FENCE = re.compile(r"\s*```(?:json)?\s*")

_CLOSE_FENCE = re.compile(r"\s*(?:```\s*)?")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate key")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# strict decoder: no duplicate keys, no NaN
JSON = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)


def json_calls(text: str, _: Schemas) -> list[ToolCall]:
    """Read `{"name": ..., "arguments": {...}}`, a list of them, or several separated by `;`."""
    calls: list[Any] = []
    rest = text.strip()
    while rest:
        value, end = _decoded(rest)
        calls += value if isinstance(value, list) else [value]
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return _checked([*map(_from_object, calls)])


def fenced_calls(text: str, _: Schemas) -> list[ToolCall]:
    """Read a list of such objects between Markdown fences."""
    fence = _OPEN_FENCE.match(text)
    value, end = _decoded(text, 0 if fence is None else fence.end())
    if fence is None or not isinstance(value, list) or text[end:].strip() != "```":
        raise ValueError("no list between fences")
    return _checked([*map(_from_object, value)])


def headed(head: str) -> Reader:
    """Return a reader of one call: a head, then an object of arguments."""
    pattern = re.compile(rf"\s*{head}\s*")

    def headed_calls(text: str, _: Schemas) -> list[ToolCall]:
        start = pattern.match(text)
        if start is None:
            raise ValueError("no name before an object")
        value, end = _decoded(text, start.end())
        if not isinstance(value, dict) or not _CLOSE_FENCE.fullmatch(text, end):
            raise ValueError("no object after a name")
        call_id = start.groupdict().get("id") or ""
        return _checked([ToolCall(name=start["name"], arguments=value, id=call_id)])

    return headed_calls


def tagged(*, function: str, parameter: str, opened: str, closed: str, after: str) -> Reader:
    """Return a reader of calls whose arguments are unquoted text between tags.

    A value may contain the closing tag: it ends where another parameter or `after` follows.
    """
    begins, key = re.compile(rf"\s*{function}\s*+"), re.compile(rf"\s*{parameter}")
    ends = re.compile(rf"{re.escape(closed)}\s*+(?={parameter}|{after})")
    last = re.compile(rf"\s*{after}")

    def tagged_calls(text: str, schemas: Schemas) -> list[ToolCall]:
        calls, at = [], 0
        while at < len(text):
            start = begins.match(text, at)
            if start is None:
                raise ValueError("no name of a tool")
            schema, arguments = schemas.get(start["name"]), {}
            at = start.end()
            while opening := key.match(text, at):
                name, end = opening["key"].strip(), ends.search(text, opening.end())
                if end is None:
                    raise UnfinishedError("a value is not closed")
                value = text[opening.end() : end.start()]
                if name in arguments or _holds_another(value, opened, closed):
                    raise ValueError("an argument twice, or inside the value of another")
                value = value.removeprefix("\n").removesuffix("\n")
                arguments[name] = typed(value, schema, name)
                at = end.end()
            end = last.match(text, at)
            if end is None:
                raise ValueError("a call is not closed")
            calls.append(ToolCall(name=start["name"], arguments=arguments))
            at = end.end()
        return _checked(calls)

    return tagged_calls


def _holds_another(value: str, opened: str, closed: str) -> bool:
    """Whether a value was not closed and so contains the tags of the next one."""
    return value.count(opened) > value.count(closed) or 0 <= value.find(closed) < value.find(opened)


# reads `<function=name><parameter=key>value</parameter></function>`
xml_calls = tagged(
    function=r"<function=(?P<name>[^>\s]+)>",
    parameter=r"<parameter=(?P<key>[^>\n]+)>",
    opened="<parameter=",
    closed="</parameter>",
    after=r"</function>\s*+(?=<function=|\Z)",
)

# reads GLM's `name<arg_key>key</arg_key><arg_value>value</arg_value>`
pair_calls = tagged(
    function=r"(?P<name>[^<\s]+)",
    parameter=r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>",
    opened="<arg_value>",
    closed="</arg_value>",
    after=r"\Z",
)


def python_calls(text: str, _: Schemas) -> list[ToolCall]:
    """Read `[name(key=value), ...]`, or one call per line."""
    if len(text) > MAX_PYTHON:
        raise ValueError("too long")
    try:
        calls = []
        for line in ast.parse(text.strip()).body:
            if not isinstance(line, ast.Expr):
                raise ValueError("no call")
            value = line.value
            calls += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        tool_calls = [*map(_from_python, calls)]
    except SyntaxError as error:
        if "unterminated" in error.msg:
            raise UnfinishedError(error.msg) from error
        raise ValueError(error.msg) from error
    except (MemoryError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    return _checked(tool_calls)


class _Constants(ast.NodeTransformer):
    """Replaces JSON's constants, which some models write in Python."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        values = {"true": True, "false": False, "null": None}
        return ast.Constant(values[node.id]) if node.id in values else node


def _from_python(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise ValueError("no call with keyword arguments only")
    pairs = [
        (keyword.arg or "", as_json(ast.literal_eval(_Constants().visit(keyword.value))))
        for keyword in node.keywords
    ]
    return ToolCall(name=ast.unparse(node.func), arguments=_without_duplicates(pairs))


def _from_object(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError("no object")
    if isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}
    name, call_id = _first(value, _NAMES), _first(value, _IDS)
    if not isinstance(name, str) or not name:
        raise ValueError("no name")
    written = [key for key in _ARGUMENTS if key in value]
    others = value.keys() - {*_NAMES, *_IDS, "type", "function", "index"}
    if len(written) > 1 or (others and not written):
        raise ValueError("arguments in unexpected fields")
    arguments = _object(_first(value, _ARGUMENTS))
    return ToolCall(name=name, arguments=arguments, id=call_id if isinstance(call_id, str) else "")


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = JSON.decode(value) if value.strip() else None
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise ValueError("no object of arguments")
    return value


def _decoded(text: str, at: int = 0) -> tuple[Any, int]:
    """Decode the JSON value at a position; return it and its end."""
    try:
        return JSON.raw_decode(text, at)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise UnfinishedError(error.msg) from error
        raise
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _checked(calls: list[ToolCall]) -> list[ToolCall]:
    """Return calls whose names are identifiers, without ids that are not."""
    if not calls or not all(is_name(call.name) for call in calls):
        raise ValueError("no call of a tool")
    return [call if is_name(call.id) else replace(call, id="") for call in calls]


# --- arguments that are text ----------------------------------------------------------------------


def typed(text: str, schema: Any, key: str) -> Any:
    """Convert the text of an argument to a type that its schema allows.

    Reads JSON and Python constants. Where the schema allows a string, the text stays a string
    unless it is a null, list or object that the schema allows too.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    own = properties.get(key) if isinstance(properties, Mapping) else None
    types = types_of(own, schema)
    if not types - {"string"}:
        return text
    try:
        value = JSON.decode(text)
    except (ValueError, RecursionError):
        if len(text) > MAX_PYTHON:
            return text
        try:
            value = as_json(ast.literal_eval(text.strip()))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return text
    is_plain = not isinstance(value, dict | list | None)
    if "string" in types and (is_plain or _TYPE_NAMES[type(value)] not in types):
        return text
    return value


def as_json(value: Any) -> Any:
    """Convert a Python value to its JSON form."""
    return json.loads(json.dumps(value, allow_nan=False))


def types_of(schema: Any, root: Any) -> set[str]:
    """JSON types that a schema allows; empty if it does not say."""
    types: set[str] = set()
    rest, visited = [schema], 0
    while rest and visited < MAX_SCHEMAS:
        current = rest.pop()
        visited += 1
        if not isinstance(current, Mapping):
            continue
        kind = current.get("type")
        types.update(_TYPES & {k for k in _items(kind) or [kind] if isinstance(k, str)})
        if current.get("nullable") is True:
            types.add("null")
        if kind is None:
            constant = [current["const"]] if "const" in current else []
            values = [*_items(current.get("enum")), *constant]
            types.update(_TYPE_NAMES.get(type(value), "string") for value in values)
        for name in ("anyOf", "oneOf", "allOf"):
            rest += _items(current.get(name))
        if isinstance(current.get("$ref"), str):
            rest.append(_referred(current["$ref"], root))
    return types


def _items(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else []


def _referred(reference: str, root: Any) -> Any:
    """Follow a reference within a schema; `None` if it leads nowhere."""
    for name in reference.removeprefix("#").strip("/").split("/"):
        root = root.get(name) if isinstance(root, Mapping) else None
    return root
