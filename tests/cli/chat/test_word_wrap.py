"""Lines end between words, wherever the pieces of a text end."""

import random
from itertools import pairwise

import pytest

from ortolan.cli.chat.word_wrap import WordWrap

URL = "https://example.org/a/long/path"
CODE = "```python\nprint('a line of code that is long')\n```"


def wrapped(text: str, columns: int, *, pieces: int = 1) -> str:
    paper, rng = WordWrap(lambda: columns), random.Random(0)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(pieces - 1))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return "".join(map(paper.feed, parts)) + paper.flush()


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("a short line", 20, "a short line"),
        ("one two three", 7, "one two\nthree"),
        ("one two three", 6, "one\ntwo\nthree"),
        ("one  two\n\nthree four\n", 8, "one  two\n\nthree\nfour\n"),
        ("  - one two", 8, "  - one\ntwo"),
        (f"see {URL} there", 12, f"see\n{URL}\nthere"),  # rest of the line: 7 columns
        (f"see {URL}/x there", 12, f"see\n{URL}/x\nthere"),
        (f"before it\n{CODE}\nafter it all", 9, f"before it\n{CODE}\nafter it\nall"),
        ("~~~\nnot ``` the end\n~~~\none two", 6, "~~~\nnot ``` the end\n~~~\none\ntwo"),
        ("a\tb c", 9, "a\tb\nc"),
        ("日本語の文章", 8, "日本語の\n文章"),
        ("日本語「文」。", 8, "日本語\n「文」。"),
        ("see 日本語", 7, "see 日\n本語"),
        ("한국어 문장", 8, "한국어\n문장"),
        ("cafe\u0301 au lait", 7, "cafe\u0301 au\nlait"),
        ("full line\nnext", 9, "full line\nnext"),
        ("line   \nnext", 5, "line\nnext"),
    ],
)
def test_lines_end_between_words(text: str, columns: int, expected: str) -> None:
    for pieces in (1, 2, 5, len(text) + 1):
        assert wrapped(text, columns, pieces=pieces) == expected


def test_no_more_than_a_word_is_held_back() -> None:
    paper = WordWrap(lambda: 10)
    assert paper.feed("one") == ""
    assert paper.feed(" tw") == "one"
    assert paper.feed("o\n") == " two\n"
    assert paper.feed("0123456789") == ""
    assert paper.feed("01") == "012345678901"
    assert paper.feed("2") == "2"
    assert paper.feed("日本") == "日"
    assert paper.flush() == "本"


def test_width_may_change_between_words() -> None:
    columns = 20
    paper = WordWrap(lambda: columns)
    shown = paper.feed("one two three ")
    columns = 8
    assert shown + paper.feed("four five ") == "one two three\nfour\nfive"


@pytest.mark.parametrize("seed", range(20))
def test_words_are_those_of_the_text_and_no_line_is_too_long(seed: int) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdef", k=rng.randint(1, 9))) for _ in range(200)]
    text, columns = " ".join(words), rng.randint(9, 40)
    result = wrapped(text, columns, pieces=50)
    assert result.split() == words
    assert max(map(len, result.splitlines())) <= columns
    lines = result.splitlines()
    for line, following in pairwise(lines):
        assert len(line) + 1 + len(following.split()[0]) > columns  # no line ends early
