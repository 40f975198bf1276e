"""Encodes a prompt so that no text of the user becomes a control token.

A template cannot tell which characters come from the user. So it is rendered again with a mark
before and after each of the user's texts. Marks are characters that occur nowhere else, so they
cannot be forged. They are placed inside the white space around a text, because templates trim it.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ortolan.runtime.chat.messages import is_name
from ortolan.runtime.errors import ChatError
from ortolan.runtime.inputs.tokenizer import Tokenizer

MAX_ROUNDS = 8  # maximum rounds of cuts; a control token that contains others needs one for each

# caseless characters that Python prints unescaped: rare Chinese ones
_CANDIDATES = range(0x20000, 0x2A6D6)


class Span(NamedTuple):
    """Characters `start` to `end - 1` of a text."""

    start: int
    end: int


class Marks(NamedTuple):
    """The two mark characters."""

    start: str
    end: str

    @classmethod
    def absent_from(cls, texts: Iterable[str]) -> "Marks":
        """Choose marks that occur in none of the texts."""
        present = frozenset(c for text in texts if not text.isascii() for c in text)
        absent = (chr(code) for code in _CANDIDATES if chr(code) not in present)
        return cls(next(absent), next(absent))


def marked(value: Any, marks: Marks) -> Any:
    """Copy plain data with marks inside its strings.

    Identifiers, such as roles and types, stay as they are: templates compare them, and they cannot
    contain a control token.
    """
    if isinstance(value, str):
        text = value.strip()
        if not text or is_name(text):
            return value
        start = value.index(text)
        return f"{value[:start]}{marks.start}{text}{marks.end}{value[start + len(text) :]}"
    if isinstance(value, dict):
        return {key: marked(item, marks) for key, item in value.items()}
    if isinstance(value, list):
        return type(value)(marked(item, marks) for item in value)
    return value


def unmarked(text: str, marks: Marks) -> tuple[str, list[Span]] | None:
    """Return a text without its marks and the spans between them; `None` if any mark is lost."""
    pieces = re.split(f"([{''.join(marks)}])", text)  # text, mark, text, ..., mark, text
    texts, found = pieces[::2], pieces[1::2]
    if found != [*marks] * (len(found) // 2):
        return None
    ends = [*accumulate(map(len, texts))]
    return "".join(texts), [*map(Span, ends[::2], ends[1::2])]


def user_spans(
    tokenizer: Tokenizer,
    control: Mapping[int, str],
    text: str,
    again: tuple[str, list[Span]] | None,
    strings: Sequence[str],
) -> list[Span]:
    """Where the user's texts are in a prompt; empty if they cannot become control tokens.

    Case 1: the marks came back and the prompt is otherwise unchanged.
    Case 2: the template looks into the texts, so the marks changed the prompt, but the control
        tokens outside of the marks are those of the unmarked prompt.
    Case 3: the template splits the texts, but they contain no control token and no part of one.
    """
    if again is not None and again[0] == text:
        return again[1]

    def outside(text: str, spans: list[Span]) -> list[int]:
        touches = _touches(spans)
        pairs = zip(*tokenizer.encode_with_offsets(text), strict=True)
        return [token for token, at in pairs if token in control and not touches(at)]

    if again is not None and outside(*again) == outside(text, []):
        return []
    suspect = _part_of([*control.values()], strings)
    if suspect is None:
        return []
    raise ChatError(
        f"A message contains the control token {suspect!r}, or a part of it, where the template "
        "splits text; move reasoning to reasoning_content and calls to tool_calls."
    )


def _part_of(tokens: Sequence[str], strings: Sequence[str]) -> str | None:
    """The token that is in a text, or that texts could become where a template joins them."""
    joined = "\0".join(strings)
    starts = {token[:n]: token for token in tokens for n in range(1, len(token))}
    ends = {token[n:]: token for token in tokens for n in range(1, len(token))}
    suspect = next((token for token in tokens if token in joined), None)
    for text in filter(None, map(str.strip, strings)):
        if suspect is None and not is_name(text):
            lengths = range(1, max(map(len, tokens), default=0))
            parts = (starts.get(text[-n:]) or ends.get(text[:n]) for n in lengths)
            inside = (token for token in tokens if text in token)
            suspect = next(filter(None, parts), None) or next(inside, None)
    return suspect


def encode(
    tokenizer: Tokenizer, control: Mapping[int, str], text: str, spans: list[Span]
) -> list[int]:
    """Encode a prompt; a control token that touches a span is cut in two."""
    touches = _touches(spans)
    cuts = {0, len(text)}
    for _ in range(MAX_ROUNDS):
        ids: list[int] = []
        before = len(cuts)
        for start, end in pairwise(sorted(cuts)):
            for token, at in _encode_part(tokenizer, text, start, end):
                ids.append(token)
                if token in control and touches(at):
                    cuts.add(_middle(text, at))
        if len(cuts) == before:
            return ids
    raise _uncut(text)


def replaced(text: str, spans: list[Span], old: str, new: str) -> tuple[str, list[Span]]:
    """Replace a text in a prompt, except in the texts of the user; return where these are then."""
    parts: list[str] = []
    moved: list[Span] = []
    begin = length = 0
    for span in (*spans, Span(len(text), len(text))):
        own, user = text[begin : span.start].replace(old, new), text[span.start : span.end]
        parts += [own, user]
        moved.append(Span(length + len(own), length + len(own) + len(user)))
        begin, length = span.end, moved[-1].end
    return "".join(parts), moved[:-1]


def _encode_part(
    tokenizer: Tokenizer, text: str, start: int, end: int
) -> list[tuple[int, tuple[int, int]]]:
    """Tokens of part of a text, with their positions in the text.

    A line end goes in front, as in the middle of a text: some tokenizers start a text with a space.
    """
    for lead in ("\n" if start else "", ""):
        ids, offsets = tokenizer.encode_with_offsets(lead + text[start:end])
        if not any(first < len(lead) < last for first, last in offsets):
            break
    shift = start - len(lead)
    return [
        (token, (first + shift, last + shift))
        for token, (first, last) in zip(ids, offsets, strict=True)
        if last > len(lead) or not lead
    ]


def _touches(spans: list[Span]) -> Callable[[tuple[int, int]], bool]:
    """Return a test for whether a position overlaps any of the spans, which are sorted."""
    ends = [span.end for span in spans]

    def touches(at: tuple[int, int]) -> bool:
        index = bisect_right(ends, at[0])
        return index < len(spans) and spans[index].start < at[1]

    return touches


def _middle(text: str, at: tuple[int, int]) -> int:
    """The position after the first character of a token, which may have white space around it."""
    token = text[at[0] : at[1]]
    middle = at[0] + len(token) - len(token.lstrip()) + 1
    if middle >= at[0] + len(token.rstrip()):
        raise _uncut(token)
    return middle


def _uncut(text: str) -> ChatError:
    return ChatError(
        f"A message contains a control token that cannot be encoded as text: {text[:40]!r}."
    )
