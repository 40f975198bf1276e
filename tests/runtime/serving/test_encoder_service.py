"""Services of encoders."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime import tiny_encoder
from tests.runtime.tiny_encoder import WIDTH

from ortolan.runtime import Encoder, EncoderService, load
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import (
    BundleKindError,
    ContextLengthError,
    ForkedError,
    InputError,
    NumericError,
    QueueFullError,
    ServiceClosedError,
    ServiceError,
)

TEXTS = ["a b c", "d", "e f g h i j k l a b c d", "a", "b c d e f"]
POISON = 9


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = tmp_path_factory.mktemp("embedder") / "bundle"
    return load(tiny_encoder.write_bundle(path, kind="embedding").path, Encoder, threads=1)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = tmp_path_factory.mktemp("classifier") / "bundle"
    return load(tiny_encoder.write_bundle(path, poisoned=POISON).path, Encoder, threads=1)


@pytest.fixture
def service(embedder: Encoder) -> Iterator[EncoderService]:
    with embedder.serve() as service:
        yield service


class Gate:
    """Stops the thread of a service before its next batch until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = threading.Event()
        self.batches: list[list[int]] = []
        compute = Rows.compute

        def wait(rows: Rows, items: Any) -> Any:
            assert self._opened.wait(60)
            self.batches.append([item.length for item in items])
            return compute(rows, items)

        monkeypatch.setattr(Rows, "compute", wait)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


# --- results ----------------------------------------------------------------------------------


def test_results_equal_those_of_the_encoder(service: EncoderService, embedder: Encoder) -> None:
    ticket = service.embed(TEXTS)
    vectors = ticket.result(60)
    assert vectors.shape == (5, WIDTH)
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS), rtol=1e-5, atol=1e-6)
    assert ticket.tokens == 22 + 2 * 5
    assert ticket.done
    assert service.embed([]).result().shape == (0, WIDTH)
    assert service.embed("a").result().shape == (1, WIDTH)


@pytest.mark.parametrize(
    ("kind", "method"), [("labels", "classify"), ("states", "states"), ("logits", "logits")]
)
def test_every_method_of_an_encoder_is_served(tmp_path: Path, kind: Any, method: str) -> None:
    encoder = load(tiny_encoder.write_bundle(tmp_path / "b", kind=kind).path, Encoder, threads=1)
    with encoder.serve() as service:
        got = getattr(service, method)(TEXTS).result()
    for one, other in zip(got, getattr(encoder, method)(TEXTS), strict=True):
        if kind == "labels":
            assert one.scores == pytest.approx(other.scores, abs=1e-6)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_threads_and_tasks_share_a_service(embedder: Encoder) -> None:
    expected = {text: embedder.embed(text)[0] for text in TEXTS}

    def check(text: str, vector: Any) -> None:
        np.testing.assert_allclose(vector, expected[text], rtol=1e-5, atol=1e-6)

    async def ask(service: EncoderService, number: int) -> None:
        text = TEXTS[number % 5]
        check(text, (await service.embed(text))[0])

    async def main(service: EncoderService) -> None:
        await asyncio.gather(*(ask(service, number) for number in range(40)))

    with embedder.serve(queue=200) as service, ThreadPoolExecutor(8) as pool:
        threads = pool.map(lambda text: service.embed(text).result(60)[0], TEXTS * 8)
        asyncio.run(main(service))
        for text, vector in zip(TEXTS * 8, threads, strict=True):
            check(text, vector)
        stats = service.stats()
    assert (stats.finished, stats.inputs) == (80, 80)
    assert stats.tokens == 16 * (22 + 2 * 5)


def test_inputs_of_several_requests_are_computed_together(
    service: EncoderService, gate: Gate
) -> None:
    tickets = [service.embed("a b c") for _ in range(20)]
    long = service.embed("a b c d e f g h i j k l")
    gate.open()
    for ticket in (*tickets, long):
        ticket.result(60)
    assert max(map(len, gate.batches)) >= 19
    assert [14] in gate.batches, "a long text is not padded to short ones"
    assert service.stats().batches == len(gate.batches) <= 3


# --- order ------------------------------------------------------------------------------------


def test_a_large_request_takes_turns_with_later_ones(service: EncoderService, gate: Gate) -> None:
    large, later = service.embed(["a b c d e f g h i"] * 400), service.embed("a")
    gate.open()
    assert later.result(60).shape == (1, WIDTH)
    assert large.result(60).shape == (400, WIDTH)
    assert gate.batches.index([3]) <= 2
    assert len(gate.batches) > 12


def test_small_requests_do_not_stop_a_large_one(service: EncoderService) -> None:
    large = service.embed(["a b c d e f g h i"] * 300)
    for _ in range(5000):
        service.embed("a").result(60)
        if large.done:
            break
    assert large.done


def test_a_higher_priority_goes_first(service: EncoderService, gate: Gate) -> None:
    first = service.embed("a b c d e f g h i j k l")
    time.sleep(0.05)
    low, high = service.embed("a"), service.embed("a b c d e f", priority=1)
    gate.open()
    for ticket in (first, low, high):
        ticket.result(60)
    assert gate.batches == [[14], [8], [3]]


