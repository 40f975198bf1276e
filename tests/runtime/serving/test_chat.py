"""Chats through a service: bit-identical to those of the model alone."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.chat.tiny_chat import assert_same, chat_model, packed_chat_models
from tests.runtime.serving.served import settle

from ortolan.runtime import Decoder, Sampling
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.errors import InputError, QueueFullError
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.serving.service import Service

KINDS = ("fp32", "int4-split", "int8-prefill", "recurrent")
TEMPLATE = (
    "{{ tools or '' }}{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}"
    "{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<bos>a:{% endif %}{# <tool_call> </think> #}"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = Grammar.regex(
    r"<think>[a-z]{1,9}</think>[A-Z]{2}"
    r'<tool_call>\{"name": "f", "arguments": \{"x": [1-9]\}\}</tool_call>'
)
ANSWER: Any = {"max_new_tokens": 24, "logprobs": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return packed_chat_models(tmp_path_factory.mktemp("chats"), KINDS, TEMPLATE)


@pytest.fixture
def model(models: dict[str, Decoder]) -> Decoder:
    return models["int4-split"]


@pytest.fixture
def service(model: Decoder) -> Iterator[Service]:
    with model.serve(slots=4) as service:
        yield service


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def slow() -> bool:
    """Option `cancel` of a request that is cancelled before it could end."""
    time.sleep(0.01)
    return False


def drawn(seed: int) -> Any:
    return {**ANSWER, "sampling": Sampling(temperature=0.8, seed=seed)}


@pytest.mark.parametrize("is_late", [False, True])
def test_reasoning_and_calls_are_separate_and_pieces_have_their_tokens(
    model: Decoder, service: Service, is_late: bool
) -> None:
    options: Any = {"tools": TOOLS, "grammar": CALL, "max_new_tokens": 120, "logprobs": 1}
    ticket = service.chat(user("Call."), **options)
    if is_late:
        ticket.result()
    pieces, reply = list(ticket.pieces()), ticket.result()
    (expected,) = model.chat(user("Call."), n=1, **options)
    assert_same(reply, expected)
    assert reply.reasoning == "".join(piece.reasoning for piece in pieces) != ""
    assert reply.content == "".join(piece.content for piece in pieces)
    (call,) = reply.tool_calls
    assert (call.name, *call.arguments) == ("f", "x")
    assert [piece.tool_call for piece in pieces if piece.tool_call] == [call]
    assert sum((piece.tokens for piece in pieces), ()) == reply.completion.tokens
    assert sum((piece.logprobs or () for piece in pieces), ()) == reply.completion.logprobs
    second = [piece for piece in pieces if piece.content][1]
    assert (len(reply.content), len(second.tokens)) == (2, 1)


def test_several_replies_have_consecutive_seeds(model: Decoder, service: Service) -> None:
    tickets = service.chat(user("Hi."), n=3, **drawn(5))
    expected = model.chat(user("Hi."), n=3, **drawn(5))
    for ticket, reply in zip(tickets, expected, strict=True):
        assert_same(ticket.result(), reply)
    assert len({ticket.result().content for ticket in tickets}) > 1


def test_all_replies_are_queued_or_none(model: Decoder) -> None:
    with model.serve(slots=2, queue=1) as service:
        with pytest.raises(QueueFullError):
            service.chat(user("Hi."), n=4, **ANSWER)
        settle(service)
        assert [ticket.result().content for ticket in service.chat(user("Hi."), n=3, **ANSWER)]


def test_a_bundle_without_a_template_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with chat_model(tmp_path, {}).serve() as service:
        text = refusal(lambda: service.chat(user("Hi.")))
        assert text == refusal(service.conversation) == snapshot


class Failing:
    """A draft that raises after a few proposals."""

    def __init__(self) -> None:
        self.calls = 0

    def begin(self, prompt: Sequence[int]) -> Any:
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        self.calls += 1
        if self.calls > 3:
            raise KeyError("guess")

    def propose(self, most: int) -> list[int]:
        return [1][:most]


@pytest.mark.parametrize("kind", KINDS)
def test_replies_with_and_without_a_draft_equal_those_of_the_model(
    models: dict[str, Decoder], kind: str
) -> None:
    model = models[kind]
    text, draft = "ABCABC" * 5, None if kind == "recurrent" else PromptLookup()
    with model.serve(slots=4) as service:
        tickets = [
            service.chat(user(text), draft=draft if seed % 2 else None, **drawn(seed))
            for seed in range(7)
        ]
        urgent = service.chat(user(text), draft=draft, priority=1, **drawn(7))
        plain = service.submit(text, draft=draft, max_new_tokens=20, ignore_eos=True)
    for seed, ticket in enumerate([*tickets, urgent]):
        if seed % 2:
            expected = model.chat(user(text), draft=draft, **drawn(seed))
        else:
            (expected,) = model.chat(user(text), n=1, **drawn(seed))
        assert_same(ticket.result(), expected)
    if kind == "fp32":  # graphs for few tokens at a time leave no room for drafts
        assert urgent.result().completion.timings.drafted_tokens > 0
    alone = model.generate(text, draft=draft, max_new_tokens=20, ignore_eos=True)
    assert plain.result().tokens == alone.tokens


def test_a_failing_draft_ends_only_its_own_reply(model: Decoder, service: Service) -> None:
    bad = service.chat(user("Hi."), draft=Failing(), **ANSWER)
    good = service.chat(user("Hi."), draft=PromptLookup(), **ANSWER)
    with pytest.raises(InputError, match=r"Failing .*KeyError"):
        bad.result()
    assert_same(good.result(), model.chat(user("Hi."), draft=PromptLookup(), **ANSWER))


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_equal_those_of_the_model(models: dict[str, Decoder], kind: str) -> None:
    model, system = models[kind], "Be brief, and be so at all times. " * 9
    alone = model.conversation(system=system)
    with model.serve(slots=2) as service:
        served = service.conversation(system=system, priority=1)
        other = service.chat(user("Hi."), ignore_eos=True)
        for turn in range(6):
            if turn == 4:  # the prompt is a prefix of an earlier one
                del served.messages[-2:], alone.messages[-2:]
            got, expected = (c.ask(f"{turn}?", **drawn(turn)) for c in (served, alone))
            assert_same(got, expected)
            cached = got.completion.timings.cached_tokens
            assert cached > 0 or turn == 0
            if kind in ("fp32", "int4-split"):
                assert cached == expected.completion.timings.cached_tokens or turn == 4
            else:
                assert cached % GRID == 0
        other.cancel()
    assert served.messages == alone.messages


def test_conversations_stay_within_the_cache(model: Decoder) -> None:
    with model.serve(slots=2, cache_bytes=60_000) as service:
        conversations = [service.conversation(system="Be brief.") for _ in range(6)]
        for turn in range(3):
            for number, conversation in enumerate(conversations):
                conversation.ask(f"{turn}{number}?", max_new_tokens=9, ignore_eos=True)
            assert service.stats().cache.bytes <= 60_000
        assert service.stats().cache.evicted > 0


def test_a_conversation_answers_calls_in_an_event_loop(service: Service, tmp_path: Path) -> None:
    conversation = service.conversation(tools=TOOLS)

    async def main() -> None:
        stream = conversation.stream("Call.", grammar=CALL, max_new_tokens=120)
        pieces = [piece async for piece in stream]
        (call,) = stream.reply.tool_calls
        assert pieces[-1].tool_call == call
        assert len(conversation.messages) == 2
        reply = await conversation.stream_tools({call.id: {"t": 3}}, **ANSWER)
        assert conversation.messages[-1] == reply.message

    asyncio.run(main())
    assert [message["role"] for message in conversation.messages] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    conversation.save(tmp_path / "saved.json")
    assert len(json.loads((tmp_path / "saved.json").read_text())["messages"]) == 4
    with conversation.stream("More.", ignore_eos=True, cancel=slow) as stream:
        next(stream)
    assert stream.reply.completion.finish_reason == "cancelled"


def test_a_stream_of_the_model_cannot_be_awaited(model: Decoder) -> None:
    async def main() -> None:
        with pytest.raises(InputError, match="Read it with `for`"):
            await model.chat_stream(user("Hi."), max_new_tokens=2)

    asyncio.run(main())
