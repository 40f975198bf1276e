"""What all services have in common, whatever their model."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_encoder
from tests.runtime.chat.tiny_chat import TEMPLATE, packed_chat_models
from tests.runtime.serving.faults import failing
from tests.runtime.serving.holding import held
from tests.runtime.serving.served import settle, wait_until

from ortolan.runtime import Decoder, Encoder, Seq2Seq, load
from ortolan.runtime.errors import ComputeError, ForkedError, QueueFullError, ServiceClosedError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.serving.base_service import Parts

HI = [{"role": "user", "content": "Hi."}]
GENERATED: dict[str, Any] = {"max_new_tokens": 9, "ignore_eos": True}


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A model, requests to its service, and what they result in.

    Attributes:
        model: serves.
        requests: submit a request to a service, with options.
        expected: results of the model alone, as lists of numbers.
    """

    model: Any
    requests: tuple[Callable[..., Any], ...]
    expected: tuple[Any, ...]


def numbers(result: Any) -> Any:
    """Tokens, or vectors."""
    if isinstance(result, np.ndarray):
        return result.tolist()
    return list(getattr(result, "completion", result).tokens)


def result_of(ticket: Any, timeout: float | None = 60) -> Any:
    """Result of an encoder, reply or completion."""
    names = ("result", "reply", "completion")
    return next(getattr(ticket, name) for name in names if hasattr(ticket, name))(timeout)


def submitting(method: str, source: Any, **options: Any) -> Callable[..., Any]:
    return lambda service, **more: getattr(service, method)(source, **options, **more)


def generating(model: Any, sources: list[Any]) -> Receiver:
    return Receiver(
        model=model,
        requests=tuple(submitting("submit", source, **GENERATED) for source in sources),
        expected=tuple(numbers(model.generate(source, **GENERATED)) for source in sources),
    )


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = tmp_path_factory.mktemp("embedder") / "bundle"
    return load(tiny_encoder.write_bundle(path, kind="embedding").path, Encoder, threads=1)


@pytest.fixture(scope="module")
def translator(exported: Callable[[str], Path]) -> Seq2Seq:
    return load(exported("marian") / "bundle", Seq2Seq, threads=1)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return packed_chat_models(tmp_path_factory.mktemp("chat"), ("fp32",), TEMPLATE)["fp32"]


@pytest.fixture(params=["decoder", "chat", "translator", "encoder"])
def receiver(request: pytest.FixtureRequest) -> Receiver:
    match request.param:
        case "decoder":
            prompts = ["abc", "a" * 40, "Hello"]
            return generating(request.getfixturevalue("model"), prompts)
        case "chat":
            messages = [[{"role": "user", "content": text}] for text in ("Hi.", "Hello", "b" * 40)]
            model = request.getfixturevalue("chatting")
            return Receiver(
                model=model,
                requests=tuple(submitting("chat", m, **GENERATED) for m in messages),
                expected=tuple(numbers(model.chat(m, **GENERATED)) for m in messages),
            )
        case "translator":
            return generating(request.getfixturevalue("translator"), [[5, 6, 7], [8], [9] * 20])
        case _:
            texts: list[Any] = [["a b c", "d"], "e f g h", ["a"] * 5]
            model = request.getfixturevalue("embedder")
            return Receiver(
                model=model,
                requests=tuple(submitting("embed", text) for text in texts),
                expected=tuple(numbers(model.embed(text)) for text in texts),
            )


def check(receiver: Receiver, tickets: list[Any]) -> None:
    """Compare the results of all requests, in their order and once more in their order."""
    for ticket, expected in zip(tickets, receiver.expected * 99, strict=False):
        np.testing.assert_allclose(numbers(result_of(ticket)), expected, atol=1e-6)
        assert ticket.done()


def is_cancelled(ticket: Any) -> bool:
    try:
        result = result_of(ticket)
        return bool(getattr(result, "completion", result).finish_reason == "cancelled")
    except CancelledError:
        return True


# --- results ----------------------------------------------------------------------------------


