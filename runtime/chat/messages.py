"""Messages and tools as data, checked strictly before a template sees them.

The form is that of OpenAI's chat completions, with `reasoning_content` beside the content:
https://platform.openai.com/docs/api-reference/chat/create
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.errors import ChatError, shown

__all__ = [
    "Message",
    "PartsError",
    "checked_messages",
    "checked_tools",
    "is_name",
    "one_text",
    "plain",
    "with_json",
]

Message = Mapping[str, Any]
"""A message: `role`, `content` and what belongs to the role."""

ROLES = ("system", "developer", "user", "assistant", "tool")

_FIELDS = {
    "system": ("name",),
    "developer": ("name",),
    "user": ("name",),
    "assistant": ("name", "reasoning_content", "tool_calls"),
    "tool": ("name", "tool_call_id"),
}
"""What each role has besides `role` and `content`."""

MAX_MESSAGES = 16_384
"""Messages of one conversation; a context holds fewer."""

MAX_DEPTH = 32
"""Of values within values: schemas of tools reach ten."""


class PartsError(ChatError):
    """A template writes a list of parts as if it were a text."""


class _Parts(list[dict[str, str]]):
    """Text parts, which no template writes as Python writes a list."""

    def __str__(self) -> str:
        raise PartsError(
            "content: this chat template takes a text, not a list of parts. Join the parts."
        )


class _Arguments(dict[str, Any]):
    """Arguments of a call.

    Attributes:
        text: their JSON, as it was given.
    """

    text: str


_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def is_name(text: str) -> bool:
    """Whether a text is an identifier: letters, digits and `_.:/-`."""
    return _NAME.fullmatch(text) is not None


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Check messages, and copy them as a template takes them.

    Keys whose value is None are left out, several text parts stay a list, and arguments of tool
    calls become objects where they are JSON.

    Raises:
        ChatError: something is wrong; names the message and the field.
    """
    if not _is_list(messages) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise ChatError(
            f"messages: expected a list of 1 to {MAX_MESSAGES}, got {_got(messages)}. "
            'Write [{"role": "user", "content": "..."}].'
        )
    return [_message(message, f"messages[{n}]") for n, message in enumerate(messages)]


def checked_tools(tools: Any) -> list[dict[str, Any]]:
    """Check the tools that a model may call, and copy them.

    Raises:
        ChatError: something is wrong; names the tool and the field.
    """
    if not _is_list(tools):
        raise ChatError(f"tools: expected a list, got {_got(tools)}.")
    return [_tool(tool, f"tools[{n}]") for n, tool in enumerate(tools)]


def plain(value: Any, where: str, *, depth: int = 0) -> Any:
    """A copy of plain data: what JSON can hold.

    Raises:
        ChatError: it is something else, or values within values without end.
    """
    if depth > MAX_DEPTH:
        raise ChatError(f"{where}: expected at most {MAX_DEPTH} values within values, got more.")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        for key in value:
            _check_text(key, f"{where}: a key")
        return {
            str(key): plain(each, f"{where}.{key}", depth=depth + 1) for key, each in value.items()
        }
    if _is_list(value):
        return [plain(each, f"{where}[{n}]", depth=depth + 1) for n, each in enumerate(value)]
    raise ChatError(f"{where}: expected what JSON can hold, got {_got(value)}.")


def _message(given: Any, where: str) -> dict[str, Any]:
    values = _object(given, where)
    role = values.pop("role", None)
    if not _is_one_of(role, ROLES):
        raise ChatError(f"{where}.role: expected {', '.join(ROLES)}, got {shown(role)}.")
    _refuse_others(values, ("content", *_FIELDS[role]), where)
    message = {"role": role}
    if "content" in values:
        message["content"] = _content(values["content"], f"{where}.content")
    elif "tool_calls" in values:
        message["content"] = ""
    else:
        raise ChatError(f"{where}.content: expected a text, got none.")
    if "reasoning_content" in values:
        text = _check_text(values["reasoning_content"], f"{where}.reasoning_content")
        # templates of gpt-oss read `thinking`
        message |= {"reasoning_content": text, "thinking": text}
    if "tool_calls" in values:
        message["tool_calls"] = _tool_calls(values["tool_calls"], f"{where}.tool_calls")
    for field in ("name", "tool_call_id"):
        if field in values:
            message[field] = _check_name(values[field], f"{where}.{field}")
    return message


def one_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is a text, where it is a list of one part."""
    content = message["content"]
    if isinstance(content, list) and len(content) == 1:
        return {**message, "content": content[0]["text"]}
    return message


def with_json(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as JSON."""
    calls = [
        {**call, "function": {**function, "arguments": function["arguments"].text}}
        for call in message.get("tool_calls", ())
        for function in [call["function"]]
    ]
    return {**message, "tool_calls": calls} if calls else message


