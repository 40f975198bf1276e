"""Messages and tools as plain data, validated before a template sees them.

The format is that of OpenAI's chat completions, plus `reasoning_content`:
https://platform.openai.com/docs/api-reference/chat/create
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.inputs.medium import Medium

Message = Mapping[str, Any]
"""A message: `role`, `content`, and the other fields of its role."""

_FIELDS = {
    "system": ("name",),
    "developer": ("name",),
    "user": ("name",),
    "assistant": ("name", "reasoning_content", "tool_calls"),
    "tool": ("name", "tool_call_id"),
}
"""Roles, and their fields besides `role` and `content`."""

ROLES = tuple(_FIELDS)

_NOTES = ("annotations", "provider_specific_fields", "cache_control", "reasoning_details")
"""Fields that clients send back or add, and that no template reads."""

MAX_NAME = 128
"""Maximum characters of a name."""

_IMAGES, _SOUNDS = ("image_url", "image"), ("input_audio", "audio")
"""Types of parts with an image or a sound: of OpenAI, and of transformers."""

MAX_MESSAGES = 16_384
"""Maximum messages of a conversation; contexts hold fewer."""

MAX_DEPTH = 32
"""Maximum nesting of data; schemas of tools reach ten."""

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


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
        raise ChatError(
            f"messages: expected a list of 1 to {MAX_MESSAGES}, got {_got(messages)}. "
            'Write [{"role": "user", "content": "..."}].'
        )
    media: list[Medium] = []
    valid = Messages(_message(item, f"messages[{n}]", media) for n, item in enumerate(messages))
    valid.media = tuple(media)
    return valid


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """Validate tools and copy them for a template."""
    if not _is_list(tools):
        raise ChatError(f"tools: expected a list, got {_got(tools)}.")
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
        for key in value:
            _text(key, f"{where}: a key")
        return {
            str(key): plain(item, f"{where}.{key}", depth=depth + 1) for key, item in value.items()
        }
    if _is_list(value):
        return [plain(item, f"{where}[{n}]", depth=depth + 1) for n, item in enumerate(value)]
    raise ChatError(f"{where}: expected JSON data, got {_got(value)}.")


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


def _message(value: Any, where: str, media: list[Medium]) -> dict[str, Any]:
    fields = _object(value, where)
    role = fields.pop("role", None)
    if not _is_one_of(role, ROLES):
        raise ChatError(f"{where}.role: expected {', '.join(ROLES)}, got {shown(role)}.")
    if fields.get("tool_calls") == []:  # as vLLM writes it into every answer
        del fields["tool_calls"]
    if role == "assistant" and "reasoning" in fields:  # as vLLM and OpenRouter call it
        fields.setdefault("reasoning_content", fields.pop("reasoning"))
    _check_fields(fields, ("content", *_FIELDS[role]), where)
    message = {"role": role}
    if "content" in fields:
        message["content"] = _content(fields["content"], f"{where}.content", media)
    elif "tool_calls" in fields:
        message["content"] = ""
    else:
        raise ChatError(f"{where}.content: expected text, got none.")
    if "reasoning_content" in fields:
        text = _text(fields["reasoning_content"], f"{where}.reasoning_content")
        # templates of gpt-oss read `thinking`
        message |= {"reasoning_content": text, "thinking": text}
    if "tool_calls" in fields:
        message["tool_calls"] = _tool_calls(fields["tool_calls"], f"{where}.tool_calls")
    if "name" in fields:
        message["name"] = _text(fields["name"], f"{where}.name", most=MAX_NAME)
    if "tool_call_id" in fields:
        message["tool_call_id"] = _name(fields["tool_call_id"], f"{where}.tool_call_id")
    return message


def _content(value: Any, where: str, media: list[Medium]) -> Any:
    if isinstance(value, str):
        return str(value)
    if not _is_list(value):
        raise ChatError(f"{where}: expected text or a list of text parts, got {_got(value)}.")
    parts = _Parts()
    for number, item in enumerate(value):
        place = f"{where}[{number}]"
        part = _object(item, place)
        kind = part.get("type")
        if not _is_one_of(kind, ("text", *_IMAGES, *_SOUNDS)):
            raise ChatError(
                f'{place}.type: expected "text", "image_url" or "input_audio", got {shown(kind)}. '
                "This version supports parts of text, images and sounds."
            )
        _check_fields(part, ("type", str(kind)), place)
        if kind == "text":
            parts.append({"type": "text", "text": _text(part.get("text"), f"{place}.text")})
        else:
            media.append(_medium(part, place))
            parts.append({"type": "image" if media[-1].kind == "images" else "audio"})
    return parts


def check_only_text(messages: Messages) -> None:
    """Check messages for a model that reads text only."""
    for number, message in enumerate(messages):
        content = message["content"]
        kinds = [] if isinstance(content, str) else [part["type"] for part in content]
        other = next((kind for kind in kinds if kind != "text"), None)
        if other is not None:
            raise ChatError(
                f"messages[{number}] has a part of the type {other!r}, but this model reads text "
                "only. Leave it out, or use a model that reads it."
            )


def _medium(part: Message, where: str) -> Medium:
    """The image or sound of a part: the bytes in its data, or what the caller gave."""
    kind = part["type"]
    if kind in ("image", "audio"):
        value = part.get(kind)
        # A path in a request of a stranger would show files of this machine.
        if value is None or isinstance(value, str):
            content = "pixels" if kind == "image" else "samples"
            raise ChatError(
                f"{where}.{kind}: expected the bytes of a file, a pathlib.Path or an array of "
                f"{content}, got {shown(value)}."
            )
        return Medium("images" if kind == "image" else "sounds", value)
    if kind == "input_audio":
        return Medium("sounds", _audio(part, where))
    return Medium("images", _image(part, where))


def _audio(part: Message, where: str) -> bytes:
    """The sound of a part of OpenAI: its data in base64; `format` is not needed to decode it."""
    sound = _object(part.get("input_audio"), f"{where}.input_audio")
    _check_fields(sound, ("data", "format"), f"{where}.input_audio")
    data = sound.get("data")
    if not isinstance(data, str):
        raise ChatError(f"{where}.input_audio.data: expected base64, got {shown(data)}.")
    return _decoded(data, f"{where}.input_audio.data")


def _image(part: Message, where: str) -> bytes:
    """The image in the data URL of a part."""
    url = _object(part.get("image_url"), f"{where}.image_url").get("url")
    head, comma, data = (url if isinstance(url, str) else "").partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise ChatError(
            f"{where}.image_url.url: expected data:image/...;base64,..., got {shown(url)}. Nothing "
            "is downloaded: send the image itself."
        )
    return _decoded(data, f"{where}.image_url.url")


def _decoded(data: str, where: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ChatError(f"{where}: invalid base64: {error}.") from error


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if not _is_list(value) or not value:
        raise ChatError(f"{where}: expected a list of calls, got {_got(value)}. Leave it out.")
    calls = []
    for number, item in enumerate(value):
        place = f"{where}[{number}]"
        call, function = _function(item, place, ("name", "arguments"), others=("id", "index"))
        call.pop("index", None)  # the place in the list; OpenAI's client keeps that of a stream
        if "id" in call:
            call["id"] = _name(call["id"], f"{place}.id")
        call["function"] = {
            "name": _name(function.get("name"), f"{place}.function.name"),
            "arguments": _arguments(function.get("arguments", {}), f"{place}.function.arguments"),
        }
        calls.append(call)
    return calls


def _arguments(value: Any, where: str) -> dict[str, Any]:
    data = value
    if isinstance(value, str):
        try:
            data = json.loads(value or "{}")
        except (ValueError, RecursionError) as error:
            raise ChatError(f"{where}: expected a JSON object, got {error}.") from error
    if not isinstance(data, Mapping):
        raise ChatError(f"{where}: expected an object or its JSON, got {_got(data)}.")
    arguments = _Arguments(plain(data, where))
    is_json = isinstance(value, str)
    arguments.text = str(value) if is_json else json.dumps(arguments, ensure_ascii=False)
    return arguments


def _tool(value: Any, where: str) -> dict[str, Any]:
    fields = ("name", "description", "parameters", "strict", "return")
    tool, function = _function(value, where, fields)
    _name(function.get("name"), f"{where}.function.name")
    if "description" in function:
        _text(function["description"], f"{where}.function.description")
    if "parameters" in function and not isinstance(function["parameters"], Mapping):
        raise ChatError(
            f"{where}.function.parameters: expected a JSON schema, got "
            f"{_got(function['parameters'])}."
        )
    return {**tool, "function": plain(function, f"{where}.function")}


def _function(
    value: Any, where: str, fields: Sequence[str], *, others: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Validate a tool or a call, and its function; return both.

    The first keeps the order of its fields, since some templates print it as it is.
    """
    outer = _object(value, where)
    _check_fields(outer, (*others, "type", "function"), where)
    if not _is_one_of(outer.get("type", "function"), ("function",)):
        raise ChatError(f'{where}.type: expected "function", got {shown(outer["type"])}.')
    function = _object(outer.get("function"), f"{where}.function")
    _check_fields(function, fields, f"{where}.function")
    return {**outer, "type": "function"}, function


