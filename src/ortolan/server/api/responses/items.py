"""Turns input items into messages."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ortolan.server.api.responses.body import convert
from ortolan.server.errors import ApiError

Parts = str | list[dict[str, Any]]
"""Text, or a list of content parts."""

_TEXT = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""Types of content parts, with the field that holds their text."""


class _Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str = "message"
    id: str | None = None
    status: str | None = None


class _Message(_Item, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    phase: str | None = None


class _Call(_Item, kw_only=True, forbid_unknown_fields=True):
    call_id: str
    name: str
    arguments: str


class _CallOutput(_Item, kw_only=True, forbid_unknown_fields=True):
    call_id: str
    output: Parts


class _Reasoning(_Item, kw_only=True, forbid_unknown_fields=True):
    summary: list[dict[str, Any]] = []
    content: list[dict[str, Any]] | None = None


def messages_of(items: Sequence[Any], *, instructions: str | None) -> list[dict[str, Any]]:
    """Turn items into messages for a chat template.

    Reasoning and calls join the message of the assistant that they belong to. A `phase` is a label
    for the client, which templates do not know.
    """
    conversation = _Conversation()
    if instructions is not None:
        conversation.messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        conversation.add(item, f"input[{number}]")
    conversation.end_reasoning()
    if not conversation.messages:
        raise ApiError("input is missing.", param="input")
    return conversation.messages


class _Conversation:
    """Messages so far, and the reasoning that waits for its message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""
        self._names: dict[str, str] = {}

    def add(self, item: Any, place: str) -> None:
        if not isinstance(item, Mapping):
            raise ApiError(f"{place} must be an object.", param=place)
        fields = {name: value for name, value in item.items() if value is not None}
        kind = fields.get("type", "message")
        structure = _STRUCTURES.get(kind) if isinstance(kind, str) else None
        if structure is None:
            raise ApiError(
                f"{place}: items of the type {str(kind)[:40]!r} are not supported. Send "
                f"{', '.join(_STRUCTURES)}.",
                code="item-type",
                param=f"{place}.type",
            )
        match convert(fields, structure, place):
            case _Message() as message:
                self._add_message(message, place)
            case _Reasoning(summary=summary, content=content):
                self._reasoning += _joined(content or summary, f"{place}.content")
            case _Call() as call:
                self._add_call(call)
            case _CallOutput() as output:
                self._add_output(output, place)

    def end_reasoning(self) -> None:
        """Let waiting reasoning be a message of its own."""
        if self._reasoning:
            self._add_assistant("")

    def _add_message(self, message: _Message, place: str) -> None:
        content = _content(message.content, f"{place}.content")
        if message.role == "assistant":
            self._add_assistant(content)
            return
        self.end_reasoning()
        self.messages.append({"role": message.role, "content": content})

    def _add_assistant(self, content: Any) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning:
            message["reasoning_content"], self._reasoning = self._reasoning, ""
        self.messages.append(message)
        return message

    def _add_call(self, call: _Call) -> None:
        self._names[call.call_id] = call.name
        message = self.messages[-1] if self.messages else {}
        if message.get("role") != "assistant" or self._reasoning:
            message = self._add_assistant("")
        function = {"name": call.name, "arguments": call.arguments}
        message.setdefault("tool_calls", []).append(
            {"id": call.call_id, "type": "function", "function": function}
        )

    def _add_output(self, output: _CallOutput, place: str) -> None:
        name = self._names.get(output.call_id)
        if name is None:
            raise ApiError(
                f"{place}.call_id: there is no earlier function_call with the id "
                f"{output.call_id[:64]!r}. Send the call before its output.",
                code="call-missing",
                param=f"{place}.call_id",
            )
        self.end_reasoning()
        content = _content(output.output, f"{place}.output")
        self.messages.append(
            {"role": "tool", "tool_call_id": output.call_id, "name": name, "content": content}
        )


_STRUCTURES: dict[str, type[_Item]] = {
    "message": _Message,
    "function_call": _Call,
    "function_call_output": _CallOutput,
    "reasoning": _Reasoning,
}
"""Items by type."""


def _content(parts: Parts, place: str) -> Any:
    """Text, or a list of text parts if there are several."""
    if isinstance(parts, str):
        return parts
    texts = [_text(part, f"{place}[{number}]") for number, part in enumerate(parts)]
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": t} for t in texts]


def _joined(parts: list[dict[str, Any]], place: str) -> str:
    return "".join(_text(part, f"{place}[{number}]") for number, part in enumerate(parts))


def _text(part: dict[str, Any], place: str) -> str:
    kind = part.get("type")
    field = _TEXT.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise ApiError(
            f"{place}: content of the type {str(kind)[:40]!r} is not supported. Send text.",
            code="content-type",
            param=f"{place}.type",
        )
    text = part.get(field)
    if not isinstance(text, str):
        raise ApiError(f"{place}.{field} must be text.", param=f"{place}.{field}")
    return text
