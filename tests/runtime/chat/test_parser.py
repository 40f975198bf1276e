"""Replies parsed piece by piece."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.chat.families import source
from tests.runtime.chat.written_calls import CALLS, ONE, SOURCES, TWO, form, taken

from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.parser import call_id


@pytest.mark.parametrize("family", SOURCES)
def test_calls_are_read(family: str) -> None:
    content, reasoning, calls = taken([CALLS[family]], form(family))
    assert (content, reasoning) == ("", "")
    ids = {"functions.f:0": ONE.id, "g.h": TWO.id}  # Kimi's contain the tool name
    assert tuple(replace(call, id=ids.get(call.id, call.id)) for call in calls) == (ONE, TWO)
    assert taken([*CALLS[family]], form(family)) == ("", "", calls)


@pytest.mark.parametrize("family", SOURCES)
def test_a_cut_call_is_text(family: str) -> None:
    text, chosen = CALLS[family], form(family)
    _, _, whole = taken([text], chosen)
    for end in range(len(text)):
        content, reasoning, calls = taken([text[:end]], chosen)
        assert (calls, reasoning) == (whole[: len(calls)], "")
        if not calls:
            assert content == text[:end]


AT_BEGINNING = ("llama-python", "functionary-3.2")


@pytest.mark.parametrize("family", [name for name in SOURCES if name not in AT_BEGINNING])
def test_content_before_calls_loses_the_space_between(family: str) -> None:
    content, reasoning, calls = taken([f"I look it up.\n\n{CALLS[family]}"], form(family))
    assert (content, reasoning) == ("I look it up.", "")
    assert [call.name for call in calls] == ["f", "g.h"]


@pytest.mark.parametrize("family", [name for name in SOURCES if name != "gpt-oss"])
def test_without_tools_calls_are_text(family: str) -> None:
    text = CALLS[family]
    assert taken([text], form(family, with_tools=False)) == (text, "", ())


@pytest.mark.parametrize("family", [name for name in SOURCES if name != "gpt-oss"])
def test_calls_that_cannot_be_read_stay_text(family: str) -> None:
    text = CALLS[family].replace("f", "f (!{")
    content, reasoning, calls = taken([text], form(family))
    assert reasoning == ""
    assert calls or content == text


BARE = Format(reasoning=form("qwen").reasoning, calls=form("llama").calls)
CALL = ToolCall(name="f", id=call_id(b"", 0))


@pytest.mark.parametrize(
    ("pieces", "chosen", "is_reasoning", "expected"),
    [
        (["<think>\nIt is 2.\n</think>\n\nTwo. "], "qwen", False, ("Two. ", "It is 2.", ())),
        (["\nIt is 2.\n</think>\n\nTwo."], "qwen", True, ("Two.", "It is 2.", ())),
        (["<think>It is"], "qwen", False, ("", "It is", ())),
        (["<think>a</think>\n", '{"name": "f"}'], BARE, False, ("", "a", (CALL,))),
        (['Here: {"name": "f"}'], "llama", False, ('Here: {"name": "f"}', "", ())),
        (["  a\n\n<b> <thin \t\n"], "qwen", False, ("  a\n\n<b> <thin \t\n", "", ())),
    ],
)
def test_reasoning_is_separate_and_other_text_unchanged(
    pieces: list[str], chosen: str | Format, is_reasoning: bool, expected: Any
) -> None:
    chosen = form(chosen) if isinstance(chosen, str) else chosen
    assert taken(pieces, chosen, is_reasoning=is_reasoning) == expected


def test_ids_are_those_of_the_model_or_follow_from_the_seed() -> None:
    text = '[TOOL_CALLS][{"name": "f", "id": "abc"}, {"name": "f"}]'
    _, _, calls = taken([text], form("mistral"), seed=b"4")
    assert [call.id for call in calls] == ["abc", call_id(b"4", 1)]
    ids = {call_id(seed, number) for seed in (b"", b"4") for number in range(3)}
    assert len(ids) == 6
    assert all(len(one) == 9 and one.isalnum() for one in ids)


@settings(max_examples=200)
@given(data=st.data())
def test_where_the_pieces_are_cut_changes_nothing(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(SOURCES)))
    chosen = form(family)
    markers = sorted(chosen.markers)
    parts = st.sampled_from(
        [*markers, *markers, " ", "\n", "{", "[", "a", "<", '{"name": "f"}', CALLS[family]]
    )
    text = "".join(data.draw(st.lists(parts, max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)) | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    is_reasoning = chosen.reasoning is not None and data.draw(st.booleans())
    whole = taken([text], chosen, is_reasoning=is_reasoning)
    assert taken(pieces, chosen, is_reasoning=is_reasoning) == whole
    assert taken(list(text), chosen, is_reasoning=is_reasoning) == whole


def test_harmony_has_reasoning_a_preamble_an_answer_and_a_call() -> None:
    chosen = form("gpt-oss")
    thought = "<|channel|>analysis<|message|>It rains.<|end|><|start|>assistant"
    said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert taken([f"{thought}<|channel|>final<|message|>Rain."], chosen) == (
        "Rain.",
        "It rains.",
        (),
    )
    call = ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"n": 1}'
    one = ToolCall(name="f", arguments={"n": 1}, id=call_id(b"", 0))
    assert taken([thought + said + call], chosen) == ("I look.", "It rains.", (one,))
    assert taken([call], chosen) == ("", "", (one,))
    assert taken([call[:-1]], chosen) == (call[:-1], "", ())
    assert taken([*(thought + said + call)], chosen) == ("I look.", "It rains.", (one,))


def test_what_the_prompt_began_belongs_to_the_reply() -> None:
    chosen = form("functionary-3.2")
    call = '>>>f\n{"n": 1}'
    assert taken(["all\nHello."], chosen) == ("Hello.", "", ())
    assert [c.name for c in taken([f"all\nHello.\n{call}"], chosen)[2]] == ["f"]
    assert taken(["all\nHello."], form("functionary-3.2", with_tools=False))[0] == "Hello."
    assert taken([*">>> 1"], form("functionary-3.2", with_tools=False))[0] == ">>> 1"
    assert taken(["2 >>> 1"], chosen, is_continued=True)[0] == "2 >>> 1"
    assert taken([], chosen) == ("", "", ())


def test_the_format_is_seen_in_the_template() -> None:
    opens = {
        "gpt-oss": "<|channel|>commentary to=functions.", "kimi": "<|tool_call_begin|>",
        "nemotron": "<TOOLCALL>", "seed": "<seed:tool_call>", "qwen2": "<tool_call>",
        "mistral": "[TOOL_CALLS]",
    }  # fmt: skip
    for family, mark in opens.items():
        calls = format_of(source(family), with_tools=True).calls
        assert calls.open == mark


def test_the_most_special_format_of_a_template_counts() -> None:
    assert format_of("<tool_call> <function=", with_tools=True).calls != form("qwen").calls
    assert format_of("{{ messages }}", with_tools=True) == Format()
