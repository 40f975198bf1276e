"""Requests that are refused, cancelled, or fail; services that end."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.runtime.serving.served import settle

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import (
    ContextLengthError,
    InputError,
    MemoryPlanError,
    NumericError,
    QueueFullError,
    ServiceError,
    TokenizerError,
)
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.serving.service import Service

POISON = "-"
"""The tokenizer gives each character the id of its place after the space."""


@pytest.fixture
def service(model: Decoder) -> Iterator[Service]:
    with model.serve(slots=2) as made:
        yield made


class Gate:
    """Stops a service between two rounds, as long as it is shut."""

    def __init__(self, service: Service) -> None:
        self._opened, self._reached = threading.Event(), threading.Event()
        self.ticket = service.submit("gate", max_new_tokens=1, cancel=self._stop)
        assert self._reached.wait(10)

    def _stop(self) -> bool:
        self._reached.set()
        return not self._opened.wait(10)

    def open(self) -> None:
        self._opened.set()


# --- pieces -----------------------------------------------------------------------------------


def test_pieces_joined_are_the_text(service: Service, model: Decoder) -> None:
    expected = model.generate(["Hello"], max_new_tokens=30, ignore_eos=True)[0]
    ticket = service.submit("Hello", max_new_tokens=30, ignore_eos=True)
    pieces = list(ticket)
    assert all(pieces)
    assert "".join(pieces) == ticket.completion().text == expected.text
    assert ticket.done
    assert list(ticket) == [], "they are read once"


def test_ticket_says_how_far_its_prompt_is(service: Service) -> None:
    gate = Gate(service)
    ticket = service.submit("Hello", max_new_tokens=1)
    assert ticket.prompt_progress == (0, 5)
    gate.open()
    ticket.completion()
    assert ticket.prompt_progress == (5, 5)


def test_a_slow_reader_gets_one_piece_of_everything(service: Service) -> None:
    ticket = service.submit("Hello", max_new_tokens=30, ignore_eos=True)
    text = ticket.completion().text
    assert list(ticket) == [text]


def test_stop_texts_and_options_are_those_of_generate(service: Service, model: Decoder) -> None:
    whole = model.generate(["Hello"], max_new_tokens=20, ignore_eos=True)[0].text
    ticket = service.submit("Hello", max_new_tokens=20, ignore_eos=True, stop=[whole[7:9]])
    assert "".join(ticket) == whole[: whole.index(whole[7:9])]
    assert ticket.completion().finish_reason == "stop"


def test_without_a_tokenizer_there_are_tokens_and_no_pieces(bare: Decoder) -> None:
    with bare.serve(slots=2) as service:
        ticket = service.submit([1, 2, 3], max_new_tokens=4)
        with pytest.raises(TokenizerError, match="no tokenizer"):
            next(ticket)
        assert len(ticket.completion().tokens) == 4


def test_waiting_has_an_end(service: Service) -> None:
    gate = Gate(service)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        gate.ticket.completion(timeout=0.01)
    gate.open()
    assert gate.ticket.completion().finish_reason == "length"


# --- refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "kind"),
    [
        (["a", "b"], {}, InputError),
        ("a", {"max_tokens": 3}, InputError),
        ("a", {"priority": "high"}, InputError),
        ("a", {"max_new_tokens": 5000}, ContextLengthError),
    ],
)
def test_a_wrong_request_is_refused_at_once(
    service: Service, prompt: Any, options: dict[str, Any], kind: type[InputError]
) -> None:
    with pytest.raises(kind):
        service.submit(prompt, **options)
    assert service.stats().refused == {kind.code: 1}


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": 257},
        {"queue": 0},
        {"mode": "best"},
        {"chunk": 48},
        {"chunk": 1},
        {"chunk": 256},
        {"cache_bytes": -1},
    ],
)
def test_a_wrong_option_of_a_service_is_refused(model: Decoder, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(options))}"):
        model.serve(**options)


def test_parts_are_not_chosen_where_they_matter(models: dict[str, Decoder]) -> None:
    with pytest.raises(InputError, match="chunk must be 128"):
        models["int8-prefill"].serve(chunk=64)
    models["int8-prefill"].serve(chunk=64, mode="fast").close()
    models["int4"].serve(chunk=64).close()


def test_experts_are_not_served_exactly(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "mixes_rows", property(lambda _: True))
    with pytest.raises(InputError, match="mixture of experts"):
        model.serve()
    model.serve(mode="fast").close()


def test_a_full_queue_answers_at_once_and_says_when_to_try_again(model: Decoder) -> None:
    with model.serve(slots=2, queue=3) as service:
        gate = Gate(service)
        taken = [service.submit("abc", max_new_tokens=3) for _ in range(4)]
        begun_at = time.monotonic()
        with pytest.raises(QueueFullError, match="queue of 3") as caught:
            service.submit("abc", max_new_tokens=3)
        assert time.monotonic() - begun_at < 0.05
        assert caught.value.retry_after_s > 0
        gate.open()
        assert all(len(ticket.completion().tokens) == 3 for ticket in taken)
        settle(service)
        assert len(service.submit("abc", max_new_tokens=3).completion().tokens) == 3
        assert service.stats().refused == {"queue-full": 1}


def test_what_can_never_fit_is_refused_at_once(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    memory_left(200_000)
    with model.serve(cache_bytes=0) as service:
        with pytest.raises(MemoryPlanError, match=r"0\.2 MB is free"):
            service.submit("a", max_new_tokens=1000)
        assert len(service.submit("a", max_new_tokens=9, ignore_eos=True).completion().tokens) == 9
    with (
        model.serve(cache_bytes=190_000) as service,
        pytest.raises(MemoryPlanError, match=r"0\.2 MB .* prefix cache"),
    ):
        service.submit("a", max_new_tokens=100)


# --- cancelled --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "prefilling", 1, 2, 5, 19])
def test_a_cancelled_request_leaves_its_slot_and_disturbs_nobody(
    model: Decoder, state: str | int
) -> None:
    text = "The quick brown fox"
    expected = model.generate([text, text], max_new_tokens=20, ignore_eos=True)[0]
    with model.serve(slots=2, chunk=2) as service:
        gate = Gate(service)
        if state == "waiting":
            ticket = service.submit(text, max_new_tokens=20)
            ticket.cancel()
        else:
            # asked once a round: a prompt of 19 tokens takes ten of them
            answers = iter([False] * 3)
            ticket = service.submit(
                text,
                max_new_tokens=20,
                ignore_eos=True,
                cancel=lambda: (
                    len(ticket.sequence.tokens) == state
                    if isinstance(state, int)
                    else next(answers, True)
                ),
            )
        other = service.submit(text, max_new_tokens=20, ignore_eos=True)
        gate.open()
        assert other.completion().tokens == expected.tokens
        cancelled = ticket.completion()
        assert cancelled.finish_reason == "cancelled"
        assert cancelled.tokens == expected.tokens[: len(cancelled.tokens)]
        assert len(cancelled.tokens) == (state if isinstance(state, int) else 0)
        settle(service)


def test_cancelling_twice_or_too_late_changes_nothing(service: Service) -> None:
    ticket = service.submit("abc", max_new_tokens=3, ignore_eos=True)
    assert ticket.completion().finish_reason == "length"
    ticket.cancel()
    ticket.cancel()
    assert ticket.completion().finish_reason == "length"


def test_leaving_a_with_cancels(service: Service) -> None:
    gate = Gate(service)
    with service.submit("abc", ignore_eos=True) as ticket:
        assert not ticket.done
    gate.open()
    assert ticket.completion().finish_reason == "cancelled"


def test_a_function_that_raises_ends_its_own_request_only(service: Service) -> None:
    def fail() -> bool:
        raise KeyError("no such thing")

    other = service.submit("abc", max_new_tokens=5, ignore_eos=True)
    with pytest.raises(InputError, match="KeyError"):
        service.submit("abc", cancel=fail).completion()
    assert len(other.completion().tokens) == 5


# --- failed -----------------------------------------------------------------------------------


def test_a_text_whose_logits_are_not_finite_fails_alone(poisoned: Decoder) -> None:
    with poisoned.serve(slots=4) as service:
        sick = service.submit(f"ab{POISON}c", max_new_tokens=9)
        healthy = [service.submit("abc", max_new_tokens=9, ignore_eos=True) for _ in range(5)]
        with pytest.raises(NumericError, match="overflow"):
            sick.completion()
        with pytest.raises(NumericError, match="overflow"):
            list(sick)
        assert [len(ticket.completion().tokens) for ticket in healthy] == [9] * 5


def test_an_error_of_the_service_reaches_everybody(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = model.serve(slots=2)
    gate = Gate(service)
    tickets = [service.submit("abc", max_new_tokens=9) for _ in range(4)]

    def fail(self: Generator) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Generator, "round", fail)
    gate.open()
    for ticket in tickets:
        with pytest.raises(ServiceError, match="ZeroDivisionError: a bug") as caught:
            ticket.completion()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ServiceError, match="a bug"):
        list(tickets[0])
    with pytest.raises(ServiceError, match="a bug"):
        service.submit("abc")
    tickets[0].cancel()
    service.close()
    assert service.stats().running == 0


# --- order ------------------------------------------------------------------------------------


def test_a_higher_priority_goes_first_and_takes_a_slot(model: Decoder) -> None:
    with model.serve(slots=1, mode="fast") as service:
        gate = Gate(service)
        low, middle, high = (
            service.submit("abcdef", max_new_tokens=40, ignore_eos=True, priority=priority)
            for priority in (0, 1, 2)
        )
        gate.open()
        done = [ticket.completion() for ticket in (high, middle, low)]
        first = [each.timings.time_to_first_token_s for each in done]
        assert first == sorted(first), "though the low one came first"
        assert len({each.tokens for each in done}) == 1
        assert len(gate.ticket.completion().tokens) == 1


def test_a_long_prompt_does_not_stop_texts_that_run(model: Decoder) -> None:
    with model.serve(slots=2, chunk=2) as service:
        short = service.submit("abc", max_new_tokens=50, ignore_eos=True)
        next(short)
        long = service.submit(
            "a" * 1000,
            max_new_tokens=1,
            cancel=lambda: short.sequence.finish_reason is not None,  # asked between its parts
        )
        assert len(short.completion().tokens) == 50
        assert long.completion().finish_reason == "cancelled"
        assert long.completion().tokens == ()
