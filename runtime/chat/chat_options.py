"""The options of a chat request: those of its prompt, and those of `generate`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.chat.messages import Message
from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.generation.options import Options


class ChatOptions(Options, total=False):
    """Options of a chat request, in addition to all options of `generate`.

    Attributes:
        tools: tools that the model may call: `{"type": "function", "function": {...}}`.
        tool_choice: `"auto"` (default) lets the model decide; `"required"` forces one or more
            calls; `"none"` forbids calls, although the model sees the tools; a name, or OpenAI's
            `{"type": "function", "function": {"name": ...}}`, forces one call of that tool. All
            but `"auto"` need `ortolan[grammar]`.
        documents: documents, for templates that use them.
        variables: further variables of the template, such as `enable_thinking`.
        continue_final_message: continue the last message, an answer; the reply is the rest of it.
            See `ChatTemplate.prompt`.
    """

    tools: Sequence[Message] | None
    tool_choice: str | Mapping[str, Any] | None
    documents: Sequence[Message] | None
    variables: Mapping[str, Any] | None
    continue_final_message: bool


PROMPT_OPTIONS = ChatOptions.__optional_keys__ - Options.__optional_keys__


def check_choice(choice: Any, tools: Sequence[Message]) -> str:
    """Return the choice as text: `none`, `auto`, `required`, or the name of a tool."""
    if choice is None:
        return "auto"
    words: tuple[str, ...] = ("none", "auto", "required")
    if isinstance(choice, Mapping):  # names a tool, even one that is called "auto"
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else choice
        words = ()
    names = [tool["function"]["name"] for tool in tools]
    if not isinstance(choice, str) or choice not in (*words, *names):
        raise ChatError(
            "tool_choice must be 'none', 'auto', 'required' or the name of a tool "
            f"({', '.join(names) or 'there are none'}), got {shown(choice)}."
        )
    if choice == "required" and not names:
        raise ChatError("tool_choice='required' needs tools. Pass some.")
    return choice
