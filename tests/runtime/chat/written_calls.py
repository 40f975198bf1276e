"""For each call format, text of its templates, and two calls as its models write them."""

from pathlib import Path
from typing import Any

from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.parser import ReplyParser, call_id

SOURCES: dict[str, str] = {}
"""Text of the templates of these families."""

CALLS: dict[str, str] = {}
"""Calls as their models write them: `f` with two arguments, then `g.h` with none."""

_FILE = Path(__file__).parent / "calls.txt"

for _block in ("\n" + _FILE.read_text(encoding="utf-8").removesuffix("\n")).split("\n### ")[1:]:
    _head, _text = _block.split("\n", 1)
    _family, _source = _head.split(": ", 1)
    SOURCES[_family], CALLS[_family] = _source, _text

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        },
    }
]

ONE = ToolCall(name="f", arguments={"n": 1, "s": "a b"}, id=call_id(b"", 0))
TWO = ToolCall(name="g.h", arguments={}, id=call_id(b"", 1))

Taken = tuple[str, str, tuple[ToolCall, ...]]


def form(family: str, *, with_tools: bool = True) -> Format:
    return format_of(SOURCES[family], with_tools=with_tools)


def taken(pieces: list[str], chosen: Format, **more: Any) -> Taken:
    parser = ReplyParser(chosen, tools=TOOLS, **more)
    parts = [piece for text in pieces for piece in parser.feed(text)] + [*parser.finish()]
    assert all(bool(p.content) + bool(p.reasoning) + bool(p.tool_call) == 1 for p in parts)
    return (
        "".join(p.content for p in parts),
        "".join(p.reasoning for p in parts),
        tuple(p.tool_call for p in parts if p.tool_call is not None),
    )
