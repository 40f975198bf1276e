r"""The literal text around the names and arguments of a model's calls, as its template shows it.

A template shows earlier calls in the form in which the model writes new ones. So a probe call is
rendered, and the text around its name and arguments is the frame of every call:

    <tool_call>\n{"name": "  NAME  ", "arguments":   ARGUMENTS  }\n</tool_call>
    before                          head                         after
"""

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ortolan.runtime.chat.call_syntax import json_calls, pair_calls, python_calls, xml_calls
from ortolan.runtime.chat.formats import CallFormat, Format, any_of
from ortolan.runtime.chat.parser import ReplyParser
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.errors import ChatError, ChatTemplateError

ID = "probe0123"  # call id in a frame: nine letters and digits, as Mistral's templates require

NAME, VALUE, NUMBER = "probe_of_a_call", "a value to find", 24680  # name and arguments of the probe

_KEYS = ("first_key", "second_key")
_ARGUMENTS: dict[str, Any] = {_KEYS[0]: VALUE, _KEYS[1]: NUMBER}
_OBJECT = re.compile(rf'\{{\s*"{_KEYS[0]}"\s*:\s*"{VALUE}"\s*,\s*"{_KEYS[1]}"\s*:\s*{NUMBER}\s*\}}')
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "a probe",
        "parameters": {
            "type": "object",
            "properties": {
                _KEYS[0]: {"type": "string", "description": "a text"},
                _KEYS[1]: {"type": "integer", "description": "a number"},
            },
            "required": [*_KEYS],
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Text around arguments that are written one by one, after the name.

    `first` key `equals` value `next` key `equals` value `last`, or `none` without arguments.
    """

    first: str
    equals: str
    next: str
    last: str
    none: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Text around the names and arguments of calls."""

    before: str  # before the first name
    head: str  # between a name and an object of arguments
    after: str  # after the last arguments
    pairs: Pairs | None = None  # used instead of `head` if arguments are not an object
    # between the arguments of a call and the next name; `None` if there is one call at a time
    between: str | None = None


def frame_of(template: ChatTemplate, form: Format) -> Frame:
    """Return the frame of the calls of a format."""
    for frame in (_Probe(template, form).frame(), _default(form.calls)):
        if frame is not None and _is_read(frame, form):
            return frame
    raise ChatError(
        "This chat template does not show how the model writes a call, so a call cannot be "
        "forced. Use tool_choice='auto'."
    )


def common_start(one: str, other: str) -> str:
    """Return the longest common prefix."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: len([*pairs])]


class _Probe:
    """A template that renders calls of a tool that does not exist."""

    def __init__(self, template: ChatTemplate, form: Format) -> None:
        self._template = template
        self._form = form
        self._calls = form.calls

    def frame(self, count: int = 2) -> Frame | None:
        """The frame of the probe, called this often; `None` if the template does not show it."""
        texts = self._rendered([_ARGUMENTS] * count).split(NAME, count)
        before, rest = texts[0], texts[-1]
        head, pairs, after, arguments = "", None, None, _OBJECT.search(rest)
        if arguments is not None:
            head, after = rest[: arguments.start()], rest[arguments.end() :]
        elif self._calls.reader in (xml_calls, pair_calls, python_calls):
            pairs, after = self._pairs(rest)
        call = rest.removesuffix(after or "")
        if after is None or len(texts) <= count or not texts[1].startswith(call):
            return None if count == 1 else self.frame(1)  # the template shows one call at a time
        between = texts[1].removeprefix(call) if count > 1 else None
        return Frame(before=before, head=head, pairs=pairs, between=between, after=after)

    def _pairs(self, rest: str) -> tuple[Pairs | None, str | None]:
        """The text around keys and values, and the text after the last call."""
        quoted = next((q for q in ('"', "'") if f"{q}{VALUE}{q}" in rest), "")
        words = (_KEYS[0], f"{quoted}{VALUE}{quoted}", _KEYS[1], str(NUMBER))
        pattern = "(.*?)".join(map(re.escape, words))
        match = re.fullmatch(rf"(.*?){pattern}(.*)", rest, re.DOTALL)
        none = self._rendered([{}]).partition(NAME)[2]
        if match is None or not none:
            return None, None
        first, equals, following, _, last = match.groups()
        # what an empty call ends with too comes after the arguments
        after = common_start(last[::-1], none[::-1])[::-1].lstrip(">")
        last, none = last.removesuffix(after), none.removesuffix(after)
        return Pairs(first=first, equals=equals, next=following, last=last, none=none), after

    def _rendered(self, arguments: list[dict[str, Any]]) -> str:
        """The calls as the template shows them, from the first marker on; empty if it does not."""
        question: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        # Mistral's templates require ids of nine letters; Kimi's write the id instead of the name
        for ids in ((ID, "probe4567"), (f"functions.{NAME}:0", f"functions.{NAME}:1")):
            calls = [
                {"id": call_id, "type": "function", "function": {"name": NAME, "arguments": own}}
                for call_id, own in zip(ids, arguments, strict=False)
            ]
            answer = {"role": "assistant", "content": "", "tool_calls": calls}
            try:
                start = self._template.prompt(question, tools=[_TOOL]).text
                text = self._template.prompt(
                    [*question, answer], tools=[_TOOL], add_generation_prompt=False
                ).text
            except (ChatError, ChatTemplateError):
                continue
            start = common_start(start.removesuffix(self._form.begun), text)
            text = text.removeprefix(start)
            if NAME in text:
                return self._cut(text.replace(ids[1], ids[0]))
        return ""

    def _cut(self, text: str) -> str:
        """Cut a text to its calls, from their first marker to their last."""
        calls, name, last = self._calls, text.index(NAME), text.rindex(NAME)
        opening = any_of((*calls.opens, *calls.around)).search(text, 0, name)
        start = -1 if opening is None else opening.start()
        if start < 0 and calls.bare:
            start = text.find(calls.bare, 0, name)
            start = 0 if text[: max(start, 0)].isspace() else start
        if start < 0:
            return ""
        end = text.rfind(calls.close, last) if calls.close else -1
        if end < 0:
            ends = [mark for mark in self._template.control.values() if mark not in calls.inside]
            marker = any_of(tuple(ends)).search(text, last)
            return text[start : None if marker is None else marker.start()].rstrip()
        if calls.close in self._form.reasoning.ends:
            return text[start:end]
        end += len(calls.close)
        around = re.compile(rf"(\s*({any_of(calls.around).pattern}))*").match(text, end)
        return text[start : end if around is None else around.end()]


def _default(calls: CallFormat) -> Frame | None:
    """The frame for a template that shows no call: a list, as it tells the model to write."""
    if calls.bare:
        return None
    if calls.reader is json_calls:
        return Frame(
            before=f'{calls.open}[{{"name": "',
            head='", "arguments": ',
            between='}, {"name": "',
            after=f"}}]{calls.close}",
        )
    if calls.reader is python_calls:
        pairs = Pairs(first="(", equals="=", next=", ", last="", none="(")
        before, after = f"{calls.open}[", f")]{calls.close}"
        return Frame(before=before, head="", pairs=pairs, between="), ", after=after)
    return None


def _is_read(frame: Frame, form: Format) -> bool:
    """Whether the parser reads a call in this frame, and two calls if there is a `between`."""
    pairs = frame.pairs
    if pairs is None:
        body = f'{frame.head}{{"{_KEYS[0]}": "{VALUE}", "{_KEYS[1]}": {NUMBER}}}'
    else:
        value = f'"{VALUE}"' if form.calls.reader is python_calls else VALUE
        texts = (pairs.first, _KEYS[0], pairs.equals, value, pairs.next, _KEYS[1], pairs.equals)
        body = f"{''.join(texts)}{NUMBER}{pairs.last}"
    one = f"{NAME}{body}"
    counts = [1] if frame.between is None else [1, 2]
    for count in counts:
        text = frame.before + (frame.between or "").join([one] * count) + frame.after
        parser = ReplyParser(form, tools=[_TOOL])
        pieces = [*parser.feed(text.removeprefix(form.begun)), *parser.finish()]
        calls = [piece.tool_call for piece in pieces]
        expected = [(NAME, _ARGUMENTS)] * count
        if [(call.name, call.arguments) for call in calls if call] != expected or None in calls:
            return False
    return True
