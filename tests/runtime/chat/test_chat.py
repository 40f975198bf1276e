"""Chats with a tiny model: the same text as `generate` for the same prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.chat.tiny_chat import BOS, EOS, TEMPLATE, USER, chat_model
from tests.runtime.test_import import run

from ortolan.runtime import Decoder
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.messages import check_messages
from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.chat.reply import reply_of
from ortolan.runtime.generation.grammar import Grammar

TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return chat_model(tmp_path_factory.mktemp("chat"))


def test_a_reply_is_what_generate_returns_for_the_prompt(model: Decoder) -> None:
    prompt = model.chat_template.prompt([USER])
    assert prompt.text == "<bos>u:Hi.<eos><bos>a:"
    assert model.tokenizer is not None
    assert prompt.ids == model.tokenizer.encode(prompt.text, add_special_tokens=False)
    expected = model.generate(prompt.ids, max_new_tokens=20)
    reply = model.chat([USER], max_new_tokens=20)
    assert reply.content == expected.text
    assert reply.completion.tokens == expected.tokens
    assert (reply.reasoning, reply.tool_calls) == ("", ())
    assert reply.message == {"role": "assistant", "content": reply.content}
    assert model.chat([USER, reply.message, USER], max_new_tokens=2).completion.tokens


def test_a_stream_has_the_same_reply(model: Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.0}
    stream = model.chat_stream([USER], **options)
    pieces = list(stream)
    assert all(piece.content for piece in pieces)
    reply = model.chat([USER], **options)
    assert "".join(piece.content for piece in pieces) == reply.content == stream.reply.content
    assert stream.reply.completion.tokens == reply.completion.tokens


def test_a_closed_stream_has_the_reply_so_far(model: Decoder) -> None:
    stream = model.chat_stream([USER], ignore_eos=True)
    first = next(stream)
    stream.close()
    stream.close()
    assert stream.reply.content.startswith(first.content)
    assert stream.reply.completion.finish_reason == "cancelled"
    with model.chat_stream([USER], ignore_eos=True) as stream:
        next(stream)
    assert stream.reply.completion.finish_reason == "cancelled"


def test_an_answer_continues_from_where_it_was_cut(model: Decoder) -> None:
    whole = model.chat([USER], max_new_tokens=12)
    cut = model.chat([USER], max_new_tokens=5)
    messages = [USER, {"role": "assistant", "content": cut.content}]
    prompt = model.chat_template.prompt(messages, continue_final_message=True)
    assert prompt.text == f"<bos>u:Hi.<eos><bos>a:{cut.content}"
    rest = model.chat(messages, continue_final_message=True, max_new_tokens=7)
    assert rest.completion.tokens == model.generate(prompt.ids, max_new_tokens=7).tokens
    assert prompt.ids[-5:] == [*cut.completion.tokens]
    assert cut.content + rest.content == whole.content


def test_a_call_that_is_cut_off_is_text(model: Decoder) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
    pattern = text.replace("{", r"\{").replace("}", r"\}")
    options: Any = {"grammar": Grammar.regex(pattern), "temperature": 0.0, "tools": TOOLS}
    whole = model.chat([USER], **options)
    assert (whole.content, whole.completion.finish_reason) == ("", "stop")
    assert whole.tool_calls == (ToolCall(name="f", arguments={"n": 1}, id=whole.tool_calls[0].id),)
    with model.serve() as service:
        for missing in (1, len("</tool_call>"), 20):
            options["max_new_tokens"] = len(whole.completion.tokens) - missing
            cut = model.chat([USER], **options)
            assert (cut.content, cut.tool_calls) == (cut.completion.text, ())
            assert cut.completion.finish_reason == "length"
            served = service.chat([USER], **options).result()
            assert (served.content, served.tool_calls) == (cut.content, ())


def test_a_stop_text_ends_the_reply(model: Decoder) -> None:
    whole = model.chat([USER], max_new_tokens=20).content
    assert model.chat([USER], max_new_tokens=20, stop=[whole[3:5]]).content == whole[:3]


def test_a_reply_ends_with_the_turn_whatever_the_manifest_says(tmp_path: Path) -> None:
    def with_config(name: str, eos_token: Any) -> Decoder:
        config = json.dumps({"chat_template": TEMPLATE, "eos_token": eos_token}).encode()
        return chat_model(tmp_path / name, {"tokenizer_config.json": config}, tokens=Tokens())

    with_end = chat_model(tmp_path / "a", tokens=Tokens(eos=(EOS,)))
    assert with_end.chat_template.end_of_turn == EOS
    assert with_end._chat.question([USER], {}).options == {"sampling": "model"}
    assert with_config("b", "z").chat_template.end_of_turn is None
    model = with_config("c", {"content": "<eos>"})
    assert model.chat_template.end_of_turn == EOS
    question = model._chat.question([USER], {"stop_tokens": [3]})
    assert question.options["stop_tokens"] == [3, EOS]
    question = model._chat.question([USER], {"ignore_eos": True})
    assert question.options == {"ignore_eos": True, "sampling": "model"}


def test_harmony_ends_a_turn_with_a_call_or_an_answer(tmp_path: Path) -> None:
    source = "<|channel|>analysis<|message|> {{ messages[0].content }}"
    files = {"chat_template.jinja": source.encode()}
    model = chat_model(tmp_path, files, tokens=Tokens(), special=["<|end|>", "<|call|>"])
    question = model._chat.question([USER], {})
    assert question.options["stop_tokens"] == [BOS + 1]
    assert question.tokenizer.decode([BOS + 1]) == "<|call|>"


def test_calls_of_a_reply_are_part_of_its_message() -> None:
    call = ToolCall(name="f", arguments={"x": 1}, id="call00000")
    pieces = [Piece(reasoning="hm"), Piece(content="a"), Piece(tool_call=call)]
    reply = reply_of(pieces, completion=None)  # type: ignore[arg-type]
    (message,) = check_messages([reply.message])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert (message["content"], message["reasoning_content"]) == ("a", "hm")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"chat_template": "one {{ bos_token }}{{ pad_token }}", "bos_token": "B"}, "one B"),
        ({"chat_template": [{"name": "default", "template": "several"}]}, "several"),
    ],
)
def test_a_template_may_be_in_the_config_of_the_tokenizer(
    tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    model = chat_model(tmp_path, {"tokenizer_config.json": json.dumps(config).encode()})
    assert model.chat_template.prompt([USER]).text == text


FILES: dict[str, dict[str, bytes]] = {
    "no template": {},
    "an empty template": {"chat_template.jinja": b""},
    "a template that is no text": {"chat_template.jinja": b"\xff"},
    "a template that is no Jinja": {"chat_template.jinja": b"{% if %}"},
    "a config that is no JSON": {"tokenizer_config.json": b"{"},
    "unknown calls": {"chat_template.jinja": b"{{ tools }}{{ messages[0].content }}"},
}


@pytest.mark.parametrize("name", FILES)
def test_a_template_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    model = chat_model(tmp_path, FILES[name])
    assert refusal(lambda: model.chat([USER], tools=TOOLS), tmp_path) == snapshot


def test_what_is_no_chat_is_refused(
    model: Decoder, bare: Decoder, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: model.chat([USER], max_tokens=3)) == snapshot  # type: ignore[call-overload]
    assert refusal(lambda: model.chat([])) == snapshot
    assert refusal(lambda: model.chat_stream([USER]).reply) == snapshot
    assert refusal(lambda: bare.chat([USER])) == snapshot


def test_without_jinja_the_error_names_the_extra(tmp_path: Path) -> None:
    path = chat_model(tmp_path).bundle.path
    done = run(
        "import sys; sys.modules['jinja2'] = None\n"
        "import ortolan.runtime as r\n"
        "model = r.load(sys.argv[1])\n"
        "print(model.generate('a', max_new_tokens=1).finish_reason)\n"
        "try: model.chat([{'role': 'user', 'content': 'a'}])\n"
        "except r.MissingExtraError as error: print(error)",
        str(path),
    )
    assert done.stdout.splitlines()[0] == "length", done.stderr
    assert 'pip install "ortolan[chat]"' in done.stdout


def test_a_stream_reports_the_progress_of_its_prompt(model: Decoder) -> None:
    conversation = model.conversation()
    for turn in range(2):
        seen: list[tuple[int, int]] = []

        def look() -> bool:
            seen.append(stream.prompt_progress)  # noqa: B023 - of this turn
            return False

        stream = conversation.stream("x" * 200, max_new_tokens=1, cancel=look)
        next(stream, None)
        timings = stream.reply.completion.timings
        total = timings.prompt_tokens
        assert seen[0] == (timings.cached_tokens, total)
        assert seen == sorted(set(seen))
        assert len(seen) > 2
        assert stream.prompt_progress == (total, total)
        assert (timings.cached_tokens > 0) == (turn > 0)
