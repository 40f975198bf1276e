"""Requests to a service: pieces, rejections, cancellation, failures and order."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.conftest import Models
from tests.runtime.serving.holding import held
from tests.runtime.serving.served import settle

from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import (
    InputError,
    MemoryPlanError,
    NumericError,
    ServiceError,
    TokenizerError,
)
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.histogram import BOUNDS, Histogram
from ortolan.runtime.serving.service import Service


@pytest.fixture
def service(model: Decoder) -> Iterator[Service]:
    with model.serve(slots=2) as service:
        yield service


PIECES: Any = {"max_new_tokens": 30, "ignore_eos": True, "logprobs": 2}

# --- pieces -----------------------------------------------------------------------------------


def test_a_ticket_shows_the_progress_of_its_prompt(service: Service) -> None:
    with held(service):
        service.submit("first", max_new_tokens=1)
        ticket = service.submit("Hello", max_new_tokens=1)
        assert ticket.prompt_progress == (0, 5)
    ticket.result()
    assert ticket.prompt_progress == (5, 5)


def assert_whole(pieces: list[Piece], completion: Completion) -> None:
    assert "".join(piece.content for piece in pieces) == completion.text
    assert sum((piece.tokens for piece in pieces), ()) == completion.tokens
    assert sum((piece.logprobs or () for piece in pieces), ()) == completion.logprobs
    assert all(len(piece.tokens) == len(piece.logprobs or ()) for piece in pieces)
    assert all(piece.content or piece.tokens for piece in pieces)


def test_pieces_join_to_the_completion(service: Service) -> None:
    ticket = service.submit("Hello", **PIECES)
    pieces = list(ticket.pieces())
    assert_whole(pieces, ticket.result())
    assert len(pieces) > 5
    assert not list(ticket.pieces()), "pieces are read once"
    assert not list(ticket)
    late = service.submit("Hello", **PIECES)
    late.result()
    assert list(late.pieces()) == pieces


def test_text_and_pieces_of_one_ticket_continue_each_other(service: Service) -> None:
    with held(service):
        ticket = service.submit("Hello", **PIECES)
        text = next(ticket).content
    pieces = list(ticket.pieces())
    assert text + "".join(piece.content for piece in pieces) == ticket.result().text
    tokens = sum((piece.tokens for piece in pieces), ())
    assert 0 < len(tokens) < 30
    assert ticket.result().tokens[-len(tokens) :] == tokens


def test_the_tokens_of_a_stop_text_come_without_text(service: Service) -> None:
    whole = service.submit("Hello", **PIECES).result().text
    ticket = service.submit("Hello", **PIECES, stop=[whole[7:10]])
    assert_whole(list(ticket.pieces()), ticket.result())


def test_a_token_belongs_to_the_piece_that_it_completes(service: Service) -> None:
    ticket = service.submit("Hello", max_new_tokens=9, grammar=Grammar.regex("ab{3}"), stop=["zz"])
    pieces = list(ticket.pieces())
    assert [piece.content for piece in pieces] == ["a", "b", "b", "b"]
    assert [len(piece.tokens) for piece in pieces] == [1] * 4
    assert all(piece.logprobs is None for piece in pieces)


def test_an_error_comes_after_the_pieces(poisoned: Decoder) -> None:
    with poisoned.serve(slots=2) as service:
        ticket = service.submit("ab-c", max_new_tokens=9)
        with pytest.raises(NumericError):
            list(ticket.pieces())


def test_without_a_tokenizer_there_are_no_pieces(bare: Decoder) -> None:
    with bare.serve(slots=2) as service:
        ticket = service.submit([1, 2, 3], max_new_tokens=4)
        with pytest.raises(TokenizerError, match="no tokenizer"):
            next(ticket)
        with pytest.raises(TokenizerError, match="no tokenizer"):
            ticket.pieces()
        assert len(ticket.result().tokens) == 4


# --- rejections -------------------------------------------------------------------------------


OPTIONS: list[dict[str, Any]] = [
    {"slots": 257},
    {"mode": "best"},
    *({"chunk": size} for size in (48, 1, 256)),
    {"cache_bytes": -1},
    {"cache_folder": "x", "cache_folder_bytes": -1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_invalid_option_is_refused(
    model: Decoder, options: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: model.serve(**options)) == snapshot


def test_exact_services_need_exact_models(
    model: Decoder, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="chunk must be 128"):
        models["int8-prefill"].serve(chunk=64)
    models["int8-prefill"].serve(chunk=64, mode="fast").close()
    models["int4"].serve(chunk=64).close()
    engine = model._engine
    monkeypatch.setattr(engine, "exactness", replace(engine.exactness, mixes_rows=True))
    with pytest.raises(InputError, match=r"mixture of experts .*`ortolan serve --fast`"):
        model.serve()
    model.serve(mode="fast").close()


def test_a_request_that_can_never_fit_is_rejected_at_once(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    memory_left(200_000)
    with model.serve(cache_bytes=0) as service:
        with pytest.raises(MemoryPlanError, match=r"0\.2 MB is free"):
            service.submit("a", max_new_tokens=1000)
        with pytest.raises(MemoryPlanError):
            service.submit("a")  # to the end of the context
        assert len(service.submit("a", max_new_tokens=9, ignore_eos=True).result().tokens) == 9
    with (
        model.serve(cache_bytes=190_000) as service,
        pytest.raises(MemoryPlanError, match=r"0\.2 MB .* prefix cache"),
    ):
        service.submit("a", max_new_tokens=100)


# --- cancellation -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "prefilling", 1, 2, 5, 19])
def test_a_cancelled_request_frees_its_slot_and_affects_no_other(
    model: Decoder, state: str | int
) -> None:
    text = "The quick brown fox"
    expected = model.generate([text, text], max_new_tokens=20, ignore_eos=True)[0]
    with model.serve(slots=2, chunk=2) as service:
        with held(service):
            service.submit("first", max_new_tokens=1)
            # polled once per round: a prompt of 19 tokens takes ten of them
            answers = iter([False] * 3)
            ticket: Any = service.submit(
                text,
                max_new_tokens=20,
                ignore_eos=True,
                cancel=lambda: (
                    len(ticket.work.tokens) == state
                    if isinstance(state, int)
                    else next(answers, True)
                ),
            )
            if state == "waiting":
                ticket.cancel()
            other = service.submit(text, max_new_tokens=20, ignore_eos=True)
        assert other.result().tokens == expected.tokens
        cancelled = ticket.result()
        assert cancelled.finish_reason == "cancelled"
        assert cancelled.tokens == expected.tokens[: state if isinstance(state, int) else 0]
        settle(service)


def test_a_cancel_function_that_raises_ends_its_own_request_only(service: Service) -> None:
    def fail() -> bool:
        raise KeyError("no such thing")

    other = service.submit("abc", max_new_tokens=5, ignore_eos=True)
    with pytest.raises(InputError, match="KeyError"):
        service.submit("abc", cancel=fail).result()
    assert len(other.result().tokens) == 5


# --- failures ---------------------------------------------------------------------------------


def test_a_sequence_whose_logits_are_not_finite_fails_alone(poisoned: Decoder) -> None:
    with poisoned.serve(slots=4) as service:
        sick = service.submit("ab-c", max_new_tokens=9)
        healthy = [service.submit("abc", max_new_tokens=9, ignore_eos=True) for _ in range(5)]
        for read in (sick.result, lambda: list(sick)):
            with pytest.raises(NumericError, match="overflow"):
                read()
        assert [len(ticket.result().tokens) for ticket in healthy] == [9] * 5


@pytest.mark.parametrize("recovers", [True, False])
def test_an_error_of_the_service_reaches_every_request(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, recovers: bool
) -> None:
    service = model.serve(slots=2)

    def fail(self: Generator, error: Exception | None = None) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Generator, "round", fail)
    if not recovers:
        monkeypatch.setattr(Generator, "recover", fail)
    with held(service):
        tickets = [service.submit("abc", max_new_tokens=9) for _ in range(4)]
    for ticket in tickets:
        with pytest.raises(ServiceError, match="ZeroDivisionError: a bug") as caught:
            ticket.result()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    for use in (lambda: list(tickets[0]), lambda: service.submit("abc").result()):
        with pytest.raises(ServiceError, match="a bug"):
            use()
    tickets[0].cancel()
    assert service.is_failing
    service.close()
    stats = service.stats()
    assert stats.running == 0
    assert stats.failed == {"service": 5 if recovers else 4}
    assert stats.refused == ({} if recovers else {"service": 1})


# --- order ------------------------------------------------------------------------------------


def test_a_higher_priority_goes_first_and_takes_a_slot(model: Decoder) -> None:
    with model.serve(slots=1, mode="fast") as service:
        with held(service):
            service.submit("first", max_new_tokens=1)
            low, middle, high, later = (
                service.submit("abcdef", max_new_tokens=40, ignore_eos=True, priority=priority)
                for priority in (0, 1, 2, 0)
            )
        done = [ticket.result() for ticket in (high, middle, low, later)]
        first = [completion.timings.time_to_first_token_s for completion in done]
        assert first == sorted(first), "though the low one came first"
        assert len({completion.tokens for completion in done}) == 1


def test_a_long_prompt_does_not_block_running_sequences(model: Decoder) -> None:
    with model.serve(slots=2, chunk=2) as service:
        short = service.submit("abc", max_new_tokens=50, ignore_eos=True)
        next(short)
        long = service.submit(
            "a" * 1000,
            max_new_tokens=1,
            cancel=lambda: short.work.finish_reason is not None,  # polled between its chunks
        )
        assert len(short.result().tokens) == 50
        assert long.result().finish_reason == "cancelled"
        assert long.result().tokens == ()


# --- totals and times --------------------------------------------------------------------------


def test_times_are_counted_in_the_first_bucket_that_holds_them() -> None:
    times = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 60.0, 61.0):
        times.add(seconds)
    assert times.counts == [2, 1, *[0] * (len(BOUNDS) - 3), 1, 1]
    assert times.count == 5
    assert times.total_s == pytest.approx(121.0021)
    before = times.copy()
    times.add(1.0)
    assert (before.count, times.count) == (5, 6)


def test_stats_count_times_drafts_and_states(model: Decoder) -> None:
    with model.serve(slots=2) as service:
        tickets = [
            service.submit("abab" * 5, max_new_tokens=9, ignore_eos=True, draft=draft)
            for draft in (None, None, PromptLookup())
        ]
        completions = [ticket.result() for ticket in tickets]
        settle(service)
        stats = service.stats()
        timings = [completion.timings for completion in completions]
        assert stats.queued_s.count == stats.first_token_s.count == 3
        assert stats.gaps_s.count == 3 * 8
        assert stats.gaps_s.total_s == pytest.approx(sum(one.decode_s for one in timings))
        first_s = sum(one.time_to_first_token_s for one in timings)
        assert stats.first_token_s.total_s == pytest.approx(first_s)
        assert 0 <= stats.queued_s.total_s <= first_s
        assert stats.drafted_tokens == sum(one.drafted_tokens for one in timings) > 0
        assert stats.accepted_tokens == sum(one.accepted_tokens for one in timings)
        assert stats.state_bytes == 0
        with service.submit("abc", ignore_eos=True) as running:
            next(running)
            next(running)
            assert service.stats().state_bytes >= 3 * model.manifest.state_bytes("append")
        before = service.stats()
        service.submit("abc", max_new_tokens=2, ignore_eos=True).result()
        settle(service)
        assert service.stats().first_token_s.count > before.first_token_s.count


def test_a_request_that_never_ran_has_no_times(model: Decoder) -> None:
    service = model.serve(slots=2)
    tickets = [service.submit("a" * 900, max_new_tokens=90) for _ in range(9)]
    service.close(0)
    assert all(ticket.done() for ticket in tickets)
    stats = service.stats()
    assert stats.finished == 9
    assert stats.queued_s.count < 9
    assert stats.first_token_s.count <= stats.queued_s.count
