"""The chat template of a bundle: messages to the ids of a prompt."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from ortolan.runtime.chat.messages import Message, checked_messages, checked_tools, plain
from ortolan.runtime.chat.provenance import Marks, Span, marked, unmarked
from ortolan.runtime.errors import ChatError, ChatTemplateError, shown
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.jinja.template import Template

__all__ = ["ChatTemplate", "Prompt"]

MAX_ROUNDS = 8
"""Cuts within cuts: a control token that holds others takes one for each."""

_PROBE = "a text to be found again"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked.

    Attributes:
        ids: of the tokens.
        text: what the template wrote.
    """

    ids: list[int]
    text: str


class ChatTemplate:
    """Writes messages as the model was trained to read them.

    Control tokens, which say whose turn it is, come from the template alone: in a text of the user
    they are encoded as the text that they are. Threads may share it.

    Attributes:
        source: of all its templates.
        tokenizer: of the bundle.

    Args:
        source: the template, in Jinja; or several by name: `default`, and `tool_use` for tools.
        tokenizer: of the bundle.
        special_tokens: what the template knows by name, such as `bos_token`.

    Raises:
        ChatTemplateError: it is no template.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str],
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in sources:
            raise ChatTemplateError(
                f"chat template: expected one named default, got {', '.join(sources) or 'none'}."
            )
        self.source = "\n".join(sources.values())
        self._templates = {name: Template(each) for name, each in sources.items()}
        self.tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._control = tokenizer.control_tokens(self.source)

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        documents: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> Prompt:
        """The prompt for some messages.

        The ids are those of `apply_chat_template` of transformers, unless a text of the user has
        the text of a control token.

        Args:
            messages: each with `role` and `content`, as OpenAI's chat completions have them.
            tools: what the model may call: `{"type": "function", "function": {...}}`.
            documents: for templates that take some.
            variables: more of what the template takes, such as `enable_thinking`.
            add_generation_prompt: let an answer begin.

        Raises:
            ChatError: messages or tools are wrong, the template refuses them, or they hold a
                control token's text and the template makes something of it.
            ChatTemplateError: the template is broken, or asks for too much.
        """
        given = {
            "messages": self._fitting(checked_messages(messages)),
            "tools": None if tools is None else checked_tools(tools),
            "documents": None if documents is None else plain(documents, "documents"),
        }
        if variables is not None and not isinstance(variables, Mapping):
            raise ChatError(f"variables: expected a mapping of names, got {shown(variables)}.")
        more = {} if variables is None else plain(variables, "variables")
        taken = [name for name in more if name in {*given, "add_generation_prompt"}]
        if taken:
            raise ChatError(f"variables: expected none named {taken[0]}, got one. Leave it out.")
        own = {**self._special_tokens, "add_generation_prompt": add_generation_prompt}
        _check_keys(given, list(self._control.values()))
        return self._encoded(own, {**given, **more})

    @cached_property
    def end_of_turn(self) -> int | None:
        """The control token that the template writes after an answer; None where there is none.

        Of a model that writes several channels in one answer each ends alike, so there is none.
        """
        if "<|channel|>" in self.source:
            return None
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.prompt(messages, add_generation_prompt=False).text
        except (ChatError, ChatTemplateError):
            return None
        _, found, rest = text.rpartition(_PROBE)
        ids = self.tokenizer.encode(rest.lstrip(), add_special_tokens=False) if found else []
        return ids[0] if ids and ids[0] in self._control else None

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether a content may be a list of parts."""
        content = [{"type": "text", "text": _PROBE}]
        try:
            text = self._rendered(
                self._special_tokens | {"add_generation_prompt": False},
                {"messages": [{"role": "user", "content": content}], "tools": None},
                datetime.now(),
            )
        except (ChatError, ChatTemplateError):
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text

    def _fitting(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages whose contents are one text each, where the template takes no parts."""
        for message in messages:
            content = message["content"]
            if isinstance(content, list) and not self._takes_parts:
                message["content"] = "\n".join(part["text"] for part in content)
        return messages

    def _rendered(self, own: Mapping[str, Any], given: Mapping[str, Any], now: datetime) -> str:
        name = "tool_use" if given["tools"] and "tool_use" in self._templates else "default"
        functions = {"raise_exception": _refuse}
        return self._templates[name].render({**own, **given}, functions=functions, now=now)

    def _encoded(self, own: Mapping[str, Any], given: dict[str, Any]) -> Prompt:
        """Render and encode; what the user wrote becomes no control token."""
        now = datetime.now()
        text = self._rendered(own, given, now)
        strings = [*_strings(given)]
        marks = Marks.absent_from([*strings, self.source, text])
        try:
            found = unmarked(self._rendered(own, marked(given, marks), now), marks)
        except (ChatError, ChatTemplateError):
            found = None
        return Prompt(self._cut(text, self._spans(text, found, strings)), text)

    def _spans(
        self, text: str, found: tuple[str, list[Span]] | None, strings: Sequence[str]
    ) -> list[Span]:
        """Where the texts of the user are; none where they cannot have become control tokens.

        Case 1: the marks came back around texts that are otherwise the same.
        Case 2: the template looks into the texts, and marks change what it makes of them. The
            control tokens are those that it wrote outside of the marks, one by one.
        Case 3: it takes the texts apart, but they hold no control token.

        Args:
            text: as it was rendered.
            found: what was rendered with marks, without them, and what stood between them; `None`
                where marks were lost.
            strings: of the user.

        Raises:
            ChatError: it takes them apart, and they hold one.
        """
        if found is not None and found[0] == text:
            return found[1]
        if found is not None and self._written(*found) == self._written(text, []):
            return []
        joined = "".join(strings)
        suspect = next((each for each in self._control.values() if each in joined), None)
        if suspect is None:
            return []
        raise ChatError(
            f"messages: expected texts without {suspect!r}, since this chat template takes them "
            "apart, got some. Put reasoning into reasoning_content and calls into tool_calls."
        )

    def _written(self, text: str, spans: list[Span]) -> list[int]:
        """The control tokens of a text that touch none of the spans."""
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        touches = _toucher(spans)
        pairs = zip(ids, offsets, strict=True)
        return [token for token, at in pairs if token in self._control and not touches(at)]

    def _cut(self, text: str, spans: list[Span]) -> list[int]:
        """The ids of a text, where a control token that touches a span is cut in two.

        Raises:
            ChatError: there is one that cannot be cut.
        """
        touches = _toucher(spans)
        cuts = {0, len(text)}
        for _ in range(MAX_ROUNDS):
            ids: list[int] = []
            before = len(cuts)
            for start, end in pairwise(sorted(cuts)):
                for token, at in self._piece(text, start, end):
                    ids.append(token)
                    if token in self._control and touches(at):
                        cuts.add(_middle(text, at))
            if len(cuts) == before:
                return ids
        raise _uncut(text)

    def _piece(self, text: str, start: int, end: int) -> list[tuple[int, tuple[int, int]]]:
        """Tokens of a part of a text, with their places in the text.

        After a line end, as in the middle of a text: some tokenizers put a space before a text.
        """
        lead = "\n" if start else ""
        ids, offsets = self.tokenizer.encode_with_offsets(lead + text[start:end])
        if any(first < len(lead) < last for first, last in offsets):
            lead = ""
            ids, offsets = self.tokenizer.encode_with_offsets(text[start:end])
        shift = start - len(lead)
        return [
            (token, (first + shift, last + shift))
            for token, (first, last) in zip(ids, offsets, strict=True)
            if last > len(lead) or not lead
        ]


def _refuse(message: Any) -> None:
    text = " ".join(str(message).split())[:300]
    raise ChatError(f"messages: expected what this chat template takes, got: {text}")


def _strings(value: Any) -> Iterator[str]:
    """Every string inside plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _check_keys(value: Any, control: Sequence[str]) -> None:
    """Keys carry no marks, so they may hold no control token.

    Raises:
        ChatError: one does.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            found = next((text for text in control if text in key), None)
            if found is not None:
                raise ChatError(f"messages: expected keys without control tokens, got {found!r}.")
            _check_keys(each, control)
    elif isinstance(value, list):
        for each in value:
            _check_keys(each, control)


def _toucher(spans: list[Span]) -> Callable[[tuple[int, int]], bool]:
    """Whether a place shares a character with one of some spans, which are in order."""
    ends = [span.end for span in spans]

    def touches(at: tuple[int, int]) -> bool:
        index = bisect_right(ends, at[0])
        return index < len(spans) and spans[index].start < at[1]

    return touches


def _middle(text: str, at: tuple[int, int]) -> int:
    """After the first character of a token; it may have white space around it."""
    token = text[at[0] : at[1]]
    middle = at[0] + len(token) - len(token.lstrip()) + 1
    if middle >= at[0] + len(token.rstrip()):
        raise _uncut(token)
    return middle


def _uncut(text: str) -> ChatError:
    return ChatError(
        f"messages: expected texts that can be told from control tokens, got {text[:40]!r}. "
        "Change them."
    )
