"""What a model wrote, taken apart: content, reasoning, and calls of tools.

Text is taken in pieces, and the result does not depend on where they are cut: what may still
become a marker is held back, and so is white space, which next to a marker belongs to nothing. A
call that cannot be read, or whose closing mark is missing, stays text, for the user to see.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ortolan.runtime.chat.call_bodies import ToolCall, UnfinishedError
from ortolan.runtime.chat.formats import Format

__all__ = ["Piece", "ReplyParser"]

MAX_MARKS = 32
"""Marks within the values of one call; each has the body read once more."""

CHUNK = 4096
"""Characters looked at together, since each marker copies what is after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a reply: some content, some reasoning, or one call."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCall | None = None


class ReplyParser:
    """Takes a reply apart while it is generated.

    Args:
        form: how the model writes.
        tools: that it may call.
        is_reasoning: whether the prompt has begun the reasoning already.
        is_continued: whether the prompt ends inside of the content or the reasoning.
        calls_before: calls earlier in the conversation; ids count on from it.
    """

    def __init__(
        self,
        form: Format,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        is_reasoning: bool = False,
        is_continued: bool = False,
        calls_before: int = 0,
    ) -> None:
        self._form = form
        functions = [tool.get("function", {}) for tool in tools]
        self._schemas = {f.get("name", ""): f.get("parameters", {}) for f in functions}
        self._state = "reasoning" if is_reasoning else "content"
        self._calls = calls_before
        self._begun = "" if is_continued else form.begun
        self._held = self._begun
        self._space = ""
        # "marker" or "call" until more is shown: white space after them means nothing
        self._after = "marker" if is_reasoning and not is_continued else ""
        self._is_empty = not is_continued
        self._body: list[str] = []
        self._opened = ""
        self._marks = 0

    def feed(self, text: str) -> Iterator[Piece]:
        """Take the next text; give what is certain by now."""
        for start in range(0, len(text), CHUNK):
            self._held += text[start : start + CHUNK]
            yield from self._advance(at_end=False)

    def finish(self) -> Iterator[Piece]:
        """Give what was held back, at the end of the reply."""
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
            if self._is_bare():
                self._begin_call("")
            marker, at = self._next_marker(at_end=at_end)
            if marker:
                yield from self._text(self._held[:at])
                self._held = self._held[at + len(marker) :]
                yield from self._turn(marker)
                continue
            certain = len(self._held) - (0 if at_end else self._uncertain())
            ready, self._held = self._held[:certain], self._held[certain:]
            yield from self._text(ready)
            return

    # --- markers ----------------------------------------------------------------------------------

    def _markers(self) -> tuple[str, ...]:
        """What may come next."""
        reasoning, calls = self._form.reasoning, self._form.calls
        if self._state == "reasoning":
            return () if reasoning is None else (reasoning.close,)
        own = () if calls is None else calls.opens
        if self._state == "call":
            return own if calls is None or not calls.close else (*own, calls.close)
        thinks = () if reasoning is None else (reasoning.open,)
        return (*thinks, *own, *self._form.ignored, *(() if calls is None else calls.around))

    def _next_marker(self, *, at_end: bool) -> tuple[str, int]:
        """The first one, and where; the longest of those, none while it may become a longer one."""
        markers = self._markers()
        first = _pattern(markers).search(self._held)
        if first is None:
            return "", 0
        rest = self._held[first.start() : first.start() + max(map(len, markers))]
        if not at_end and any(len(m) > len(rest) and m.startswith(rest) for m in markers):
            return "", 0
        return first[0], first.start()

    def _uncertain(self) -> int:
        """How many of the last characters may become a marker."""
        bare = "" if self._form.calls is None else self._form.calls.bare
        if self._may_be_bare() and bare.startswith(self._held.lstrip()):
            return len(self._held)
        longest = 0
        for marker in self._markers():
            for length in range(min(len(marker) - 1, len(self._held)), longest, -1):
                if self._held.endswith(marker[:length]):
                    longest = length
                    break
        return longest

    def _turn(self, marker: str) -> Iterator[Piece]:
        """Go where a marker leads."""
        reasoning, calls = self._form.reasoning, self._form.calls
        if self._state == "call":
            yield from self._end_call(marker)
        elif self._state == "reasoning":
            self._state, self._space, self._after = "content", "", "marker"
        elif reasoning is not None and marker == reasoning.open:
            self._state, self._space, self._after = "reasoning", "", "marker"
        elif calls is not None and marker in calls.opens:
            self._begin_call(marker)
        elif marker in self._form.ignored:
            self._begun, self._space, self._after = "", "", "marker"
        elif self._after != "call":  # shown again if no call follows
            self._space, self._after = self._space + marker, ""

    # --- text -------------------------------------------------------------------------------------

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

    # --- calls ------------------------------------------------------------------------------------

    def _may_be_bare(self) -> bool:
        calls = self._form.calls
        empty = self._state == "content" and self._is_empty
        return empty and calls is not None and calls.bare != ""

    def _is_bare(self) -> bool:
        calls = self._form.calls
        return (
            self._may_be_bare() and calls is not None and self._held.lstrip().startswith(calls.bare)
        )

    def _begin_call(self, marker: str) -> None:
        self._state, self._opened, self._body, self._marks = "call", marker, [], 0

    def _end_call(self, marker: str, *, tail: str = "") -> Iterator[Piece]:
        """Give the calls of the body, if a marker or the end of the reply, `""`, closes them.

        A marker within a value is a part of it. The tail of a reply is the beginning of a marker.
        """
        calls, body = self._form.calls, "".join(self._body)
        close = "" if calls is None else calls.close
        try:
            found = [] if calls is None else calls.body(body, self._schemas)
        except UnfinishedError:
            if marker and self._marks < MAX_MARKS:
                self._body.append(marker)
                self._marks += 1
                return
            found = []
        except ValueError:
            found = []
        is_closed = not close or marker == close or (not marker and close in self._form.ends)
        if not found or not is_closed:
            yield from self._no_call(body + marker + tail)
            return
        self._state, self._body, self._begun = "content", [], ""
        self._space, self._after, self._is_empty = "", "call", False
        for call in found:
            # nine letters and digits, which is what Mistral's templates ask for
            yield Piece(tool_call=replace(call, id=call.id or f"call{self._calls:05d}"))
            self._calls += 1
        if calls is not None and marker in calls.opens:
            self._begin_call(marker)

    def _no_call(self, text: str) -> Iterator[Piece]:
        """Show what is no call, up to where another one begins."""
        opens = () if self._form.calls is None else self._form.calls.opens
        end = min((at for mark in opens if (at := text.find(mark)) >= 0), default=len(text))
        self._held = text[end:] + self._held
        self._state, self._body, self._is_empty = "content", [], False
        opened = self._opened.removeprefix(self._begun)
        self._begun = ""
        if opened:
            space, self._space, self._after = self._space, "", ""
            yield Piece(content=space + opened)
        yield from self._text(text[:end])


@cache
def _pattern(markers: tuple[str, ...]) -> re.Pattern[str]:
    """Finds any of some markers; the longer ones first, where they begin alike."""
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))) or r"(?!)")
