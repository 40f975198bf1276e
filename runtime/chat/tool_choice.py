"""Whether a reply calls tools, as the caller chose."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.chat.messages import Message
from ortolan.runtime.errors import ChatError, shown
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.options import Options

__all__ = ["checked_choice", "offered", "with_grammar"]


def checked_choice(choice: Any, tools: Sequence[Message]) -> str:
    """A choice as a text: `none`, `auto`, `required`, or the name of a tool.

    Raises:
        ChatError: it is neither, or asks for a call where there is no such tool.
    """
    if choice is None:
        return "auto"
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else choice
        words: tuple[str, ...] = ()
    else:
        words = ("none", "auto", "required")
    if not isinstance(choice, str):
        raise ChatError(
            "tool_choice: expected 'none', 'auto', 'required' or the name of a tool, got "
            f"{shown(choice)}."
        )
    names = [function["name"] for function in offered(tools)]
    if choice in words:
        if choice == "required" and not names:
            raise ChatError("tool_choice: 'required' needs tools, got none. Give some.")
        return choice
    if choice not in names:
        raise ChatError(
            f"tool_choice: expected 'none', 'auto', 'required' or one of the tools "
            f"({', '.join(names) or 'there are none'}), got {shown(choice)}."
        )
    return choice


def offered(tools: Sequence[Message]) -> list[Mapping[str, Any]]:
    """The functions of some tools."""
    return [tool["function"] for tool in tools]


def with_grammar(options: Options, grammar: Grammar) -> Options:
    """The options of a request whose text follows a grammar.

    Raises:
        ChatError: they have one already.
    """
    if options.get("grammar") is not None:
        raise ChatError(
            "tool_choice: expected 'auto', since `grammar` says what the reply may be, got another "
            "choice. Leave one of the two out."
        )
    return {**options, "grammar": grammar}
