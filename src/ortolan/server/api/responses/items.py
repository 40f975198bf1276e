"""Items of the input, and the messages that they become."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ortolan.server.api.logprobs import TokenLogprob
from ortolan.server.errors import ApiError


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Text of an item; `logprobs` is empty unless the request includes them."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"]
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[TokenLogprob] | None = None

    def __post_init__(self) -> None:
        field = "refusal" if self.type == "refusal" else "text"
        if getattr(self, field) is None:
            raise ValueError(f"{field} is missing")


_FIELDS = {
    "message": ("role content", "phase"),
    "function_call": ("call_id name arguments", ""),
    "function_call_output": ("call_id output", ""),
    "reasoning": ("", "summary content"),
}
"""Fields of items by type, the required ones first."""


class Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An item of the input or the output: a message, reasoning, a call or its output.

    Attributes:
        type: a message by default.
        phase: a label for the client, which templates do not know.
        call_id: answer a `function_call` with a `function_call_output` of the same `call_id`.
    """

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None

    def __post_init__(self) -> None:
        self.type = self.type or "message"
        required, others = (set(names.split()) for names in _FIELDS[self.type])
        given = {n for n in self.__struct_fields__ if getattr(self, n) is not None}
        if missing := required - given:
            raise ValueError(f"{self.type} needs {', '.join(sorted(missing))}")
        if unknown := given - required - others - {"type", "id", "status"}:
            raise ValueError(f"{self.type} has no {', '.join(sorted(unknown))}")


def messages_of(items: Sequence[Item], *, instructions: str | None) -> list[dict[str, Any]]:
    """Turn items into messages for a chat template.

    Reasoning and calls join the message of the assistant that they belong to.
    """
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    reasoning = ""

    def say(role: str, content: Any, **more: Any) -> None:
        nonlocal reasoning
        if reasoning and role != "assistant":  # no message followed it
            say("assistant", "")
        own = {"reasoning_content": reasoning} if reasoning else {}
        messages.append({"role": role, "content": content, **own, **more})
        reasoning = ""

    if instructions is not None:
        say("system", instructions)
    for number, item in enumerate(items):
        call_id = item.call_id or ""
        match item.type:
            case "message":
                say(item.role or "", _content(item.content))
            case "reasoning":
                reasoning += "".join(_texts(item.content or item.summary or ()))
            case "function_call":
                names[call_id] = item.name or ""
                if reasoning or not messages or messages[-1]["role"] != "assistant":
                    say("assistant", "")
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                if call_id not in names:
                    raise ApiError(
                        f"There is no earlier function_call with the id {call_id[:64]!r}. Send the "
                        "call before its output.",
                        code="call-missing",
                        param=f"input[{number}].call_id",
                    )
                content = _content(item.output)
                say("tool", content, tool_call_id=call_id, name=names[call_id])
    if reasoning:
        say("assistant", "")
    if not messages:
        raise ApiError("input is missing.", param="input")
    return messages


def _content(parts: str | Sequence[Part] | None) -> Any:
    """Text, or a list of text parts if there are several."""
    texts = _texts(parts or ())
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": t} for t in texts]


def _texts(parts: str | Sequence[Part]) -> list[str]:
    if isinstance(parts, str):
        return [parts]
    return [(part.refusal if part.type == "refusal" else part.text) or "" for part in parts]
