"""The options of a question: those of a request, and what its prompt is made of."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortolan.runtime.chat.messages import Message
from ortolan.runtime.generation.options import Options

__all__ = ["ChatOptions", "split"]


class ChatOptions(Options, total=False):
    """What a question may say besides its messages, and all that a request may.

    Attributes:
        tools: what the model may call: `{"type": "function", "function": {...}}`.
        tool_choice: `"auto"`, the default, lets the model decide; `"required"` makes it call one
            of the tools or several; a name, or OpenAI's `{"type": "function", "function": {"name":
            ...}}`, makes it call that tool once; with `"none"` it calls none, though it sees them.
            All but `"auto"` need `ortolan[grammar]`.
        documents: for templates that take some.
        variables: more of what the template takes, such as `enable_thinking`.
        continue_final_message: go on with the last message, an answer: the reply is what comes
            after it. See `ChatTemplate.prompt`.
    """

    tools: Sequence[Message] | None
    tool_choice: str | Mapping[str, Any] | None
    documents: Sequence[Message] | None
    variables: Mapping[str, Any] | None
    continue_final_message: bool


_OWN = ChatOptions.__optional_keys__ - Options.__optional_keys__


def split(options: ChatOptions) -> tuple[dict[str, Any], Options]:
    """The options of a question apart from those of its request."""
    own = {name: value for name, value in options.items() if name in _OWN}
    rest: Any = {name: value for name, value in options.items() if name not in _OWN}
    return own, rest
