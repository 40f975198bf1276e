"""Messages and tools as plain data, validated before a template sees them.

The format is that of OpenAI's chat completions, plus `reasoning_content`:
https://platform.openai.com/docs/api-reference/chat/create
"""

import base64
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.inputs.medium import Medium

Message = Mapping[str, Any]  # a message: `role`, `content`, and the other fields of its role

# roles, and their fields besides `role` and `content`
_ROLES = {
    "system": ("name",),
    "developer": ("name",),
    "user": ("name",),
    "assistant": ("name", "reasoning_content", "tool_calls"),
    "tool": ("name", "tool_call_id"),
}

# fields that clients send back or add, and that no template reads
_NOTES = ("annotations", "provider_specific_fields", "cache_control", "reasoning_details")

# types of parts with an image or a sound
_PARTS: Mapping[str, Literal["images", "sounds"]] = {
    "image_url": "images", "input_audio": "sounds",  # of OpenAI
    "image": "images", "audio": "sounds",  # of transformers
}  # fmt: skip

MAX_NAME = 128  # maximum characters of a name
MAX_MESSAGES = 16_384  # maximum messages of a conversation; contexts hold fewer
MAX_DEPTH = 32  # maximum nesting of data; schemas of tools reach ten
_NAME = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{MAX_NAME}}}")


class PartsError(ChatError):
    """The template renders a list of parts as if it were a string."""


class _Parts(list[dict[str, str]]):
    """Parts of texts and images; fails if a template converts them to a string."""

    def __str__(self) -> str:
        raise PartsError("This chat template needs text, not a list of parts.")


class Messages(list[dict[str, Any]]):
    """Valid messages, and their images and sounds in order."""

    media: tuple[Medium, ...] = ()


class _Arguments(dict[str, Any]):
    """Arguments of a call, and their JSON as the caller wrote it."""

    text: str


def is_name(text: str) -> bool:
    """Whether a text is an identifier: letters, digits and `_.:/-`."""
    return _NAME.fullmatch(text) is not None


def check_messages(messages: Any) -> Messages:
    """Validate messages and copy them for a template, unless they are valid already.

    Fields that are `None` are dropped, and arguments of tool calls in JSON become objects.
    """
    if isinstance(messages, Messages):
        return messages
    if not _is_list(messages) or not 1 <= len(messages) <= MAX_MESSAGES:
        advice = ' Write [{"role": "user", "content": "..."}].'
        raise _wrong("messages", f"a list of 1 to {MAX_MESSAGES}", messages, advice)
    media: list[Medium] = []
    valid = Messages(_message(item, f"messages[{n}]", media) for n, item in enumerate(messages))
    valid.media = tuple(media)
    return valid


def check_only_text(messages: Messages) -> None:
    """Check messages for a model that reads text only."""
    if messages.media:
        number, kind = next(
            (number, part["type"])
            for number, message in enumerate(messages)
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] != "text"
        )
        raise ChatError(
            f"messages[{number}] has a part of the type {kind!r}, but this model reads text only. "
            "Leave it out, or use a model that reads it."
        )


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """Validate tools and copy them for a template."""
    if not _is_list(tools):
        raise _wrong("tools", "a list", tools)
    return [_tool(tool, f"tools[{n}]") for n, tool in enumerate(tools)]


def plain(value: Any, where: str, *, depth: int = 0) -> Any:
    """Copy plain data, which JSON can hold."""
    if depth > MAX_DEPTH:
        raise ChatError(f"{where}: data is nested more than {MAX_DEPTH} levels deep.")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {
            _text(key, f"{where}: a key"): plain(item, f"{where}.{key}", depth=depth + 1)
            for key, item in value.items()
        }
    if _is_list(value):
        return [plain(item, f"{where}[{n}]", depth=depth + 1) for n, item in enumerate(value)]
    raise _wrong(where, "JSON data", value)


def with_joined_text(message: dict[str, Any]) -> dict[str, Any]:
    """Replace a list of texts by their joined text, as templates that read parts write it."""
    content = message["content"]
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        return {**message, "content": "".join(part["text"] for part in content)}
    return message


