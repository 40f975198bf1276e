"""Messages and tools as plain data, validated before a template sees them.

The format is that of OpenAI's chat completions, plus `reasoning_content`:
https://platform.openai.com/docs/api-reference/chat/create
"""

import base64
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.inputs.medium import Medium

Message = Mapping[str, Any]  # a message: `role`, `content`, and the other fields of its role

_Check = Callable[[Any, str], Any]  # copies a value, or raises `ChatError` with its place

# fields that clients send back or add, and that no template reads
_NOTES = ("annotations", "provider_specific_fields", "cache_control", "reasoning_details")

MAX_NAME = 128  # maximum characters of a name
MAX_MESSAGES = 16_384  # maximum messages of a conversation; contexts hold fewer
MAX_DEPTH = 32  # maximum nesting of data; schemas of tools reach ten
_NAME = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{MAX_NAME}}}")


class PartsError(ChatError):
    """The template renders a list of parts as if it were a string."""


class _Parts(list[dict[str, str]]):
    """Parts of texts and media; fails if a template converts them to a string."""

    media: tuple[Medium, ...] = ()

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
    valid = Messages(_message(item, f"messages[{n}]") for n, item in enumerate(messages))
    parts = [message["content"] for message in valid if isinstance(message["content"], _Parts)]
    valid.media = tuple(medium for content in parts for medium in content.media)
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
    return [
        {**_object(tool, place, _TOOL, required="function"), "type": "function"}
        for place, tool in _items(tools, "tools", "a list")
    ]


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


# --- checks ---------------------------------------------------------------------------------------


def _message(value: Any, where: str) -> dict[str, Any]:
    role = _one_of(_ROLES, _mapping(value, where).get("role"), f"{where}.role")
    message = _object(value, where, _ROLES[role])
    if message.get("tool_calls") == []:  # as vLLM writes it into every answer
        del message["tool_calls"]
    if "content" not in message:
        if "tool_calls" not in message:
            raise _wrong(f"{where}.content", "text", None)
        message["content"] = ""
    if "reasoning" in message:  # as vLLM and OpenRouter call it
        message.setdefault("reasoning_content", message.pop("reasoning"))
    if "reasoning_content" in message:  # templates of gpt-oss read `thinking`
        message["thinking"] = message["reasoning_content"]
    return message


def _content(value: Any, where: str) -> str | _Parts:
    if isinstance(value, str):
        return str(value)
    parts = _Parts()
    for place, item in _items(value, where, "text or a list of parts"):
        kind = _one_of(_PARTS, _mapping(item, place).get("type"), f"{place}.type")
        part = _object(item, place, {"type": _text, kind: _PARTS[kind]}, required=kind)
        if isinstance(part[kind], Medium):
            parts.media += (part[kind],)
            part = {"type": "image" if part[kind].kind == "images" else "audio"}
        parts.append(part)
    return parts


def _image_url(value: Any, where: str) -> Medium:
    url = _mapping(value, where).get("url")
    head, comma, data = (url if isinstance(url, str) else "").partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        advice = " Nothing is downloaded: send the image itself."
        raise _wrong(f"{where}.url", "data:image/...;base64,...", url, advice)
    return Medium("images", _decoded(data, f"{where}.url"))


def _input_audio(value: Any, where: str) -> Medium:
    fields = {"data": _decoded, "format": _any}  # `format` is not needed to decode it
    return Medium("sounds", _object(value, where, fields, required="data")["data"])


def _decoded(data: Any, where: str) -> bytes:
    try:
        return base64.b64decode(_text(data, where, expected="base64"), validate=True)
    except ValueError as error:
        raise ChatError(
            f"{where}: invalid base64: {error}. Encode the bytes of the file again."
        ) from error


