"""Services of encoders."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime import tiny_encoder
from tests.runtime.serving.faults import failing
from tests.runtime.serving.served import settle
from tests.runtime.tiny_encoder import WIDTH

from ortolan.runtime import Encoder, EncoderService, load
from ortolan.runtime.encoding.batches import MAX_BATCH_ROWS
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import ComputeError, InputError, NumericError, ServiceError

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


@pytest.mark.parametrize(
    ("kind", "method"), [("labels", "classify"), ("states", "states"), ("logits", "logits")]
)
def test_every_method_of_an_encoder_is_served(tmp_path: Path, kind: Any, method: str) -> None:
    encoder = load(tiny_encoder.write_bundle(tmp_path / "b", kind=kind).path, Encoder, threads=1)
    with encoder.serve() as service:
        assert getattr(service, method)([]).result() == []
        ticket = getattr(service, method)(TEXTS)
        got = ticket.result()
        assert ticket.tokens == 22 + 2 * 5
    for one, other in zip(got, getattr(encoder, method)(TEXTS), strict=True):
        if kind == "labels":
            assert one.scores == pytest.approx(other.scores, abs=1e-6)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


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
        if large.done():
            break
    assert large.done()


def test_a_higher_priority_goes_first(service: EncoderService, gate: Gate) -> None:
    first = service.embed("a b c d e f g h i j k l")
    time.sleep(0.05)
    low, high = service.embed("a"), service.embed("a b c d e f", priority=1)
    gate.open()
    for ticket in (first, low, high):
        ticket.result(60)
    assert gate.batches == [[14], [8], [3]]


# --- the end of a request ---------------------------------------------------------------------


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


def test_only_a_call_of_the_model_that_came_back_says_that_it_computes_again(
    classifier: Encoder, tmp_path: Path
) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "images", image=tiny_encoder.IMAGE).path
    image: Any = np.zeros((tiny_encoder.HEIGHT, tiny_encoder.WIDTH_PIXELS, 3), np.uint8)
    cases: list[tuple[Encoder, Any, Any, type[Exception], bool]] = [
        (classifier, [4], [POISON], NumericError, False),
        (load(path, Encoder), image, b"nothing", InputError, True),
    ]
    for encoder, healthy, sick, error, is_failing in cases:
        with encoder.serve() as service:
            with failing(lambda _: True):
                for _ in range(2):
                    with pytest.raises(ComputeError):
                        service.classify(healthy).result(60)
            with pytest.raises(error):
                service.classify(sick).result(60)
            settle(service)
            assert service.is_failing == is_failing
            service.classify(healthy).result(60)
            settle(service)
            assert not service.is_failing


# --- calls are futures ------------------------------------------------------------------------


def test_callbacks_may_use_the_service(service: EncoderService, gate: Gate) -> None:
    later: Future[Any] = Future()

    def embed_again(call: Future[Any]) -> None:
        service.stats()
        later.set_result((call.result(), service.embed("a")))

    service.embed("a b c").add_done_callback(embed_again)
    gate.open()
    vectors, call = later.result(60)
    assert vectors.shape == call.result(60).shape == (1, WIDTH)


def test_waits_for_several_calls_end_with_those_that_are_cancelled(
    service: EncoderService, gate: Gate
) -> None:
    calls = [service.embed(["a b c"] * size) for size in (3, 300, 3, 3)]
    assert calls[1].cancel()
    assert calls[1].cancelled()
    gate.open()
    assert wait(calls, 60).not_done == set()
    assert not calls[0].cancel()
    with pytest.raises(CancelledError):
        calls[1].result(60)
    settle(service)
    assert sum(map(len, gate.batches)) <= 9 + MAX_BATCH_ROWS
    assert service.stats().finished == 4


def test_a_task_that_stops_waiting_does_not_cancel_its_call(
    service: EncoderService, gate: Gate
) -> None:
    async def main() -> None:
        call = service.embed("a b c")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.01)
        gate.open()
        assert (await call).shape == (1, WIDTH)
        cancelled = service.embed(["a"] * 2000)
        assert cancelled.cancel()
        with pytest.raises(CancelledError):
            await cancelled

    asyncio.run(main())
