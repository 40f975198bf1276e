"""The Markdown of answers on the chat page, in Node, compared with markdown-it."""

import html
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

HERE = Path(__file__).parent
FILES = Path(__file__).parents[3] / "src" / "ortolan" / "server" / "page" / "files"
SAMPLE = (HERE / "sample.md").read_text(encoding="utf-8")
BARE = "https://example.org/bare"
ATTACKS = (HERE / "attacks.txt").read_text(encoding="utf-8")

PIECES = (
    *("a", "b ", "foo", "é", "🐦", " ", "  ", "    ", "\n", "\n", "\n", "\n\n", "[", "]", "!", "."),
    *("*", "**", "_", "__", "***", "~~", "`", "``", "```\n", "&lt;", "> ", "- ", "* ", "1. "),
    *("2) ", "10. ", "# ", "## ", "---", "===", "|", "| a | b |\n|---|:-:|\n", "[x](mailto:y@z)"),
    *("\\*", "\t"),
)
"""Pieces of random texts."""


def random_texts(count: int) -> list[str]:
    chance = random.Random(0)
    texts = ("".join(chance.choices(PIECES, k=chance.randint(1, 14))) for _ in range(count))
    return [text for text in texts if not re.search(r"!\[x|~~~|```.*\S|\t", text)]


RANDOM = random_texts(700)
LINKED = SAMPLE.replace("![", "[").replace(BARE, f"<{BARE}>")
DEEP = [
    *("> " * 900 + "a", "- " * 900 + "a", "*a " * 900 + "a* " * 900),
    *("[" * 2000, "a* " * 2000, "`a``" * 2000, "[a](" * 2000),
]


@pytest.fixture(scope="module")
def shown() -> dict[str, dict[str, Any]]:
    """By text, its HTML on the page, and whether pieces and positions are right."""
    texts = [SAMPLE, LINKED, ATTACKS, *DEEP, *RANDOM]
    if shutil.which("node") is None:
        pytest.skip("no Node. Install node 20 or newer")
    command = ["node", str(HERE / "markdown.mjs"), str(FILES)]
    body = json.dumps(texts)
    done = subprocess.run(command, input=body, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(texts, json.loads(done.stdout), strict=True))


def plain(text: str) -> str:
    """HTML without what differs on purpose: attributes, paragraphs, levels of headings, space."""
    for pattern, to in (
        (r"<br />|</?p>|</?div[^>]*>|</hr>", "\n"),
        (r"<pre><code[^>]*>", "<pre>"),
        (r"</code></pre>", "</pre>"),
        (r"<(\w+)( [^<>]*)?>", r"<\1>"),
    ):
        text = re.sub(pattern, to, text)
    text = re.sub(r"&(#\d+|\w+);", lambda match: html.unescape(match[0]).replace("<", "("), text)
    text = re.sub(r"\s+", " ", text)
    blocks = "ul|ol|li|blockquote|pre|table|thead|tbody|tr|td|th|h[1-6]|hr"
    return re.sub(rf"\s*(</?(?:{blocks})>)\s*", r"\1", text).strip()


def test_markdown_is_read_as_by_the_reference(shown: dict[str, Any]) -> None:
    reference = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": False})
    reference.enable(["table", "strikethrough"])
    for text in [LINKED, *RANDOM]:
        rendered = reference.render(text)
        for level in (4, 3, 2, 1):  # the page has headings of its own above
            rendered = rendered.replace(f"h{level}>", f"h{level + 2}>")
        assert plain(shown[text]["html"]) == plain(rendered), text


def test_pieces_of_a_text_become_the_same_elements_with_positions_in_the_source(
    shown: dict[str, Any],
) -> None:
    for text, result in shown.items():
        assert result["is_same"], text
        assert result["misplaced"] == [], text


def test_elements_of_a_sample(shown: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert shown[SAMPLE]["html"].split("\n") == snapshot


def test_deep_and_unclosed_marks_stay_bounded(shown: dict[str, Any]) -> None:
    for text in DEEP:
        runs = re.findall(r"(?:<(?!/)[^<>]*>)+", shown[text]["html"])
        assert max(run.count("<") for run in runs) <= 64


def test_attacks_become_text_and_harmless_links(shown: dict[str, Any]) -> None:
    result = shown[ATTACKS]
    tags = set(re.findall(r"<(\w+)", result["html"]))
    usual = ("p", "a", "pre", "div", "table", "thead", "tbody", "tr", "th", "td", "code", "strong")
    assert tags <= set(usual)
    assert set(re.findall(r' ([\w-]+)="', result["html"])) <= {
        *("href", "rel", "target", "tabindex", "data-language", "class")
    }
    links = re.findall(r'href="([^"]*)"', result["html"])
    assert links
    assert all(link.startswith("https://example.org/") for link in links)