def with_json_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Replace the arguments of calls by their JSON."""
    calls = [
        {**call, "function": {**function, "arguments": function["arguments"].text}}
        for call in message.get("tool_calls", ())
        for function in [call["function"]]
    ]
    return {**message, "tool_calls": calls} if calls else message


# --- messages -------------------------------------------------------------------------------------


def _message(value: Any, where: str, media: list[Medium]) -> dict[str, Any]:
    fields = _object(value, where)
    role = _one_of(_ROLES, fields.pop("role", None), f"{where}.role")
    if role == "assistant" and "reasoning" in fields:  # as vLLM and OpenRouter call it
        fields.setdefault("reasoning_content", fields.pop("reasoning"))
    if fields.get("tool_calls") == []:  # as vLLM writes it into every answer
        del fields["tool_calls"]
    fields = _object(fields, where, "content", *_ROLES[role])
    if not fields.keys() & {"content", "tool_calls"}:
        raise _wrong(f"{where}.content", "text", None)
    message: dict[str, Any] = {"role": role, "content": ""}
    for field, check in _FIELDS.items():
        if field in fields:
            message[field] = check(fields[field], f"{where}.{field}")
    if "content" in fields:
        message["content"] = _content(fields["content"], f"{where}.content", media)
    if "reasoning_content" in message:  # templates of gpt-oss read `thinking`
        message["thinking"] = message["reasoning_content"]
    return message


def _content(value: Any, where: str, media: list[Medium]) -> str | _Parts:
    if isinstance(value, str):
        return str(value)
    if not _is_list(value):
        raise _wrong(where, "text or a list of parts", value)
    parts = _Parts()
    for number, item in enumerate(value):
        place = f"{where}[{number}]"
        kind = _one_of(("text", *_PARTS), _object(item, place).get("type"), f"{place}.type")
        content = _object(item, place, "type", kind).get(kind)
        if kind == "text":
            parts.append({"type": "text", "text": _text(content, f"{place}.text")})
        else:
            media.append(Medium(_PARTS[kind], _medium(content, kind, f"{place}.{kind}")))
            parts.append({"type": "image" if media[-1].kind == "images" else "audio"})
    return parts


def _medium(value: Any, kind: str, where: str) -> Any:
    """The bytes in the data of a part, or what the caller of Python gave."""
    if kind == "input_audio":
        # `format` is not needed to decode it
        data = _object(value, where, "data", "format").get("data")
        return _decoded(_text(data, f"{where}.data"), f"{where}.data")
    if kind == "image_url":
        url = _object(value, where).get("url")
        head, comma, data = (url if isinstance(url, str) else "").partition(",")
        if not (comma and head.startswith("data:") and head.endswith(";base64")):
            advice = " Nothing is downloaded: send the image itself."
            raise _wrong(f"{where}.url", "data:image/...;base64,...", url, advice)
        return _decoded(data, f"{where}.url")
    # a path in a request of a stranger would show files of this machine
    if value is None or isinstance(value, str):
        content = "pixels" if kind == "image" else "samples"
        raise _wrong(where, f"the bytes of a file, a pathlib.Path or an array of {content}", value)
    return value


def _decoded(data: str, where: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ChatError(f"{where}: invalid base64: {error}.") from error


# --- calls and tools ------------------------------------------------------------------------------


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if not _is_list(value) or not value:
        raise _wrong(where, "a list of calls", value, " Leave it out.")
    calls = []
    for number, item in enumerate(value):
        place = f"{where}[{number}]"
        call, function = _function(item, place, "arguments", others=("id", "index"))
        call.pop("index", None)  # the place in the list; OpenAI's client keeps that of a stream
        if "id" in call:
            call["id"] = _name(call["id"], f"{place}.id")
        arguments = _arguments(function.get("arguments", {}), f"{place}.function.arguments")
        calls.append({**call, "function": {"name": function["name"], "arguments": arguments}})
    return calls


def _arguments(value: Any, where: str) -> _Arguments:
    data = value
    if isinstance(value, str):
        try:
            data = json.loads(value or "{}")
        except (ValueError, RecursionError) as error:
            raise ChatError(f"{where}: expected a JSON object, got {error}.") from error
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object or its JSON", data)
    arguments = _Arguments(plain(data, where))
    is_json = isinstance(value, str)
    arguments.text = str(value) if is_json else json.dumps(arguments, ensure_ascii=False)
    return arguments


def _tool(value: Any, where: str) -> dict[str, Any]:
    tool, function = _function(value, where, "description", "parameters", "strict", "return")
    _text(function.get("description", ""), f"{where}.function.description")
    parameters = function.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise _wrong(f"{where}.function.parameters", "a JSON schema", parameters)
    return {**tool, "function": plain(function, f"{where}.function")}


def _function(
    value: Any, where: str, *fields: str, others: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Validate a tool or a call, and its function; return both.

    Fields keep their order, since some templates print tools and calls as they are.
    """
    outer = _object(value, where, *others, "type", "function")
    _one_of(("function",), outer.get("type", "function"), f"{where}.type")
    function = _object(outer.get("function"), f"{where}.function", "name", *fields)
    _name(function.get("name"), f"{where}.function.name")
    return {**outer, "type": "function"}, function


# --- values ---------------------------------------------------------------------------------------


def _object(value: Any, where: str, *allowed: str) -> dict[str, Any]:
    """Copy an object without notes and the fields that are `None`."""
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object", value)
    fields = {key: item for key, item in value.items() if item is not None and key not in _NOTES}
    if allowed and not fields.keys() <= {*allowed}:
        other = next(key for key in fields if key not in allowed)
        raise _wrong(where, ", ".join(allowed), other, " Leave it out.")
    return fields


def _one_of(texts: Collection[str], value: Any, where: str) -> str:
    # `in` alone would compare arrays element by element
    if not (isinstance(value, str) and value in texts):
        raise _wrong(where, ", ".join(texts), value)
    return str(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "text", value)
    return str(value)


def _title(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise _wrong(where, f"at most {MAX_NAME} characters", value)
    return str(value)


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise _wrong(where, f"at most {MAX_NAME} letters, digits and _.:/-", value)
    return str(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _wrong(where: str, expected: str, value: Any, advice: str = "") -> ChatError:
    return ChatError(f"{where}: expected {expected}, got {shown(value)}.{advice}")


_FIELDS: Mapping[str, Callable[[Any, str], Any]] = {
    "reasoning_content": _text, "tool_calls": _tool_calls, "name": _title, "tool_call_id": _name,
}  # fmt: skip
