"""Pieces of a ticket with their tokens and log-probabilities."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.chat.tiny_chat import chat_model
from tests.runtime.serving.holding import held

from ortolan.runtime import Decoder, Grammar
from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.serving.service import Service
from ortolan.runtime.serving.ticket import TextPiece

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = Grammar.regex(
    r"<think>[a-z]{1,9}</think>[A-Z]{2}"
    r'<tool_call>\{"name": "f", "arguments": \{"x": [1-9]\}\}</tool_call>'
)
OPTIONS: Any = {"max_new_tokens": 30, "ignore_eos": True, "logprobs": 2}


@pytest.fixture
def service(model: Decoder) -> Iterator[Service]:
    with model.serve(slots=2) as service:
        yield service


def assert_whole(pieces: list[TextPiece], completion: Completion) -> None:
    assert "".join(piece.text for piece in pieces) == completion.text
    assert sum((piece.tokens for piece in pieces), ()) == completion.tokens
    assert sum((piece.logprobs or () for piece in pieces), ()) == completion.logprobs
    assert all(len(piece.tokens) == len(piece.logprobs or ()) for piece in pieces)
    assert all(piece.text or piece.tokens for piece in pieces)


def test_pieces_join_to_the_completion(service: Service) -> None:
    ticket = service.submit("Hello", **OPTIONS)
    pieces = list(ticket.pieces())
    assert_whole(pieces, ticket.completion())
    assert len(pieces) > 5
    assert not list(ticket.pieces()), "pieces are read once"
    assert not list(ticket)
    late = service.submit("Hello", **OPTIONS)
    late.completion()
    assert list(late.pieces()) == pieces


def test_text_and_pieces_of_one_ticket_continue_each_other(service: Service) -> None:
    with held(service):
        ticket = service.submit("Hello", **OPTIONS)
        text = next(ticket)
    pieces = list(ticket.pieces())
    assert text + "".join(piece.text for piece in pieces) == ticket.completion().text
    tokens = sum((piece.tokens for piece in pieces), ())
    assert 0 < len(tokens) < 30
    assert ticket.completion().tokens[-len(tokens) :] == tokens


def test_the_tokens_of_a_stop_text_come_without_text(service: Service) -> None:
    whole = service.submit("Hello", **OPTIONS).completion().text
    ticket = service.submit("Hello", **OPTIONS, stop=[whole[7:10]])
    assert_whole(list(ticket.pieces()), ticket.completion())


def test_a_token_belongs_to_the_piece_that_it_completes(service: Service) -> None:
    ticket = service.submit("Hello", max_new_tokens=9, grammar=Grammar.regex("ab{3}"), stop=["zz"])
    pieces = list(ticket.pieces())
    assert [piece.text for piece in pieces] == ["a", "b", "b", "b"]
    assert [len(piece.tokens) for piece in pieces] == [1] * 4
    assert all(piece.logprobs is None for piece in pieces)


def test_an_error_comes_after_the_pieces(poisoned: Decoder) -> None:
    with poisoned.serve(slots=2) as service:
        ticket = service.submit("ab-c", max_new_tokens=9)
        with pytest.raises(NumericError):
            list(ticket.pieces())


# --- chats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True])
def test_pieces_of_a_reply_have_its_tokens(tmp_path: Path, is_late: bool) -> None:
    question: Any = [{"role": "user", "content": "Call."}]
    options: Any = {"tools": TOOLS, "grammar": CALL, "max_new_tokens": 120, "logprobs": 1}
    with chat_model(tmp_path).serve(slots=2) as service:
        ticket = service.chat(question, **options)
        if is_late:
            ticket.reply()
        pieces, reply = list(ticket.pieces()), ticket.reply()
        assert "".join(piece.content for piece in pieces) == reply.content
        assert "".join(piece.reasoning for piece in pieces) == reply.reasoning
        assert tuple(piece.tool_call for piece in pieces if piece.tool_call) == reply.tool_calls
        assert sum((piece.tokens for piece in pieces), ()) == reply.completion.tokens
        assert sum((piece.logprobs or () for piece in pieces), ()) == reply.completion.logprobs
        content = [piece for piece in pieces if piece.content]
        assert [len(piece.tokens) for piece in content[1:]] == [1] * (len(reply.content) - 1)

        async def read() -> list[Any]:
            return [piece async for piece in service.chat(question, **options).pieces()]

        assert [p.tokens for p in asyncio.run(read())] == [p.tokens for p in pieces]