# --- the end of a request ---------------------------------------------------------------------


def test_a_full_queue_rejects_at_once(embedder: Encoder, gate: Gate) -> None:
    with embedder.serve(queue=2) as service:
        tickets = [service.embed("a") for _ in range(2)]
        with pytest.raises(QueueFullError, match="queue of 2") as caught:
            service.embed("a")
        assert caught.value.retry_after_s > 0
        gate.open()
        assert [len(ticket.result(60)) for ticket in tickets] == [1, 1]
        assert service.stats().refused == {"queue-full": 1}


def test_a_cancelled_request_raises_and_affects_no_other(
    service: EncoderService, gate: Gate
) -> None:
    first, second = service.embed(TEXTS), service.embed(TEXTS * 50)
    with service.embed(TEXTS) as third:
        pass
    second.cancel()
    with pytest.raises(TimeoutError, match=r"result was not ready within 0\.01 s"):
        first.result(0.01)
    gate.open()
    assert len(first.result(60)) == 5
    for ticket in (second, third):
        with pytest.raises(CancelledError):
            ticket.result(60)
    first.cancel()
    assert len(first.result()) == 5
    assert service.stats().waiting == service.stats().running == 0
    assert sum(map(len, gate.batches)) < 100


def test_an_input_that_fails_fails_its_request_alone(classifier: Encoder, gate: Gate) -> None:
    with classifier.serve() as service:
        sick, healthy = service.classify([[4], [POISON]]), service.classify([[4], [5]])
        gate.open()
        assert len(healthy.result(60)) == 2
        with pytest.raises(NumericError, match="input 1"):
            sick.result(60)


def test_an_invalid_image_fails_its_request_alone(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "images", image=tiny_encoder.IMAGE).path
    image: Any = np.zeros((tiny_encoder.HEIGHT, tiny_encoder.WIDTH_PIXELS, 3), np.uint8)
    with load(path, Encoder).serve() as service:
        sick, healthy = service.classify([image, b"nothing"]), service.classify([image, image])
        with pytest.raises(InputError, match=r"^input 1: image "):
            sick.result(60)
        assert len(healthy.result(60)) == 2
        assert healthy.tokens == 0
        with pytest.raises(InputError, match="truncate"):
            service.classify(image, truncate=True)


def test_mistakes_are_reported_on_submission(service: EncoderService) -> None:
    wrong: Any = None
    for call, error in (
        (lambda: service.embed(" ".join("a" * 99)), ContextLengthError),
        (lambda: service.embed(["a", ""]), InputError),
        (lambda: service.embed(["a"] * 2049), InputError),
        (lambda: service.embed("a", priority="high"), InputError),  # type: ignore[arg-type]
        (lambda: service.embed("a", prompt="query"), InputError),
        (lambda: service.embed(wrong), InputError),
        (lambda: service.classify("a"), BundleKindError),
    ):
        with pytest.raises(error):
            call()
    assert sum(service.stats().refused.values()) == 7


@pytest.mark.parametrize("options", [{"queue": 0}, {"queue": True}, {"slots": 2}])
def test_an_invalid_option_is_rejected(embedder: Encoder, options: Any) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        embedder.serve(**options)


# --- the end of a service ---------------------------------------------------------------------


def test_closing_finishes_accepted_requests(embedder: Encoder) -> None:
    with embedder.serve() as service:
        tickets = [service.embed(TEXTS) for _ in range(9)]
    assert all(ticket.done and len(ticket.result()) == 5 for ticket in tickets)
    with pytest.raises(ServiceClosedError):
        service.embed("a")


def test_closing_by_a_deadline_cancels(embedder: Encoder, gate: Gate) -> None:
    service = embedder.serve()
    tickets = [service.embed(TEXTS * 100) for _ in range(3)]
    threading.Timer(0.1, gate.open).start()
    service.close(0.01)
    with pytest.raises(CancelledError):
        tickets[-1].result(60)


def test_dropped_services_finish_their_requests_and_end(embedder: Encoder) -> None:
    tickets = [embedder.serve().embed(TEXTS) for _ in range(4)]
    assert [len(ticket.result(60)) for ticket in tickets] == [5] * 4
    until = time.monotonic() + 60
    while any(thread.name == "ortolan-service" for thread in threading.enumerate()):
        gc.collect()
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_error_of_the_service_reaches_every_request(
    embedder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Rows, items: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Rows, "compute", fail)
    service = embedder.serve()
    ticket = service.embed(TEXTS)
    with pytest.raises(ServiceError, match="ZeroDivisionError: a bug"):
        ticket.result(60)
    with pytest.raises(ServiceError, match="a bug"):
        service.embed("a").result(60)
    assert service.is_failing
    service.close()


def test_a_forked_process_is_rejected(
    embedder: Encoder, service: EncoderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = service.embed("a")
    ticket.result(60)
    monkeypatch.setattr(embedder._engine, "is_stranded", True)
    for call in (lambda: service.embed("a"), ticket.result, service.stats, embedder.serve):
        with pytest.raises(ForkedError):
            call()
    monkeypatch.undo()