def _of_caller(
    value: Any, where: str, *, kind: Literal["images", "sounds"], content: str
) -> Medium:
    # a path in a request of a stranger would show files of this machine
    if value is None or isinstance(value, str):
        raise _wrong(where, f"the bytes of a file, a pathlib.Path or an array of {content}", value)
    return Medium(kind, value)


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    calls = []
    for place, item in _items(value, where, "a list of calls"):
        call = _object(item, place, _CALL, required="function")
        call.pop("index", None)  # the place in the list; OpenAI's client keeps that of a stream
        call["function"].setdefault("arguments", _arguments({}, where))
        calls.append({**call, "type": "function"})
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


def _schema(value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, "a JSON schema", value)
    return plain(value, where)


def _object(
    value: Any, where: str, fields: Mapping[str, _Check], *, required: str = ""
) -> dict[str, Any]:
    """Check an object, without notes and the fields that are `None`.

    Fields keep their order, since some templates print tools and calls as they are.
    """
    checked = {}
    for key, item in _mapping(value, where).items():
        if item is None or key in _NOTES:
            continue
        if key not in fields:
            raise _wrong(where, ", ".join(fields), key, " Leave it out.")
        checked[str(key)] = fields[key](item, f"{where}.{key}")
    if required and required not in checked:
        fields[required](None, f"{where}.{required}")  # raises
    return checked


def _mapping(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise _wrong(where, "an object", value)
    return value


def _items(value: Any, where: str, expected: str) -> list[tuple[str, Any]]:
    """The items of a list, with their places."""
    if not _is_list(value):
        raise _wrong(where, expected, value)
    return [(f"{where}[{number}]", item) for number, item in enumerate(value)]


def _one_of(texts: Collection[str], value: Any, where: str) -> str:
    # `in` alone would compare arrays element by element
    if not (isinstance(value, str) and value in texts):
        raise _wrong(where, ", ".join(texts), value)
    return str(value)


def _text(
    value: Any, where: str, *, expected: str = "text", pattern: re.Pattern[str] | None = None
) -> str:
    if not isinstance(value, str) or (pattern is not None and not pattern.fullmatch(value)):
        raise _wrong(where, expected, value)
    return str(value)


def _any(value: Any, _: str) -> Any:
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _wrong(where: str, expected: str, value: Any, advice: str = "") -> ChatError:
    return ChatError(f"{where}: expected {expected}, got {shown(value)}.{advice}")


# --- fields and their checks ----------------------------------------------------------------------

_type = partial(_one_of, ("function",))
_function = partial(_object, required="name")
_name = partial(_text, expected=f"at most {MAX_NAME} letters, digits and _.:/-", pattern=_NAME)
_title = partial(
    _text, expected=f"at most {MAX_NAME} characters",
    pattern=re.compile(rf"(?s).{{0,{MAX_NAME}}}"),
)  # fmt: skip

_TOOL: Mapping[str, _Check] = {
    "type": _type,
    "function": partial(_function, fields={
        "name": _name, "description": _text, "parameters": _schema, "strict": plain,
        "return": plain,
    }),
}  # fmt: skip
_CALL: Mapping[str, _Check] = {
    "id": _name,
    "index": _any,
    "type": _type,
    "function": partial(_function, fields={"name": _name, "arguments": _arguments}),
}

_PARTS: Mapping[str, _Check] = {
    "text": _text,
    "image_url": _image_url, "input_audio": _input_audio,  # of OpenAI
    "image": partial(_of_caller, kind="images", content="pixels"),  # of transformers
    "audio": partial(_of_caller, kind="sounds", content="samples"),
}  # fmt: skip

_ASKED: Mapping[str, _Check] = {"role": _text, "content": _content, "name": _title}
_ROLES: Mapping[str, Mapping[str, _Check]] = {
    "system": _ASKED,
    "developer": _ASKED,
    "user": _ASKED,
    "assistant": {
        **_ASKED, "reasoning_content": _text, "reasoning": _text, "tool_calls": _tool_calls,
    },
    "tool": {**_ASKED, "tool_call_id": _name},
}  # fmt: skip
