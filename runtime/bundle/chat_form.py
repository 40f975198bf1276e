"""The chat template of a bundle as texts around messages, for hosts that cannot render Jinja."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Record, TokenId

Role = Literal["system", "user", "assistant"]
Trim = Literal["white_space", "trailing_white_space", "leading_lines"]
ChatText = Annotated[str, Meta(max_length=limits.MAX_CHAT_TEXT)]

DATE = "\ue000"
"""Stands for the current date in the texts of a form."""

TRIMS: Mapping[Trim, Callable[[str], str]] = {
    "white_space": str.strip,
    "trailing_white_space": str.rstrip,
    "leading_lines": lambda text: text.lstrip("\n"),
}
"""What a template cuts off the content of a message."""


class ChatForm(Record, frozen=True, kw_only=True):
    """Texts around the messages of a conversation.

    A conversation is a system message or none, then messages of the user and of the assistant in
    turn; the last one is the user's. Its prompt is encoded without special tokens:

        opening  user  answer  assistant  next  user  closing

    Attributes:
        opening: before the first message of a user.
        answer: between a message of a user and its answer.
        next: between an answer and the next message.
        closing: after the last message, up to where the model answers.
        system: before and after a system message; `None` if the template rejects one.
        system_place: `first` puts these in the place of `opening`, `last` before the content of the
            last message.
        trims: what is cut off the contents, by role.
        date: format (`strftime`) of the current date, for which U+E000 stands in these texts.
        ends: tokens that end an answer, besides `tokens.eos`.
        control: tokens that are not special, but may not occur in a message either.
    """

    opening: ChatText
    answer: ChatText
    next: ChatText
    closing: ChatText
    system: tuple[ChatText, ChatText] | None = None
    system_place: Literal["first", "last"] = "first"
    trims: dict[Role, Trim] = field(default_factory=dict)
    date: Annotated[str, Meta(max_length=limits.MAX_LABEL_LENGTH)] | None = None
    ends: Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_STOP_TOKENS)] = ()
    control: Annotated[tuple[TokenId, ...], Meta(max_length=limits.MAX_SUPPRESSED)] = ()

    def write(self, messages: Sequence[tuple[Role, str]], now: datetime) -> str:
        """Return the prompt of a conversation of roles and contents."""
        date = "" if self.date is None else now.strftime(self.date)

        def own(text: str) -> str:
            return text.replace(DATE, date)

        contents = [
            TRIMS[self.trims[role]](text) if role in self.trims else text for role, text in messages
        ]
        opening, inserted = own(self.opening), ""
        if messages[0][0] == "system" and self.system is not None:
            inserted = contents.pop(0).join(map(own, self.system))
            if self.system_place == "first":
                opening, inserted = inserted, ""
        contents[-1] = inserted + contents[-1]
        between = own(self.answer), own(self.next)
        parts = [opening, contents[0]]
        for index, text in enumerate(contents[1:]):
            parts += [between[index % 2], text]
        return "".join([*parts, own(self.closing)])
