"""Conversations: their messages and files, and reuse of state that changes no answer."""

import json
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.chat.tiny_chat import TEMPLATE, assert_same, chat_model, packed_chat_models

from ortolan.runtime import Conversation, Decoder, Sampling
from ortolan.runtime.chat import chat_model as chat_model_module
from ortolan.runtime.chat.reply import Reply
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import ChatError, InputError
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.last_prompt import LastPrompt

KINDS = ("fp32", "int4-split", "int8-prefill", "recurrent", "by-token")
ON_THE_GRID = ("int8-prefill", "recurrent")
TURNS = 10
DRAWN = Sampling(temperature=0.7, seed=5)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return packed_chat_models(tmp_path_factory.mktemp("reuse"), KINDS, TEMPLATE)


def question(turn: int) -> str:
    letters = np.random.default_rng(turn).integers(0x41, 0x5B, 3 + 5 * turn)
    return "".join(map(chr, letters))


def ask(conversation: Conversation, turn: int, **options: Any) -> Reply:
    limit = options.pop("max_new_tokens", 5 + 3 * (turn % 4))
    return conversation.ask(
        question(turn), max_new_tokens=limit, sampling=DRAWN, logprobs=2, **options
    )


def cached(reply: Reply) -> int:
    return reply.completion.timings.cached_tokens


