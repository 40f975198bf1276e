import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.chat.test_chat import made

from ortolan.runtime import Conversation, Decoder
from ortolan.runtime.errors import ChatError, StateFileError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return made(tmp_path_factory.mktemp("conversation"))


def test_messages_grow_by_questions_and_answers(model: Decoder) -> None:
    conversation = model.conversation(system="Be brief.")
    first = conversation.ask("Hi.", max_new_tokens=4)
    second = conversation.ask("And?", max_new_tokens=4)
    assert conversation.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        first.message,
        {"role": "user", "content": "And?"},
        second.message,
    ]
    assert second.content == model.chat(conversation.messages[:-1], max_new_tokens=4).content


def test_a_stream_that_was_closed_leaves_what_came(model: Decoder) -> None:
    conversation = model.conversation()
    stream = conversation.stream("Hi.", ignore_eos=True)
    next(stream)
    assert conversation.messages == []
    stream.close()
    assert conversation.messages == [{"role": "user", "content": "Hi."}, stream.reply.message]
    stream.close()
    assert len(conversation.messages) == 2


def test_a_stream_that_never_began_leaves_nothing(model: Decoder) -> None:
    conversation = model.conversation()
    conversation.stream("Hi.").close()
    assert conversation.messages == []


def test_a_question_that_fails_leaves_the_messages_as_they_were(model: Decoder) -> None:
    conversation = model.conversation()
    conversation.ask("Hi.", max_new_tokens=2)
    before = list(conversation.messages)
    with pytest.raises(ChatError):
        conversation.ask(7)  # type: ignore[arg-type]
    assert conversation.messages == before


def test_reset_keeps_the_system_message(model: Decoder) -> None:
    conversation = model.conversation(system="Be brief.")
    conversation.ask("Hi.", max_new_tokens=2)
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]


def saved(model: Decoder, path: Path) -> Conversation:
    conversation = model.conversation(system="Café 日本語.")
    conversation.ask("Hi.", max_new_tokens=6)
    conversation.save(path)
    return conversation


def test_a_saved_conversation_goes_on_as_the_kept_one(model: Decoder, tmp_path: Path) -> None:
    kept = saved(model, tmp_path / "a.json")
    again = model.conversation()
    again.load(tmp_path / "a.json")
    assert again.messages == kept.messages
    assert again.ask("And?", max_new_tokens=6).content == kept.ask("And?", max_new_tokens=6).content
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_is_replaced_whole_or_not_at_all(model: Decoder, tmp_path: Path) -> None:
    conversation = saved(model, tmp_path / "a.json")
    before = (tmp_path / "a.json").read_bytes()
    conversation.messages.append({"role": "user", "content": {1}})
    with pytest.raises(TypeError):
        conversation.save(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bundle": "0" * 64}, "another bundle"),
        ({"ortolan_conversation": 2}, "expected version 1, got 2"),
        ({"messages": [{"role": "king", "content": ""}]}, r"messages\[0\].role"),
        ({"messages": 7}, "not a saved conversation"),
        ({"more": 7}, "not a saved conversation"),
    ],
)
def test_a_file_of_something_else_is_refused(
    model: Decoder, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    kept = saved(model, tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**content, **change}))
    before = list(kept.messages)
    with pytest.raises(StateFileError, match=message):
        kept.load(tmp_path / "a.json")
    assert kept.messages == before


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"[" * 10_000, b"null"])
def test_a_damaged_file_is_refused(model: Decoder, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(StateFileError, match="not a saved"):
        model.conversation().load(tmp_path / "a.json")


def test_a_missing_file_is_refused(model: Decoder, tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="No such file"):
        model.conversation().load(tmp_path / "a.json")


def test_an_empty_conversation_can_be_kept(model: Decoder, tmp_path: Path) -> None:
    model.conversation().save(tmp_path / "a.json")
    conversation = model.conversation()
    conversation.load(tmp_path / "a.json")
    assert conversation.messages == []
