"""Parses a reply, while it is generated, into content, reasoning and tool calls.

    text -> marker? -> content | reasoning -> Piece
                    -> call text -> CallFormat.reader -> a Piece per call, or content again

The result does not depend on where the text is split: a possible start of a marker is held back,
and so is white space, which is dropped next to a marker. A call that cannot be read, or that is
never closed, stays content, so that the user sees it.
"""

from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any

from ortolan.runtime.chat.call_syntax import ToolCall, UnfinishedError
from ortolan.runtime.chat.formats import Format, any_of
from ortolan.runtime.generation.completion import TokenLogprobs

MAX_MARKS = 32  # maximum markers inside the values of one call; the call is read again after each
CHUNK = 4096  # characters scanned at a time; each marker copies the rest, so this bounds the cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a reply: content, reasoning, or one call.

    Attributes:
        tokens: new ids, the last of which completes this piece; see `Ticket.pieces`.
        logprobs: one entry per token; `None` unless the request asks for them.
    """

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCall | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None


class ReplyParser:
    """Parser of one reply."""

    def __init__(
        self,
        form: Format,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        is_reasoning: bool = False,  # whether the prompt already opened the reasoning
        is_continued: bool = False,  # whether the prompt ends inside content or reasoning
        seed: bytes = b"",  # random bytes, from which calls without an id get theirs
    ) -> None:
        self._form = form
        functions = [tool.get("function", {}) for tool in tools]
        self._schemas = {f.get("name", ""): f.get("parameters", {}) for f in functions}
        self._state = "reasoning" if is_reasoning else "content"
        self._seed = seed
        self._calls = 0
        self._begun = "" if is_continued else form.begun
        self._held = self._begun
        self._space = ""
        # after a "marker" or a "call", white space is dropped until more text comes
        self._after = "marker" if is_reasoning and not is_continued else ""
        self._is_empty = not is_continued
        self._body: list[str] = []
        self._opened = ""
        self._marks = 0

    def feed(self, text: str) -> Iterator[Piece]:
        """Add text and yield the pieces that are complete."""
        for start in range(0, len(text), CHUNK):
            self._held += text[start : start + CHUNK]
            yield from self._advance(at_end=False)

    def finish(self) -> Iterator[Piece]:
        """End the reply and yield what was held back."""
        while True:
            tail, self._held = (self._held, "") if self._state == "call" else ("", self._held)
            yield from self._advance(at_end=True)
            if self._state != "call":
                break
            yield from self._end_call("", tail=tail)
            rest, self._held = self._held, ""
            yield from self.feed(rest)
        if self._state == "content" and not self._after and self._space:
            space, self._space = self._space, ""
            yield Piece(content=space)

    def _advance(self, *, at_end: bool) -> Iterator[Piece]:
        while True:
            if self._may_be_bare() and self._held.lstrip().startswith(self._form.calls.bare):
                self._begin_call("")
            text, marker = self._split(at_end=at_end)
            yield from self._text(text)
            if not marker:
                return
            yield from self._enter(marker)

    def _split(self, *, at_end: bool) -> tuple[str, str]:
        """Take the text before the next marker and that marker, the longest at its position.

        No marker while more text could turn it into a longer one.
        """
        reasoning, calls, held = self._form.reasoning, self._form.calls, self._held
        markers: tuple[str, ...] = (reasoning.close,)
        if self._state == "call":
            markers = (*calls.opens, calls.close)
        elif self._state == "content":
            markers = (reasoning.open, *calls.opens, *self._form.ignored, *calls.around)
        markers = tuple(filter(None, markers))
        first = any_of(markers).search(held)
        if first is not None:
            rest = held[first.start() : first.start() + max(map(len, markers))]
            if at_end or not any(len(m) > len(rest) and m.startswith(rest) for m in markers):
                self._held = held[first.end() :]
                return held[: first.start()], first[0]
        uncertain = 0  # trailing characters that may be the start of a marker
        if not at_end:
            starts = _starts(markers)
            if held.endswith(starts):
                uncertain = max(len(start) for start in starts if held.endswith(start))
            if self._may_be_bare() and calls.bare.startswith(held.lstrip()):
                uncertain = len(held)
        self._held = held[len(held) - uncertain :]
        return held[: len(held) - uncertain], ""

    def _enter(self, marker: str) -> Iterator[Piece]:
        """Change the state as a marker says."""
        if self._state == "call":
            yield from self._end_call(marker)
        elif self._state == "reasoning":
            self._state, self._space, self._after = "content", "", "marker"
        elif marker == self._form.reasoning.open:
            self._state, self._space, self._after = "reasoning", "", "marker"
        elif marker in self._form.calls.opens:
            self._begin_call(marker)
        elif marker in self._form.ignored:
            self._begun, self._space, self._after = "", "", "marker"
        elif self._after != "call":  # becomes content if no call follows
            self._space, self._after = self._space + marker, ""

    def _text(self, text: str) -> Iterator[Piece]:
        if self._state == "call":
            self._body.append(text)
            return
        own = min(len(text), len(self._begun))
        text, self._begun = text[own:], self._begun[own:]
        if self._after:
            text = text.lstrip()
        shown = text.rstrip()
        if not shown:
            self._space += text
            return
        space, self._space, self._after = self._space, text[len(shown) :], ""
        if self._state == "content":
            self._is_empty = False
            yield Piece(content=space + shown)
        else:
            yield Piece(reasoning=space + shown)

    def _may_be_bare(self) -> bool:
        return self._state == "content" and self._is_empty and self._form.calls.bare != ""

    def _begin_call(self, marker: str) -> None:
        self._state, self._opened, self._body, self._marks = "call", marker, [], 0

    def _end_call(self, marker: str, *, tail: str = "") -> Iterator[Piece]:
        """Yield the calls that a marker closes, or `""` for the end of the reply.

        A marker inside a value belongs to the value. `tail` is an incomplete marker at the end.
        """
        calls, body = self._form.calls, "".join(self._body)
        tool_calls: list[ToolCall] = []
        try:
            tool_calls = calls.reader(body, self._schemas)
        except UnfinishedError:
            if marker and self._marks < MAX_MARKS:
                self._body.append(marker)
                self._marks += 1
                return
        except ValueError:
            pass
        ends_reply = not marker and calls.close in self._form.reasoning.ends
        if not tool_calls or not (not calls.close or marker == calls.close or ends_reply):
            yield from self._no_call(body + marker + tail)
            return
        self._state, self._body, self._begun = "content", [], ""
        self._space, self._after, self._is_empty = "", "call", False
        for call in tool_calls:
            yield Piece(tool_call=replace(call, id=call.id or call_id(self._seed, self._calls)))
            self._calls += 1
        if marker in calls.opens:
            self._begin_call(marker)

    def _no_call(self, text: str) -> Iterator[Piece]:
        """Turn what is not a call into content, up to the start of the next call."""
        opens = self._form.calls.opens
        end = min((at for mark in opens if (at := text.find(mark)) >= 0), default=len(text))
        self._held = text[end:] + self._held
        self._state, self._body, self._is_empty = "content", [], False
        opened = self._opened.removeprefix(self._begun)
        self._begun = ""
        if opened:
            space, self._space, self._after = self._space, "", ""
            yield Piece(content=space + opened)
        yield from self._text(text[:end])


def call_id(seed: bytes, number: int) -> str:
    """The id of a call: nine letters and digits, as Mistral's templates require."""
    digest = sha256(seed + number.to_bytes(4, "little")).digest()
    return b32encode(digest).decode()[:9].lower()


@cache
def _starts(markers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(marker[:n] for marker in markers for n in range(1, len(marker)))
