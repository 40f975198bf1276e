"""The chat template of a bundle: messages to the ids of a prompt."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from ortolan.runtime.chat.messages import (
    Message,
    PartsError,
    checked_messages,
    checked_tools,
    one_text,
    plain,
    with_json,
)
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
        continues: the field of the last message that the prompt ends in, `content` or
            `reasoning_content`; empty where an answer begins.
    """

    ids: list[int]
    text: str
    continues: str = ""


class ChatTemplate:
    """Writes messages as the model was trained to read them.

    Control tokens, which say whose turn it is, come from the template alone: in a text of the user
    they are encoded as the text that they are. Threads may share it.

    Attributes:
        source: of all its templates.
        tokenizer: of the bundle.
        control: control tokens, each with its text.

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
        self.control = tokenizer.control_tokens(self.source)

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        documents: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
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
            continue_final_message: end inside the last message, an answer, so that the model goes
                on with its content, or with its reasoning where it has no content yet. Then
                `add_generation_prompt` means nothing.

        Raises:
            ChatError: messages or tools are wrong, the template refuses or ignores them, or they
                hold a control token's text and the template makes something of it.
            ChatTemplateError: the template is broken, or asks for too much.
        """
        given: dict[str, Any] = {
            "messages": checked_messages(messages),
            "tools": None if tools is None else checked_tools(tools),
            "documents": None if documents is None else plain(documents, "documents"),
        }
        for name in ("tools", "documents"):
            if given[name] and name not in self._template(given).names:
                raise ChatError(
                    f"{name}: this chat template ignores them, so the model would not see them. "
                    "Leave them out."
                )
        if variables is not None and not isinstance(variables, Mapping):
            raise ChatError(f"variables: expected a mapping of names, got {shown(variables)}.")
        more = {} if variables is None else plain(variables, "variables")
        taken = [name for name in more if name in {*given, "add_generation_prompt"}]
        if taken:
            raise ChatError(f"variables: expected none named {taken[0]}, got one. Leave it out.")
        tag, continues = "", ""
        if continue_final_message:
            add_generation_prompt = False
            tag = f"{Marks.absent_from([*_strings(given), *_strings(more), self.source]).start} "
            continues = _tagged(given["messages"], tag)
        own = {**self._special_tokens, "add_generation_prompt": add_generation_prompt}
        _check_keys(given, list(self.control.values()))
        found = self._fitted(own, {**given, **more}, tag)
        return replace(found, continues=continues)

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
        return ids[0] if ids and ids[0] in self.control else None

    def tokens(self, texts: Iterable[str]) -> list[int]:
        """The control tokens that have some texts; those without one are left out."""
        wanted = frozenset(texts)
        return [token for token, text in self.control.items() if text in wanted]

    def _template(self, given: Mapping[str, Any]) -> Template:
        name = "tool_use" if given["tools"] and "tool_use" in self._templates else "default"
        return self._templates[name]

    def _fitted(self, own: Mapping[str, Any], given: dict[str, Any], tag: str) -> Prompt:
        """The prompt for messages in a form that the template can write.

        Case 1: as they are.
        Case 2: a list of one part is its text.
        Case 3: the same, and the arguments of calls are JSON, which some templates expect.

        Raises:
            ChatError: it makes nothing of a list of several parts.
        """
        single = [one_text(message) for message in given["messages"]]
        forms = [given["messages"]]
        forms += [form for form in (single, [*map(with_json, single)]) if form not in forms]
        errors: list[ChatError | ChatTemplateError] = []
        for form in forms:
            try:
                return self._encoded(own, {**given, "messages": form}, tag)
            except (PartsError, ChatTemplateError) as error:
                errors.append(error)
        several = next((n for n, m in enumerate(single) if isinstance(m["content"], list)), None)
        if several is None:
            raise errors[0]
        raise ChatError(
            f"messages[{several}].content: this chat template takes a text, not a list of "
            f"{len(single[several]['content'])} parts. Join them into one text."
        ) from errors[0]

    def _rendered(self, own: Mapping[str, Any], given: Mapping[str, Any], now: datetime) -> str:
        functions = {"raise_exception": _refuse}
        return self._template(given).render({**own, **given}, functions=functions, now=now)

    def _encoded(self, own: Mapping[str, Any], given: dict[str, Any], tag: str) -> Prompt:
        """Render and encode, up to the tag; what the user wrote becomes no control token."""
        now = datetime.now()
        text = self._rendered(own, given, now)
        strings = [*_strings(given)]
        marks = Marks.absent_from([*strings, self.source, text])
        try:
            found = unmarked(self._rendered(own, marked(given, marks), now), marks)
        except (ChatError, ChatTemplateError):
            found = None
        spans = self._spans(text, found, strings)
        if tag:
            text = _before(text, tag, given["messages"][-1])
            spans = [Span(at.start, min(at.end, len(text))) for at in spans if at.start < len(text)]
        return Prompt(self._cut(text, spans), text)

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
        suspect = next((each for each in self.control.values() if each in joined), None)
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
        return [token for token, at in pairs if token in self.control and not touches(at)]

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
                    if token in self.control and touches(at):
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


def _tagged(messages: list[dict[str, Any]], tag: str) -> str:
    """Put a tag after the text of the last message that is to go on; the name of its field.

    Raises:
        ChatError: it is no answer, or ends in calls.
    """
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        what = "calls of tools" if "tool_calls" in last else f"a message of role {last['role']}"
        raise ChatError(
            f"messages: continue_final_message needs an answer of the assistant at the end, "
            f"got {what}. Let a new answer begin."
        )
    content = last["content"]
    if isinstance(content, list):
        content[-1]["text"] += tag
    elif content or not last.get("reasoning_content"):
        last["content"] += tag
    else:
        last["reasoning_content"] += tag
        last["thinking"] += tag
        return "reasoning_content"
    return "content"


def _before(text: str, tag: str, message: Mapping[str, Any]) -> str:
    """What a template wrote before a tag, as transformers cuts it.

    Raises:
        ChatError: it wrote no tag, or something else before it.
    """
    mark = tag.strip()
    tagged = next(each for each in _strings([*message.values()]) if mark in each)
    at = text.rfind(mark)
    if at < 0 or tagged[: tagged.index(mark)].strip() not in text:
        raise ChatError(
            "messages: this chat template changes the last message or leaves a part of it out, so "
            "it cannot be continued. Let a new answer begin."
        )
    return text[:at] if text.startswith(tag, at) else text[:at].rstrip()


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
