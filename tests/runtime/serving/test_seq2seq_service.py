"""Services of encoder-decoders."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ortolan.runtime import Sampling, Seq2Seq, Seq2SeqService, load
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.generation.completion import Completion

SOURCES = [[5 + (7 * n + k) % 80 for k in range(1 + 5 * n % 33)] for n in range(14)]
OPTIONS: Any = {"max_new_tokens": 12, "ignore_eos": True, "logprobs": 2}


@pytest.fixture(scope="module")
def model(exported: Callable[[str], Path]) -> Seq2Seq:
    return load(exported("marian") / "bundle", Seq2Seq, threads=1)


@pytest.fixture
def service(model: Seq2Seq) -> Iterator[Seq2SeqService]:
    with model.serve(slots=3) as service:
        yield service


def drawn(seed: int) -> Any:
    temperature = float(seed % 2)
    return {**OPTIONS, "sampling": Sampling(temperature=temperature, seed=seed)}


def assert_close(got: Completion, expected: Completion) -> None:
    assert got.tokens == expected.tokens
    assert got.text == expected.text
    assert got.logprobs is not None
    assert expected.logprobs is not None
    for one, other in zip(got.logprobs, expected.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


@pytest.mark.parametrize("slots", [1, 3])
def test_completions_equal_those_of_sources_alone(model: Seq2Seq, slots: int) -> None:
    with model.serve(slots=slots) as service, ThreadPoolExecutor(5) as pool:

        def ask(number: int) -> Completion:
            return service.submit(SOURCES[number], **drawn(number)).result(30)

        got = list(pool.map(ask, range(len(SOURCES))))
    for number, completion in enumerate(got):
        assert_close(completion, model.generate(SOURCES[number], **drawn(number)))


def test_new_sources_are_encoded_by_length(
    service: Seq2SeqService, model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    encode = Engine.encode_sources

    def counted(engine: Engine, inputs: Any) -> Any:
        shapes.append(inputs["input_ids"].shape)
        return encode(engine, inputs)

    monkeypatch.setattr(Engine, "encode_sources", counted)
    opened = threading.Event()
    gate = service.submit([4], max_new_tokens=1, cancel=lambda: not opened.wait(60))
    sources = [[5] * 30, [6] * 3, [7] * 29]
    tickets = [service.submit(source, **OPTIONS) for source in sources]
    opened.set()
    gate.result(30)
    completions = [ticket.result(30) for ticket in tickets]
    assert (1, 3) in shapes, "a short source is not padded to long ones"
    for source, completion in zip(sources, completions, strict=True):
        assert_close(completion, model.generate(source, **OPTIONS))


def test_a_cancelled_request_keeps_what_there_is(service: Seq2SeqService) -> None:
    ticket: Any = service.submit(
        SOURCES[3], ignore_eos=True, cancel=lambda: len(ticket.work.tokens) == 3
    )
    completion = ticket.result(30)
    assert completion.finish_reason == "cancelled"
    assert len(completion.tokens) == 3


def test_options_of_generate_apply(model: Seq2Seq, service: Seq2SeqService) -> None:
    expected = model.generate(SOURCES[2], **OPTIONS)
    stopped = service.submit(SOURCES[2], **OPTIONS, stop_tokens=[expected.tokens[3]]).result(30)
    assert stopped.finish_reason == "stop"
    first = service.submit(SOURCES[2], **OPTIONS, first=9).result(30)
    assert first.tokens == model.generate(SOURCES[2], **OPTIONS, first=9).tokens
    assert first.tokens[0] == 9
    assert service.submit(SOURCES[2], **OPTIONS, beams=1).result(30).tokens == expected.tokens


def test_requests_that_do_not_fit_into_memory_are_refused(
    service: Seq2SeqService, memory_left: Callable[[int], None]
) -> None:
    memory_left(10)
    with pytest.raises(MemoryPlanError):
        service.submit(SOURCES[1], **OPTIONS)
