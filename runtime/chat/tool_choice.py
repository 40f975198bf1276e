"""`tool_choice`: whether a reply calls tools, and which."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.chat.messages import Message
from ortolan.runtime.errors import ChatError, shown


def check_choice(choice: Any, tools: Sequence[Message]) -> str:
    """Return the choice as text: `none`, `auto`, `required`, or the name of a tool."""
    if choice is None:
        return "auto"
    words: tuple[str, ...] = ("none", "auto", "required")
    if isinstance(choice, Mapping):  # names a tool, even one that is called "auto"
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else choice
        words = ()
    names = [function["name"] for function in functions_of(tools)]
    if not isinstance(choice, str) or choice not in (*words, *names):
        raise ChatError(
            "tool_choice must be 'none', 'auto', 'required' or the name of a tool "
            f"({', '.join(names) or 'there are none'}), got {shown(choice)}."
        )
    if choice == "required" and not names:
        raise ChatError("tool_choice='required' needs tools. Pass some.")
    return choice


def functions_of(tools: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return the function of each tool."""
    return [tool["function"] for tool in tools]