def two(model: Decoder, **options: Any) -> tuple[Conversation, Conversation]:
    return model.conversation(**options), model.conversation(reuse=False, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_ten_turns_equal_those_without_reuse(models: dict[str, Decoder], kind: str) -> None:
    model = models[kind]
    reused, computed = two(model, system="Be brief, and be so at all times." * 3)
    before = 0
    for turn in range(TURNS):
        got, expected = (ask(c, turn, ignore_eos=True) for c in (reused, computed))
        assert_same(got, expected)
        assert cached(expected) == 0
        prompt = model.chat_template.prompt(reused.messages[:-1]).ids
        (alone,) = model.generate(
            [prompt],
            max_new_tokens=5 + 3 * (turn % 4),
            sampling=DRAWN,
            logprobs=2,
            ignore_eos=True,
        )
        assert alone.logprobs == got.completion.logprobs
        assert cached(got) == (before - before % GRID if kind in ON_THE_GRID else before)
        before = len(prompt)


def drop_a_turn(conversation: Conversation) -> None:
    del conversation.messages[-2:]


def change_a_message(conversation: Conversation) -> None:
    conversation.messages[-4] = {"role": "user", "content": "SOMETHING ELSE"}


def change_the_system(conversation: Conversation) -> None:
    conversation.messages[0] = {"role": "system", "content": "S" * 200}


def cancel_an_answer(conversation: Conversation) -> None:
    with conversation.stream("TELL ME MORE", ignore_eos=True) as stream:
        for _ in range(9):
            next(stream)


def begin_none(conversation: Conversation) -> None:
    conversation.stream("NOTHING").close()


def drop_a_stream(conversation: Conversation) -> None:
    next(conversation.stream("AND THEN", ignore_eos=True))


def fail(conversation: Conversation) -> None:
    with pytest.raises(InputError):
        conversation.ask("WHAT", max_new_tokens=10_000)


def stop_in_the_prompt(conversation: Conversation) -> None:
    answers = iter([False, False, True])
    conversation.ask("Q" * 180, cancel=lambda: next(answers, True))


def save_and_load(conversation: Conversation) -> None:
    with TemporaryDirectory() as folder:
        conversation.save(Path(folder) / "saved.json")
        ask(conversation, 3)
        conversation.load(Path(folder) / "saved.json")


BETWEEN = (
    *(drop_a_turn, cancel_an_answer, change_a_message, save_and_load, begin_none),
    *(stop_in_the_prompt, drop_a_stream, change_the_system, fail),
    *(Conversation.close, Conversation.reset),
)


@pytest.mark.parametrize("kind", ["int4-split", "recurrent"])
def test_events_between_turns_change_no_answer(models: dict[str, Decoder], kind: str) -> None:
    both = two(models[kind], system="S" * 150)
    for turn in range(2):
        assert_same(*(ask(conversation, turn) for conversation in both))
    for turn, change in enumerate(BETWEEN, 2):
        for conversation in both:
            change(conversation)
        assert_same(*(ask(conversation, turn % 5) for conversation in both))


@pytest.mark.parametrize("kind", ["fp32", "int4-split"])
def test_any_length_of_a_shared_beginning_changes_no_answer(
    models: dict[str, Decoder], kind: str
) -> None:
    reused, computed = two(models[kind])
    for length in range(0, 40, 3):
        for conversation in (reused, computed):
            system = {"role": "system", "content": "S" * length + "T" * (40 - length)}
            conversation.messages[:] = [system]
        got, expected = ask(reused, 0), ask(computed, 0)
        assert_same(got, expected)
        assert length == 0 or cached(got) >= length - 2


@pytest.mark.parametrize("kind", ["fp32", "int4-split"])
def test_a_draft_continues_from_reused_state(models: dict[str, Decoder], kind: str) -> None:
    reused, computed = two(models[kind], system="AB" * 20)
    for turn in range(4):
        got, expected = (ask(c, turn, draft=PromptLookup()) for c in (reused, computed))
        assert_same(got, expected)
    assert cached(got) > 0


def test_two_streams_at_once_share_no_state(models: dict[str, Decoder]) -> None:
    model = models["int4-split"]
    options: Any = {"max_new_tokens": 12, "ignore_eos": True}
    conversation = model.conversation(system="S" * 40)
    ask(conversation, 0)
    messages = [*conversation.messages]
    first, second = (conversation.stream(text, **options) for text in ("ONE", "TWO"))
    next(first), next(second)
    replies = [second.finish(), first.finish()]
    for reply, text in zip(replies, ("TWO", "ONE"), strict=True):
        prompt = model.chat_template.prompt([*messages, {"role": "user", "content": text}]).ids
        (alone,) = model.generate([prompt], max_new_tokens=12, ignore_eos=True)
        assert reply.completion.tokens == alone.tokens


def test_state_is_freed_with_the_conversation(
    models: dict[str, Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[weakref.ref[Any]] = []

    def recorded(engine: Engine) -> LastPrompt:
        last = LastPrompt(engine)
        states.append(weakref.ref(last))
        return last

    monkeypatch.setattr(chat_model_module, "LastPrompt", recorded)
    conversation = models["fp32"].conversation()
    assert states == []
    for end in (conversation.close, conversation.reset, conversation.close):
        ask(conversation, 0)
        assert states[-1]() is not None
        end()
        assert states[-1]() is None
    ask(conversation, 0)
    assert states[-1]() is not None
    del conversation, end
    assert states[-1]() is None


def test_a_mixture_of_experts_continues_from_whole_chunks(
    models: dict[str, Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = models["fp32"]._engine
    monkeypatch.setattr(engine, "exactness", replace(engine.exactness, mixes_rows=True))
    reused, computed = two(models["fp32"], system="S" * 200)
    for turn in range(3):
        got, expected = ask(reused, turn), ask(computed, turn)
        assert_same(got, expected)
        assert cached(got) == (0 if turn == 0 else GRID)
    assert LastPrompt(engine).chunk == GRID


def test_conversations_in_threads_equal_those_alone(models: dict[str, Decoder]) -> None:
    model = models["int4-split"]

    def replies(number: int, *, reuse: bool = True) -> list[Reply]:
        conversation = model.conversation(system="S" * number, reuse=reuse)
        return [ask(conversation, turn) for turn in range(4)]

    numbers = (10, 20, 30)
    with ThreadPoolExecutor() as pool:
        together = list(pool.map(replies, numbers))
    for number, got in zip(numbers, together, strict=True):
        for reply, expected in zip(got, replies(number, reuse=False), strict=True):
            assert_same(reply, expected)


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
