r"""How a model writes a call, literally: seen from how its chat template shows one.

A template that shows earlier calls shows them as the model writes its own. So a probe is rendered,
and what stands around its name and its arguments is the frame of every call:

    <tool_call>\n{"name": "  NAME  ", "arguments":   ARGUMENTS  }\n</tool_call>
    before                          head                         after
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortolan.runtime.chat.call_bodies import json_calls, pair_calls, python_calls, xml_calls
from ortolan.runtime.chat.formats import CallFormat, Format
from ortolan.runtime.chat.parser import ReplyParser
from ortolan.runtime.errors import ChatError, ChatTemplateError

if TYPE_CHECKING:
    from ortolan.runtime.chat.template import ChatTemplate

__all__ = ["ID", "Frame", "Pairs", "common_start", "frame_of"]

ID = "probe0123"
"""The id of every call within a frame: nine letters and digits, as Mistral's templates ask for."""

NAME, VALUE, NUMBER = "probe_of_a_call", "a value to find", 24680
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
    """What stands around arguments that are no object, after the name.

    Attributes:
        first: before the first key.
        equals: between a key and its value.
        next: between a value and the next key.
        last: after the last value.
        none: where there are no arguments.
    """

    first: str
    equals: str
    next: str
    last: str
    none: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the names and the arguments of calls.

    Attributes:
        before: the first name.
        head: between a name and an object of arguments.
        pairs: in place of `head`, where arguments are no object.
        between: after the arguments of a call and before the next name; `None` where a model makes
            one call at a time.
        after: the last arguments.
    """

    before: str
    head: str
    after: str
    pairs: Pairs | None = None
    between: str | None = None


def frame_of(template: "ChatTemplate", form: Format) -> Frame:
    """The frame of the calls of a format.

    Raises:
        ChatError: the template shows no call, or none that is read as it was written.
    """
    calls = form.calls
    if calls is not None:
        probe = _Probe(template, form, calls)
        for frame in (probe.shown(), _default(calls)):
            if frame is not None and _is_read(frame, form):
                return frame
    raise ChatError(
        "tool_choice: the chat template of this model does not show how it writes a call, so none "
        "can be asked for. Use tool_choice='auto'."
    )


def common_start(one: str, other: str) -> str:
    """What two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))]


