"""Conversations with a tiny model: the same text as `generate` gives for the same prompt."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.test_import import run
from tests.runtime.tiny_decoder import CONTEXT, tokenizer_json, write_bundle

from ortolan.runtime import Decoder, load
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.errors import ChatError, ChatTemplateError, InputError, TokenizerError
from ortolan.runtime.generation.grammar import Grammar

TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<bos>a:{% endif %}"
    "{% if tools %}{# <tool_call> </think> #}{% endif %}"
)
USER = {"role": "user", "content": "Hi."}
BOS, EOS = 95, 96


def made(
    folder: Path,
    others: dict[str, bytes] | None = None,
    *,
    tokens: Tokens | None = None,
    context_length: int = CONTEXT,
    special: Sequence[str] = ("<bos>", "<eos>"),
) -> Decoder:
    files = {"chat_template.jinja": TEMPLATE.encode()} if others is None else others
    bundle = write_bundle(
        folder / "bundle",
        tokenizer=tokenizer_json(special),
        tokens=Tokens(eos=(EOS,)) if tokens is None else tokens,
        others=files,
        context_length=context_length,
    )
    return load(bundle.path, Decoder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return made(tmp_path_factory.mktemp("chat"))


def test_a_reply_is_what_generate_gives_for_the_prompt(model: Decoder) -> None:
    prompt = model.chat_template.prompt([USER])
    assert prompt.text == "<bos>u:Hi.<eos><bos>a:"
    assert model.tokenizer is not None
    assert prompt.ids == model.tokenizer.encode(prompt.text, add_special_tokens=False)
    expected = model.generate(prompt.ids, max_new_tokens=20)
    reply = model.chat([USER], max_new_tokens=20)
    assert reply.content == expected.text
    assert reply.completion.tokens == expected.tokens
    assert (reply.reasoning, reply.tool_calls) == ("", ())


def test_a_stream_gives_the_same_reply(model: Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.0}
    stream = model.chat_stream([USER], **options)
    pieces = list(stream)
    assert all(piece.content for piece in pieces)
    reply = model.chat([USER], **options)
    assert "".join(piece.content for piece in pieces) == reply.content == stream.reply.content
    assert stream.reply.completion.tokens == reply.completion.tokens


def test_a_closed_stream_has_the_reply_so_far(model: Decoder) -> None:
    stream = model.chat_stream([USER], ignore_eos=True)
    with pytest.raises(InputError, match="not complete"):
        _ = stream.reply
    first = next(stream)
    stream.close()
    stream.close()
    assert stream.reply.content.startswith(first.content)
    assert stream.reply.completion.finish_reason == "cancelled"


def test_a_stream_ends_with_its_block(model: Decoder) -> None:
    with model.chat_stream([USER], ignore_eos=True) as stream:
        next(stream)
    assert stream.reply.completion.finish_reason == "cancelled"


def test_a_reply_is_a_message_to_go_on_with(model: Decoder) -> None:
    reply = model.chat([USER], max_new_tokens=5)
    assert reply.message == {"role": "assistant", "content": reply.content}
    assert model.chat([USER, reply.message, USER], max_new_tokens=2).completion.tokens


def test_an_answer_goes_on_from_where_it_was_cut(model: Decoder) -> None:
    whole = model.chat([USER], max_new_tokens=12)
    cut = model.chat([USER], max_new_tokens=5)
    messages = [USER, {"role": "assistant", "content": cut.content}]
    prompt = model.chat_template.prompt(messages, continue_final_message=True)
    assert prompt.text == f"<bos>u:Hi.<eos><bos>a:{cut.content}"
    rest = model.chat(messages, continue_final_message=True, max_new_tokens=7)
    assert rest.completion.tokens == model.generate(prompt.ids, max_new_tokens=7).tokens
    if prompt.ids[-5:] == [*cut.completion.tokens]:
        assert cut.content + rest.content == whole.content


def test_a_call_that_is_cut_off_is_text(model: Decoder) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
    pattern = text.replace("{", r"\{").replace("}", r"\}")
    asked: dict[str, Any] = {"grammar": Grammar.regex(pattern), "temperature": 0.0}
    asked["tools"] = [{"type": "function", "function": {"name": "f"}}]
    whole = model.chat([USER], **asked)
    assert (whole.content, whole.completion.finish_reason) == ("", "stop")
    assert whole.tool_calls == (ToolCall(name="f", arguments={"n": 1}, id="call00000"),)
    with model.serve() as service:
        for missing in (1, len("</tool_call>"), 20):
            count = len(whole.completion.tokens) - missing
            cut = model.chat([USER], max_new_tokens=count, **asked)
            assert (cut.content, cut.tool_calls) == (cut.completion.text, ())
            assert cut.completion.finish_reason == "length"
            served = service.chat([USER], max_new_tokens=count, **asked).reply()
            assert (served.content, served.tool_calls) == (cut.content, ())


def test_options_are_those_of_generate(model: Decoder) -> None:
    whole = model.chat([USER], max_new_tokens=20).content
    assert model.chat([USER], max_new_tokens=20, stop=[whole[3:5]]).content == whole[:3]
    with pytest.raises(InputError, match="Did you mean max_new_tokens"):
        model.chat([USER], max_tokens=3)  # type: ignore[call-overload]
    with pytest.raises(ChatError, match="messages: expected a list"):
        model.chat([])


def test_a_reply_ends_where_the_turn_ends_whatever_the_manifest_says(tmp_path: Path) -> None:
    config = json.dumps({"chat_template": TEMPLATE, "eos_token": "z"}).encode()
    with_end = made(tmp_path / "a", tokens=Tokens(eos=(EOS,)))
    without = made(tmp_path / "b", {"tokenizer_config.json": config}, tokens=Tokens())
    assert with_end.chat_template.end_of_turn == EOS
    assert without.chat_template.end_of_turn is None
    named = json.dumps({"chat_template": TEMPLATE, "eos_token": {"content": "<eos>"}}).encode()
    found = made(tmp_path / "c", {"tokenizer_config.json": named}, tokens=Tokens())
    assert found.chat_template.end_of_turn == EOS
    chat = found._chat
    assert chat.question([USER], {"stop_tokens": [3]}).options["stop_tokens"] == [3, EOS]
    assert chat.question([USER], {"ignore_eos": True}).options == {
        "ignore_eos": True,
        "sampling": "model",
    }
    assert with_end._chat.question([USER], {}).options == {"sampling": "model"}


def test_harmony_ends_a_turn_where_a_call_or_an_answer_ends(tmp_path: Path) -> None:
    source = "<|channel|>analysis<|message|> {{ messages[0].content }}"
    files = {"chat_template.jinja": source.encode()}
    model = made(tmp_path, files, tokens=Tokens(), special=["<|end|>", "<|call|>"])
    call = BOS + 1
    assert model._chat.question([USER], {}).options["stop_tokens"] == [call]
    shown = model._chat.question([USER], {}).tokenizer
    assert shown.decode([call]) == "<|call|>"


def test_tools_are_refused_where_nobody_knows_how_calls_are_written(tmp_path: Path) -> None:
    model = made(tmp_path, {"chat_template.jinja": b"{{ tools }}{{ messages[0].content }}"})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert model._chat.question([USER], {"tools": []}).parser() is not None
    with pytest.raises(ChatError, match="does not read"):
        model.chat([USER], tools=tools)


def test_special_tokens_that_are_markers_are_shown_to_the_parser(model: Decoder) -> None:
    assert model.tokenizer is not None
    ids = [BOS, 0x41 - 0x20, EOS]
    assert model.tokenizer.decode(ids) == "A"
    shown = model.tokenizer.showing(["<bos>"])
    assert shown.decode(ids) == "<bos>A"
    stream = shown.stream()
    assert "".join([*map(stream.push, ids), stream.flush()]) == "<bos>A"
    assert model.tokenizer.decode(ids) == "A"


def test_calls_of_a_reply_are_a_message() -> None:
    from ortolan.runtime.chat.messages import check_messages
    from ortolan.runtime.chat.reply import reply_of

    call = ToolCall(name="f", arguments={"x": 1}, id="call00000")
    pieces = [Piece(reasoning="hm"), Piece(content="a"), Piece(tool_call=call)]
    reply = reply_of(pieces, completion=None)  # type: ignore[arg-type]
    (message,) = check_messages([reply.message])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert (message["content"], message["reasoning_content"]) == ("a", "hm")


# --- templates that are not there -------------------------------------------------------------


def test_without_a_template_the_error_says_what_to_do(tmp_path: Path) -> None:
    model = made(tmp_path, {})
    with pytest.raises(ChatTemplateError, match="export again"):
        model.chat([USER])


def test_without_a_tokenizer_there_is_no_chat(tmp_path: Path) -> None:
    model = load(write_bundle(tmp_path / "bundle").path, Decoder)
    with pytest.raises(TokenizerError, match="tokenizer"):
        model.chat([USER])


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"chat_template": "one {{ bos_token }}{{ pad_token }}", "bos_token": "B"}, "one B"),
        ({"chat_template": [{"name": "default", "template": "several"}]}, "several"),
    ],
)
def test_a_template_in_the_config_of_the_tokenizer_counts(
    tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    model = made(tmp_path, {"tokenizer_config.json": json.dumps(config).encode()})
    assert model.chat_template.prompt([USER]).text == text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_config.json": b"{"}, "tokenizer_config.json is not"),
        ({"chat_template.jinja": b"\xff"}, "byte 0xff at 0"),
        ({"chat_template.jinja": b"{% if %}"}, "wrong in line 1"),
        ({"chat_template.jinja": b""}, "no chat_template.jinja"),
    ],
)
def test_a_damaged_template_is_a_typed_error(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        made(tmp_path, files).chat([USER])


def test_without_jinja_the_error_names_the_extra(tmp_path: Path) -> None:
    path = made(tmp_path).bundle.path
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


def test_stream_says_how_far_its_prompt_is(model: Decoder) -> None:
    conversation = model.conversation()
    for turn in range(2):
        seen: list[tuple[int, int]] = []

        def look() -> bool:
            seen.append(stream.prompt_progress)  # noqa: B023 - of this turn
            return False

        stream = conversation.stream("x" * 200, max_new_tokens=1, cancel=look)
        next(stream, None)
        cached = stream.reply.completion.timings.cached_tokens
        total = stream.reply.completion.timings.prompt_tokens
        assert seen[0] == (cached, total)
        assert seen == sorted(set(seen))
        assert len(seen) > 2
        assert stream.prompt_progress == (total, total)
        assert (cached > 0) == (turn > 0)
