"""What a model wrote, taken apart: content, reasoning, and calls of tools.

Text is taken in pieces, and the result does not depend on where they are cut: what may still
become a marker is held back, and so is white space, which beside a marker belongs to nothing. A
call that cannot be read stays text, for the user to see.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ortolan.runtime.chat.call_bodies import ToolCall
from ortolan.runtime.chat.formats import Format

__all__ = ["Piece", "ReplyParser"]


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
        self._held = ""
        self._space = ""
        self._after_marker = is_reasoning and not is_continued
        self._is_empty = not is_continued
        self._body: list[str] = []
        self._opened = ""

    def feed(self, text: str) -> Iterator[Piece]:
        """Take the next text; give what is certain by now."""
        self._held += text
        while True:
            marker, at = self._next_marker()
            if marker:
                yield from self._text(self._held[:at])
                self._held = self._held[at + len(marker) :]
                yield from self._turn(marker)
                continue
            kept = self._beginning_of_a_marker()
            ready, self._held = (
                self._held[: len(self._held) - kept],
                self._held[-kept:] * bool(kept),
            )
            yield from self._text(ready)
            return

    def finish(self) -> Iterator[Piece]:
        """Give what was held back, at the end of the reply."""
        held, self._held = self._held, ""
        yield from self._text(held)
        if self._state == "call":
            yield from self._end_call("")
        elif self._state == "content" and not self._after_marker and self._space:
            space, self._space = self._space, ""
            yield Piece(content=space)

    # --- markers ----------------------------------------------------------------------------------

    def _markers(self) -> tuple[str, ...]:
        """What may come next; the longer ones first, where they begin alike."""
        reasoning, calls = self._form.reasoning, self._form.calls
        found: list[str] = []
        if self._state == "reasoning" and reasoning is not None:
            found = [reasoning.close]
        elif self._state == "content":
            found = [] if reasoning is None else [reasoning.open]
            found += [] if calls is None else [calls.open, *calls.around]
        elif calls is not None:
            found = [calls.close or calls.open]
        return tuple(sorted(filter(None, found), key=len, reverse=True))

    def _next_marker(self) -> tuple[str, int]:
        places = [(self._held.find(marker), marker) for marker in self._markers()]
        at, marker = min(((at, m) for at, m in places if at >= 0), default=(0, ""))
        return marker, at

    def _beginning_of_a_marker(self) -> int:
        """How many of the last characters may become a marker."""
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
            if calls is not None and marker == calls.open:
                self._begin_call(marker)
            return
        if reasoning is not None and marker in (reasoning.open, reasoning.close):
            self._state = "reasoning" if marker == reasoning.open else "content"
        elif calls is not None and marker == calls.open:
            self._begin_call(marker)
            return
        self._space, self._after_marker = "", True

    # --- text -------------------------------------------------------------------------------------

    def _text(self, text: str) -> Iterator[Piece]:
        if self._state == "content" and self._is_empty and self._is_bare(text):
            self._begin_call("")
        if self._state == "call":
            self._body.append(text)
            return
        if self._after_marker:
            text = text.lstrip()
            self._after_marker = not text
        shown = text.rstrip()
        if not shown:
            self._space += text
            return
        if self._state == "content":
            self._is_empty = False
            yield Piece(content=self._space + shown)
        else:
            yield Piece(reasoning=self._space + shown)
        self._space = text[len(shown) :]

    def _is_bare(self, text: str) -> bool:
        calls = self._form.calls
        return calls is not None and calls.bare != "" and text.lstrip().startswith(calls.bare)

    def _begin_call(self, marker: str) -> None:
        self._state, self._opened, self._body = "call", marker, []

    def _end_call(self, closed: str) -> Iterator[Piece]:
        """The calls of the body; as text, with its markers, where it holds none."""
        calls, body = self._form.calls, "".join(self._body)
        self._state, self._body = "content", []
        try:
            found = [] if calls is None else calls.body(body, self._schemas)
        except ValueError:
            closing = closed if calls is not None and closed == calls.close else ""
            yield Piece(content=f"{self._space}{self._opened}{body}{closing}")
            self._space, self._after_marker, self._is_empty = "", False, False
            return
        self._space, self._after_marker, self._is_empty = "", True, False
        for call in found:
            # nine letters and digits, which is what Mistral's templates ask for
            yield Piece(tool_call=replace(call, id=call.id or f"call{self._calls:05d}"))
            self._calls += 1