def test_threads_and_tasks_get_the_results_of_the_model(receiver: Receiver) -> None:
    async def ask(submit: Callable[..., Any]) -> Any:
        return numbers(await submit(service))

    async def main() -> list[Any]:
        return await asyncio.gather(*(ask(submit) for submit in receiver.requests * 4))

    with receiver.model.serve(queue=100) as service, ThreadPoolExecutor(8) as pool:
        tickets = pool.map(lambda submit: submit(service), receiver.requests * 4)
        for got, expected in zip(asyncio.run(main()), receiver.expected * 4, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-6)
        check(receiver, list(tickets))
        settle(service)
        stats = service.stats()
    assert (stats.finished, stats.failed, stats.refused) == (24, {}, {})


def test_requests_survive_calls_that_fail(receiver: Receiver) -> None:
    with receiver.model.serve() as service:
        with failing(lambda call: call in (0, 3)):
            check(receiver, [submit(service) for submit in receiver.requests * 2])
        settle(service)
        stats = service.stats()
    assert stats.failed_calls > 0
    assert stats.failed == {}


def test_a_service_whose_model_fails_says_so_and_answers_again(receiver: Receiver) -> None:
    with receiver.model.serve() as service:
        with failing(lambda _: True):
            for ticket in [submit(service) for submit in receiver.requests]:
                with pytest.raises(ComputeError, match="failed to run the model"):
                    result_of(ticket)
            assert service.is_failing
        check(receiver, [submit(service) for submit in receiver.requests])
        settle(service)
        assert not service.is_failing
        assert service.stats().failed == {"compute": 3}


def test_a_wait_may_time_out(receiver: Receiver) -> None:
    with receiver.model.serve() as service:
        with held(service):
            tickets = [submit(service) for submit in receiver.requests * 9]
            with pytest.raises(TimeoutError, match=r"0\.01 s"):
                result_of(tickets[-1], 0.01)
        check(receiver, tickets)


def test_a_request_is_cancelled_by_its_ticket_or_at_the_end_of_a_block(receiver: Receiver) -> None:
    submit = receiver.requests[1]
    with receiver.model.serve() as service:
        with held(service):
            others = [submit(service) for submit in receiver.requests]
            cancelled = [submit(service) for _ in range(2)]
            cancelled[0].cancel()
            with cancelled[1] as ticket:
                assert not ticket.done()
        assert all(map(is_cancelled, cancelled))
        check(receiver, others)
        others[0].cancel()
        check(receiver, others)


# --- refusals ---------------------------------------------------------------------------------


def test_a_full_queue_rejects_at_once_and_says_when_to_try_again(receiver: Receiver) -> None:
    with receiver.model.serve(queue=3) as service:
        with held(service):
            places = 3 if isinstance(receiver.model, Encoder) else 3 + 8  # and eight slots
            accepted = [receiver.requests[place % 3](service) for place in range(places)]
            with pytest.raises(QueueFullError, match="queue of 3") as caught:
                receiver.requests[0](service)
            assert caught.value.retry_after_s > 0
        check(receiver, accepted)
        settle(service)
        check(receiver, [submit(service) for submit in receiver.requests])
        assert service.stats().refused == {"queue-full": 1}


def test_a_full_queue_refuses_the_first_part_of_a_request_and_delays_the_others() -> None:
    places = [False, True, False, False, True]

    def submit(part: str) -> str:
        if not places.pop(0):
            raise QueueFullError("The queue is full.", retry_after_s=0.001)
        return part

    with pytest.raises(QueueFullError):
        Parts().submit(submit, "first")
    parts = Parts()
    assert [parts.submit(submit, part) for part in ("first", "second")] == ["first", "second"]
    assert places == []


def test_an_invalid_option_or_priority_is_refused(
    receiver: Receiver, snapshot: SnapshotAssertion
) -> None:
    options: list[dict[str, Any]] = [{"queue": 0}, {"queue": True}, {"slot": 2}, {"slots": 0}]
    texts = [refusal(partial(receiver.model.serve, **option)) for option in options]
    with receiver.model.serve() as service:
        for priority in ("high", 1.5):
            texts.append(refusal(partial(receiver.requests[0], service, priority=priority)))
        assert service.stats().refused == {"input": 2}
    assert texts == snapshot