class _Probe:
    """A template that shows calls which nobody made."""

    def __init__(self, template: "ChatTemplate", form: Format, calls: CallFormat) -> None:
        self._template = template
        self._form = form
        self._calls = calls
        self._ends = [*template.control.values()]

    def shown(self) -> Frame | None:
        """The frame of the probes, where the template shows them."""
        one = self._rendered([_ARGUMENTS])
        at, head = one.find(NAME), None
        if at < 0:
            return None
        before, rest = one[:at], one[at + len(NAME) :]
        pairs, found = None, _OBJECT.search(rest)
        if found is not None:
            head, after = rest[: found.start()], rest[found.end() :]
        elif self._calls.body in (xml_calls, pair_calls, python_calls):
            parts = self._pairs(rest)
            if parts is None:
                return None
            pairs, after = parts
            head = ""
        else:
            return None
        between = self._between(before, after if pairs is None else pairs.last + after)
        if between is not None and pairs is not None:
            between = between.removeprefix(pairs.last)
        return Frame(before=before, head=head, pairs=pairs, between=between, after=after)

    def _pairs(self, rest: str) -> tuple[Pairs, str] | None:
        """What stands around keys and values, and what after the last call."""
        quoted = next((q for q in ('"', "'") if f"{q}{VALUE}{q}" in rest), "")
        words = (_KEYS[0], f"{quoted}{VALUE}{quoted}", _KEYS[1], str(NUMBER))
        pattern = "(.*?)".join(map(re.escape, words))
        found = re.fullmatch(rf"(.*?){pattern}(.*)", rest, re.DOTALL)
        none = self._rendered([{}]).partition(NAME)[2]
        if found is None or not none:
            return None
        first, equals, following, _, last = found.groups()
        after = common_start(last[::-1], none[::-1])[::-1].lstrip(">")
        pairs = Pairs(
            first=first,
            equals=equals,
            next=following,
            last=last.removesuffix(after),
            none=none.removesuffix(after),
        )
        return pairs, after

    def _between(self, before: str, after: str) -> str | None:
        """What stands between two calls; `None` where the template shows one at a time."""
        two = self._rendered([_ARGUMENTS, _ARGUMENTS])
        if not two.startswith(before + NAME) or two.count(NAME) != 2 or not two.endswith(after):
            return None
        one_call = two[two.rfind(NAME) + len(NAME) : len(two) - len(after)]
        rest = two[len(before) + len(NAME) :]
        if not rest.startswith(one_call):
            return None
        return rest[len(one_call) : rest.index(NAME)]

    def _rendered(self, arguments: list[dict[str, Any]]) -> str:
        """The calls as they are shown, from the first mark on; empty where they are not."""
        for ids in ((ID, "probe4567"), (f"functions.{NAME}:0", f"functions.{NAME}:1")):
            calls = [
                {"id": call_id, "type": "function", "function": {"name": NAME, "arguments": each}}
                for call_id, each in zip(ids, arguments, strict=False)
            ]
            question = [{"role": "user", "content": "?"}]
            answer = {"role": "assistant", "content": "", "tool_calls": calls}
            try:
                start = self._template.prompt(question, tools=[_TOOL]).text
                start = start.removesuffix(self._form.begun)
                text = self._template.prompt(
                    [*question, answer], tools=[_TOOL], add_generation_prompt=False
                ).text
            except (ChatError, ChatTemplateError):
                continue
            text = text.removeprefix(common_start(start, text))
            if NAME in text:
                return self._cut(text.replace(ids[1], ids[0]))
        return ""

    def _cut(self, text: str) -> str:
        """What is of the calls, from their first mark to their last."""
        calls, name = self._calls, text.index(NAME)
        marks = [text.find(mark, 0, name) for mark in (*calls.opens, *calls.around)]
        start = min((at for at in marks if at >= 0), default=-1)
        if start < 0 and calls.bare:
            start = text.find(calls.bare, 0, name)
            start = 0 if text[: max(start, 0)].isspace() else start
        if start < 0:
            return ""
        text = text[start:]
        last = text.rfind(NAME)
        if calls.close and calls.close in text[last:]:
            end = text.rindex(calls.close)
            if calls.close in self._form.ends:
                return text[:end]
            end += len(calls.close)
            for mark in calls.around:
                rest = text[end:]
                if rest.lstrip().startswith(mark):
                    end += len(rest) - len(rest.lstrip()) + len(mark)
            return text[:end]
        ends = [text.find(mark, last) for mark in self._ends if mark not in calls.inside]
        return text[: min((at for at in ends if at >= 0), default=len(text))].rstrip()


def _default(calls: CallFormat) -> Frame | None:
    """The frame of a format whose template shows no call: a list, as the model is told."""
    if calls.bare:
        return None
    if calls.body is json_calls:
        return Frame(
            before=f'{calls.open}[{{"name": "',
            head='", "arguments": ',
            between='}, {"name": "',
            after=f"}}]{calls.close}",
        )
    if calls.body is python_calls:
        pairs = Pairs(first="(", equals="=", next=", ", last="", none="(")
        before, after = f"{calls.open}[", f")]{calls.close}"
        return Frame(before=before, head="", pairs=pairs, between="), ", after=after)
    return None


def _is_read(frame: Frame, form: Format) -> bool:
    """Whether calls in a frame are read as calls: one, and two where there may be."""
    pairs = frame.pairs
    if pairs is None:
        body = f'{frame.head}{{"{_KEYS[0]}": "{VALUE}", "{_KEYS[1]}": {NUMBER}}}'
    else:
        value = f'"{VALUE}"' if form.calls and form.calls.body is python_calls else VALUE
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