def _content(given: Any, where: str) -> Any:
    if isinstance(given, str):
        return str(given)
    if not _is_list(given):
        raise ChatError(f"{where}: expected a text or a list of text parts, got {_got(given)}.")
    parts = _Parts()
    for number, each in enumerate(given):
        part = _object(each, f"{where}[{number}]")
        if not _is_one_of(part.get("type"), ("text",)):
            raise ChatError(
                f'{where}[{number}].type: expected "text", got {shown(part.get("type"))}. '
                "This version reads texts only."
            )
        _refuse_others(part, ("type", "text"), f"{where}[{number}]")
        text = _check_text(part.get("text"), f"{where}[{number}].text")
        parts.append({"type": "text", "text": text})
    return parts


def _tool_calls(given: Any, where: str) -> list[dict[str, Any]]:
    if not _is_list(given) or not given:
        raise ChatError(f"{where}: expected a list of calls, got {_got(given)}. Leave it out.")
    calls = []
    for number, each in enumerate(given):
        call = _object(each, f"{where}[{number}]")
        _refuse_others(call, ("id", "type", "function"), f"{where}[{number}]")
        _check_type(call, f"{where}[{number}]")
        function = _object(call.get("function"), f"{where}[{number}].function")
        _refuse_others(function, ("name", "arguments"), f"{where}[{number}].function")
        inside = f"{where}[{number}].function"
        made: dict[str, Any] = {}
        if "id" in call:
            made["id"] = _check_name(call["id"], f"{where}[{number}].id")
        made["type"] = "function"
        made["function"] = {
            "name": _check_name(function.get("name"), f"{inside}.name"),
            "arguments": _arguments(function.get("arguments", {}), f"{inside}.arguments"),
        }
        calls.append({**dict.fromkeys(call), **made})  # some templates write a call as it is
    return calls


def _arguments(given: Any, where: str) -> dict[str, Any]:
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise ChatError(f"{where}: expected JSON of an object, got {error}.") from error
    if not isinstance(value, Mapping):
        raise ChatError(f"{where}: expected an object, or JSON of one, got {_got(value)}.")
    made = _Arguments(plain(value, where))
    made.text = str(given) if isinstance(given, str) else json.dumps(made, ensure_ascii=False)
    return made


def _tool(given: Any, where: str) -> dict[str, Any]:
    tool = _object(given, where)
    _refuse_others(tool, ("type", "function"), where)
    _check_type(tool, where)
    function = _object(tool.get("function"), f"{where}.function")
    allowed = ("name", "description", "parameters", "strict", "return")
    _refuse_others(function, allowed, f"{where}.function")
    _check_name(function.get("name"), f"{where}.function.name")
    if "description" in function:
        _check_text(function["description"], f"{where}.function.description")
    if "parameters" in function and not isinstance(function["parameters"], Mapping):
        raise ChatError(
            f"{where}.function.parameters: expected a JSON schema, got "
            f"{_got(function['parameters'])}."
        )
    made = {"type": "function", "function": plain(function, f"{where}.function")}
    return {**dict.fromkeys(tool), **made}


def _object(given: Any, where: str) -> dict[str, Any]:
    """The fields of an object that have a value."""
    if not isinstance(given, Mapping):
        raise ChatError(f"{where}: expected an object, got {_got(given)}.")
    return {key: value for key, value in given.items() if value is not None}


def _refuse_others(given: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in given:
        if key not in allowed:
            raise ChatError(
                f"{where}: expected {', '.join(allowed)}, got {shown(key)}. Leave it out."
            )


def _check_type(given: Mapping[str, Any], where: str) -> None:
    if not _is_one_of(given.get("type", "function"), ("function",)):
        raise ChatError(f'{where}.type: expected "function", got {shown(given["type"])}.')


def _check_text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ChatError(f"{where}: expected a text, got {_got(given)}.")
    return str(given)


def _check_name(given: Any, where: str) -> str:
    text = _check_text(given, where)
    if not is_name(text):
        raise ChatError(
            f"{where}: expected at most 128 letters, digits and _.:/-, got {text[:40]!r}."
        )
    return text


def _is_one_of(value: Any, texts: Sequence[str]) -> bool:
    """Whether a value is one of some texts; arrays compare number by number."""
    return isinstance(value, str) and value in texts


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _got(value: Any) -> str:
    if value is None:
        return "none"
    return f"{len(value)} of them" if _is_list(value) else f"a {type(value).__name__}"
