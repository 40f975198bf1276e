"""The chat template of a bundle: messages to the token ids of a prompt."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.chat.control_tokens import (
    Marks,
    Span,
    encode,
    marked,
    replaced,
    unmarked,
    user_spans,
)
from ortolan.runtime.chat.messages import (
    Message,
    PartsError,
    check_messages,
    check_tools,
    plain,
    with_joined_text,
    with_json_arguments,
)
from ortolan.runtime.errors import ChatError, ChatTemplateError, shown
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.jinja.template import Template

_PROBE = "a text to be found again"

_Render = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered and encoded conversation."""

    ids: list[int]
    text: str
    continues: str = ""  # field in which the prompt ends: `content`, `reasoning_content` or none


class ChatTemplate:
    """Renders messages in the format that the model was trained on. Thread-safe.

    Control tokens, such as those that say whose turn it is, come from the template only: in the
    user's texts they are encoded as plain text.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str],
        images: tuple[str, str] | None = None,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in sources:
            raise ChatTemplateError(
                f"No chat template is named default (got {', '.join(sources) or 'none'})."
            )
        self.source = "\n".join(sources.values())
        self._templates = {name: Template(text) for name, text in sources.items()}
        self.tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._images = images
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
        max_tokens: int | None = None,
        now: datetime | None = None,
    ) -> RenderedPrompt:
        """Render messages to a prompt.

        The ids equal those of transformers' `apply_chat_template`, unless a text of the user
        contains a control token. `now` is the date that the template may write.
        """
        valid: list[dict[str, Any]] = check_messages(messages)
        if not re.search("""["']developer["']""", self.source):  # knows the system only
            valid = [
                {**one, "role": "system"} if one["role"] == "developer" else one for one in valid
            ]
        data: dict[str, Any] = {
            "messages": valid,
            "tools": None if tools is None else check_tools(tools),
            "documents": None if documents is None else plain(documents, "documents"),
        }
        for name in ("tools", "documents"):
            if data[name] and name not in self._template(data).names:
                raise ChatError(
                    f"This chat template ignores {name}, so the model would not see them. Leave "
                    "them out."
                )
        if variables is not None and not isinstance(variables, Mapping):
            raise ChatError(f"variables: expected a mapping, got {shown(variables)}.")
        extra = {} if variables is None else plain(variables, "variables")
        for name in extra.keys() & {*data, "add_generation_prompt"}:
            raise ChatError(f"variables cannot contain {name}. Leave it out.")
        tag, continues = "", ""
        if checked_flag("continue_final_message", continue_final_message):
            add_generation_prompt = False
            tag = f"{Marks.absent_from([*_strings(data), *_strings(extra), self.source]).start} "
            continues = _tagged(data["messages"], tag)
        keys = "\0".join(_keys({**data, **extra}))  # which get no marks
        token = next((text for text in self.control.values() if text in keys), None)
        if token is not None:
            raise ChatError(f"A key contains the control token {token!r}. Rename it.")
        constants = {**self._special_tokens, "add_generation_prompt": add_generation_prompt}
        render = partial(self._rendered, constants, now or datetime.now())
        data, text = _fitted({**data, **extra}, render)
        if max_tokens is not None:
            self.tokenizer.check_length(text, max_tokens)
        _check_shown(data, text, render, self.source)
        return replace(self._encoded(data, text, render, tag), continues=continues)

    @cached_property
    def end_of_turn(self) -> int | None:
        """Control token that the template writes after an answer, or `None`.

        `None` also for models whose answers have several channels, which all end alike.
        """
        if "<|channel|>" in self.source:
            return None
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.prompt(messages, add_generation_prompt=False).text
        except (ChatError, ChatTemplateError):
            return None
        _, probe, rest = text.rpartition(_PROBE)
        ids = self.tokenizer.encode(rest.lstrip(), add_special_tokens=False) if probe else []
        return ids[0] if ids and ids[0] in self.control else None

    def _template(self, data: Mapping[str, Any]) -> Template:
        name = "tool_use" if data["tools"] and "tool_use" in self._templates else "default"
        return self._templates[name]

    def _rendered(
        self, constants: Mapping[str, Any], now: datetime, data: Mapping[str, Any]
    ) -> str:
        functions = {"raise_exception": _refuse}
        return self._template(data).render({**constants, **data}, functions=functions, now=now)

    def _encoded(
        self, data: dict[str, Any], text: str, render: _Render, tag: str
    ) -> RenderedPrompt:
        """Encode a prompt up to the tag, without control tokens in the user's texts."""
        strings = [*_strings(data)]
        marks = Marks.absent_from([*strings, self.source, text])
        try:
            again = unmarked(render(marked(data, marks)), marks)
        except (ChatError, ChatTemplateError):
            again = None
        spans = user_spans(self.tokenizer, self.control, text, again, strings)
        if tag:
            text = _before(text, tag, data["messages"][-1])
            spans = [Span(at.start, min(at.end, len(text))) for at in spans if at.start < len(text)]
        if self._images is not None:
            text, spans = replaced(text, spans, *self._images)
        return RenderedPrompt(encode(self.tokenizer, self.control, text, spans), text)


def _fitted(data: dict[str, Any], render: _Render) -> tuple[dict[str, Any], str]:
    """The first form of the messages that the template accepts, and its text.

    Case 1: unchanged.
    Case 2: a list of parts becomes its text.
    Case 3: as in case 2, and arguments of calls become JSON.
    """
    messages = data["messages"]
    joined = [*map(with_joined_text, messages)]
    with_json = [*map(with_json_arguments, joined)]
    errors: list[ChatError | ChatTemplateError] = []
    for form in [messages, *(form for form in (joined, with_json) if form != messages)]:
        try:
            return {**data, "messages": form}, render({**data, "messages": form})
        except (PartsError, ChatTemplateError) as error:
            errors.append(error)
    raise errors[0]


def _check_shown(data: Mapping[str, Any], text: str, render: _Render, source: str) -> None:
    """Check that the model sees instructions and results; templates know some roles only."""
    messages = data["messages"]
    everything = "\0".join([source, *_strings(data)])
    unclear = [
        number
        for number, message in enumerate(messages)
        if message["role"] not in ("user", "assistant")
        and any(text.count(one) < everything.count(one) for one in _texts(message) if one)
    ]

    def rendered(contents: Mapping[int, str]) -> str:
        changed = [
            {**message, "content": contents.get(number, message["content"])}
            for number, message in enumerate(messages)
        ]
        try:
            return render({**data, "messages": changed})
        except (ChatError, ChatTemplateError):
            return ""  # the template checks the text, so it reads it

    probes = {number: f"({number}) {_PROBE}" for number in unclear}
    probed = rendered(probes) if probes else ""
    for number, probe in probes.items():
        if probe not in probed and rendered({number: ""}) == text:
            raise ChatError(
                f"The chat template drops messages[{number}], of the role "
                f"{messages[number]['role']}, so the model would not see it. Leave it out, or "
                "move it to the start."
            )


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [p.get("text", "") for p in content]
    return [text.strip() for text in texts]


def _refuse(message: Any) -> None:
    text = " ".join(str(message).split())[:300]
    raise ChatError(f"The chat template rejects these messages: {text}")


def _tagged(messages: list[dict[str, Any]], tag: str) -> str:
    """Append a tag to the text that the model continues, and return the name of its field."""
    last, other = messages[-1], ""
    content = last["content"]
    if last["role"] != "assistant":
        other = f"a message of role {last['role']}"
    elif "tool_calls" in last:
        other = "tool calls"
    elif isinstance(content, list) and (not content or content[-1]["type"] != "text"):
        other = "parts of which the last is no text"
    if other:
        raise ChatError(
            f"continue_final_message: the last message must be an assistant's text, got {other}."
        )
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
    """Return what a template wrote before a tag, cut as transformers does."""
    mark = tag.strip()
    tagged = next(string for string in _strings([*message.values()]) if mark in string)
    at = text.rfind(mark)
    if at < 0 or tagged[: tagged.index(mark)].strip() not in text:
        raise ChatError(
            "This chat template changes the last message or drops part of it, so the message "
            "cannot be continued. Start a new answer."
        )
    return text[:at] if text.startswith(tag, at) else text[:at].rstrip()


def _strings(value: Any) -> Iterator[str]:
    """All strings in plain data, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from _strings([*value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _keys(item)