def _object(value: Any, where: str) -> dict[str, Any]:
    """Copy an object without notes and the fields that are `None`."""
    if not isinstance(value, Mapping):
        raise ChatError(f"{where}: expected an object, got {_got(value)}.")
    return {key: item for key, item in value.items() if item is not None and key not in _NOTES}


def _check_fields(value: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in value:
        if key not in allowed:
            raise ChatError(
                f"{where}: expected {', '.join(allowed)}, got {shown(key)}. Leave it out."
            )


def _text(value: Any, where: str, *, most: int | None = None) -> str:
    if not isinstance(value, str):
        raise ChatError(f"{where}: expected text, got {_got(value)}.")
    if most is not None and len(value) > most:
        raise ChatError(f"{where}: expected at most {most} characters, got {len(value)}.")
    return str(value)


def _name(value: Any, where: str) -> str:
    text = _text(value, where)
    if not is_name(text):
        raise ChatError(
            f"{where}: expected at most 128 letters, digits and _.:/-, got {text[:40]!r}."
        )
    return text


def _is_one_of(value: Any, texts: Sequence[str]) -> bool:
    """Whether a value is one of the texts; `in` alone would compare arrays element by element."""
    return isinstance(value, str) and value in texts


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _got(value: Any) -> str:
    if value is None:
        return "none"
    return f"a list of {len(value)}" if _is_list(value) else f"a {type(value).__name__}"
