import json
import os
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.chat.tiny_chat import chat_model

from ortolan.runtime import Conversation, Decoder
from ortolan.runtime.errors import ChatError, InputError

QUESTION = {"role": "user", "content": "Hi."}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return chat_model(tmp_path_factory.mktemp("conversation"))


@pytest.fixture
def saved(model: Decoder, tmp_path: Path) -> Conversation:
    """A conversation that is saved in a.json."""
    conversation = model.conversation(system="Café 日本語.")
    conversation.ask("Hi.", max_new_tokens=6)
    conversation.save(tmp_path / "a.json")
    return conversation


def test_messages_grow_with_questions_and_answers_until_a_reset(model: Decoder) -> None:
    conversation = model.conversation(system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    first = conversation.ask("Hi.", max_new_tokens=4)
    second = conversation.ask("And?", max_new_tokens=4)
    asked = {"role": "user", "content": "And?"}
    assert conversation.messages == [system, QUESTION, first.message, asked, second.message]
    assert second.content == model.chat(conversation.messages[:-1], max_new_tokens=4).content
    conversation.reset()
    assert conversation.messages == [system]


def test_a_closed_stream_keeps_what_came(model: Decoder) -> None:
    conversation = model.conversation()
    conversation.stream("Hi.").close()
    assert conversation.messages == []
    stream = conversation.stream("Hi.", ignore_eos=True)
    next(stream)
    assert conversation.messages == []
    for _ in range(2):
        stream.close()
        assert conversation.messages == [QUESTION, stream.reply.message]


def test_a_question_that_fails_changes_no_messages(model: Decoder) -> None:
    conversation = model.conversation()
    conversation.ask("Hi.", max_new_tokens=2)
    before = list(conversation.messages)
    with pytest.raises(ChatError):
        conversation.ask(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is none"):
        conversation.answer_tools({"call00000": 1})
    assert conversation.messages == before


def test_a_saved_conversation_continues_like_the_original(
    model: Decoder, saved: Conversation, tmp_path: Path
) -> None:
    again = model.conversation()
    again.load(tmp_path / "a.json")
    assert again.messages == saved.messages
    contents = [c.ask("And?", max_new_tokens=6).content for c in (again, saved)]
    assert contents[0] == contents[1]
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_is_replaced_completely_or_not_at_all(saved: Conversation, tmp_path: Path) -> None:
    before = (tmp_path / "a.json").read_bytes()
    saved.messages.append({"role": "user", "content": {1}})
    with pytest.raises(TypeError):
        saved.save(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


CONTENTS: dict[str, dict[str, Any] | bytes] = {
    "another bundle": {"bundle": "0" * 64},
    "another version": {"ortolan_conversation": 2},
    "an unknown role": {"messages": [{"role": "king", "content": ""}]},
    "messages that are a number": {"messages": 7},
    "an unknown field": {"more": 7},
    "nothing": b"",
    "half of it": b"{",
    "no text": b"\xff",
    "a list": b"[]",
    "a deep list": b"[" * 10_000,
}


@pytest.mark.parametrize("name", [*CONTENTS, "no file"])
def test_a_file_that_is_not_this_conversation_is_refused(
    saved: Conversation, tmp_path: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    path, content = tmp_path / "a.json", CONTENTS.get(name)
    if isinstance(content, dict):
        content = json.dumps({**json.loads(path.read_text()), **content}).encode()
    path.unlink() if content is None else path.write_bytes(content)
    before = list(saved.messages)
    assert refusal(lambda: saved.load(path), tmp_path) == snapshot
    assert saved.messages == before