WRONG: dict[str, dict[str, Callable[[Any], object]]] = {
    "decoder": {
        "two prompts": lambda service: service.submit(["a", "b"]),
        "unknown option": lambda service: service.submit("a", max_tokens=3),
        "too many new tokens": lambda service: service.submit("a", max_new_tokens=5000),
    },
    "chat": {
        "no messages": lambda service: service.chat([]),
        "unknown option": lambda service: service.chat(HI, max_tokens=3),
        "draft": lambda service: service.chat(HI, draft="lookup"),
    },
    "translator": {
        "beams": lambda service: service.submit([5], beams=2),
        "n_best": lambda service: service.submit([5], n_best=2),
        "unknown option": lambda service: service.submit([5], max_tokens=2),
        "prompt_logprobs": lambda service: service.submit([5], prompt_logprobs=2),
        "too many new tokens": lambda service: service.submit([5], max_new_tokens=4000),
        "too long": lambda service: service.submit([5] * 4000),
        "two texts": lambda service: service.submit(["a", "b"]),
        "no source": lambda service: service.submit([]),
    },
    "encoder": {
        "too long": lambda service: service.embed(" ".join("a" * 99)),
        "empty": lambda service: service.embed(["a", ""]),
        "too many": lambda service: service.embed(["a"] * 2049),
        "prompt": lambda service: service.embed("a", prompt="query"),
        "not a text": lambda service: service.embed(None),
        "other output": lambda service: service.classify("a"),
    },
}


def test_a_wrong_request_is_refused_at_once(
    receiver: Receiver, request: pytest.FixtureRequest, snapshot: SnapshotAssertion
) -> None:
    calls = WRONG[request.node.callspec.params["receiver"]]
    with receiver.model.serve() as service:
        texts = {name: refusal(partial(call, service)) for name, call in calls.items()}
        assert sum(service.stats().refused.values()) == len(calls)
    assert texts == snapshot


def test_a_forked_process_is_rejected(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver.model.serve() as service:
        ticket = receiver.requests[0](service)
        result_of(ticket)
        with monkeypatch.context() as patched:
            patched.setattr(receiver.model._engine, "is_stranded", True)
            for call in (
                lambda: receiver.requests[0](service),
                lambda: result_of(ticket),
                service.stats,
                receiver.model.serve,
            ):
                with pytest.raises(ForkedError):
                    call()


# --- the end ----------------------------------------------------------------------------------


def test_closing_finishes_accepted_requests(receiver: Receiver) -> None:
    with receiver.model.serve() as service:
        tickets = [submit(service) for submit in receiver.requests * 3]
    assert all(ticket.done() for ticket in tickets)
    check(receiver, tickets)
    with pytest.raises(ServiceClosedError, match="closed"):
        receiver.requests[0](service)
    service.close()


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_closing_by_a_deadline_cancels(receiver: Receiver, timeout: float) -> None:
    service = receiver.model.serve()
    with held(service):
        tickets = [submit(service) for submit in receiver.requests * 3]
        closing = threading.Thread(target=service.close, args=[timeout])
        closing.start()
        closing.join(timeout + 0.05)
    closing.join()
    assert is_cancelled(tickets[-1])
    assert all(ticket.done() for ticket in tickets)


def test_a_block_that_raises_cancels(receiver: Receiver) -> None:
    tickets: list[Any] = []

    def fail() -> None:
        with ExitStack() as stack, receiver.model.serve() as service:
            stack.enter_context(held(service))
            threading.Timer(0.1, stack.close).start()
            tickets.extend(submit(service) for submit in receiver.requests * 3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert is_cancelled(tickets[-1])


def test_dropped_services_finish_their_requests_and_end(receiver: Receiver) -> None:
    tickets = [submit(receiver.model.serve()) for submit in receiver.requests * 2]
    check(receiver, tickets)
    wait_until(lambda: "ortolan-service" not in {thread.name for thread in threading.enumerate()})
    tickets[0].cancel()
    if isinstance(receiver.model, Seq2Seq):  # once: this is slow
        gc.collect()
        assert not any(type(item) is Generator for item in gc.get_objects())


def test_an_idle_service_takes_no_time(receiver: Receiver) -> None:
    with receiver.model.serve() as service:
        result_of(receiver.requests[0](service))
        settle(service)
        time.sleep(0.02)
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.01
