"""Services of encoder-decoders."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.serving.faults import failing

from ortolan.runtime import Sampling, Seq2Seq, Seq2SeqService, load
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import (
    ContextLengthError,
    ForkedError,
    InputError,
    MemoryPlanError,
    QueueFullError,
    ServiceClosedError,
)
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


@pytest.mark.parametrize("fails", [lambda n: n in (0, 3), lambda n: n % 4 == 1])
def test_requests_survive_calls_that_fail(
    model: Seq2Seq, service: Seq2SeqService, fails: Callable[[int], bool]
) -> None:
    expected = model.generate(SOURCES, **OPTIONS)
    with failing(fails):
        tickets = [service.submit(source, **OPTIONS) for source in SOURCES]
        for ticket, completion in zip(tickets, expected, strict=True):
            assert_close(ticket.completion(60), completion)
    stats = service.stats()
    assert stats.failed_calls > 1
    assert stats.failed == {}


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_completions_equal_those_of_sources_alone(model: Seq2Seq, slots: int) -> None:
    with model.serve(slots=slots) as service, ThreadPoolExecutor(5) as pool:

        def ask(number: int) -> Completion:
            return service.submit(SOURCES[number], **drawn(number)).completion(30)

        got = list(pool.map(ask, range(len(SOURCES))))
    for number, completion in enumerate(got):
        assert_close(completion, model.generate(SOURCES[number], **drawn(number)))


def test_tasks_read_pieces(model: Seq2Seq, service: Seq2SeqService) -> None:
    async def ask(number: int) -> None:
        ticket = service.submit(SOURCES[number], **OPTIONS)
        pieces = [piece async for piece in ticket.pieces()]
        completion = await ticket
        assert "".join(piece.text for piece in pieces) == completion.text
        assert sum((piece.tokens for piece in pieces), ()) == completion.tokens
        assert_close(completion, model.generate(SOURCES[number], **OPTIONS))

    async def main() -> None:
        await asyncio.gather(*map(ask, range(6)))

    asyncio.run(main())
    assert service.stats().prompt_tokens == sum(map(len, SOURCES[:6]))


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
    gate.completion(30)
    completions = [ticket.completion(30) for ticket in tickets]
    assert (1, 3) in shapes, "a short source is not padded to long ones"
    for source, completion in zip(sources, completions, strict=True):
        assert_close(completion, model.generate(source, **OPTIONS))


def test_a_short_source_is_not_padded_to_earlier_ones(model: Seq2Seq) -> None:
    slots = model._engine.slots(3)
    for length in (30, 4):
        source: dict[str, Any] = {
            "input_ids": np.full((1, length), 5, np.int64),
            "lengths": np.array([length], np.int32),
        }
        slots.put_sources([1], model._engine.encode_sources(source))
        held = slots.sources(slice(0, 3))
        assert held is not None
        axis = model._engine.source_states[0].shape.index("source")
        assert held.states[0].shape[axis] == length
        slots.release(1)


def test_a_cancelled_request_keeps_what_there_is(service: Seq2SeqService) -> None:
    ticket: Any = service.submit(
        SOURCES[3], ignore_eos=True, cancel=lambda: len(ticket.work.tokens) == 3
    )
    completion = ticket.completion(30)
    assert completion.finish_reason == "cancelled"
    assert len(completion.tokens) == 3


def test_options_of_generate_apply(model: Seq2Seq, service: Seq2SeqService) -> None:
    expected = model.generate(SOURCES[2], **OPTIONS)
    stopped = service.submit(SOURCES[2], **OPTIONS, stop_tokens=[expected.tokens[3]]).completion(30)
    assert stopped.finish_reason == "stop"
    first = service.submit(SOURCES[2], **OPTIONS, first=9).completion(30)
    assert first.tokens == model.generate(SOURCES[2], **OPTIONS, first=9).tokens
    assert first.tokens[0] == 9
    assert service.submit(SOURCES[2], **OPTIONS, beams=1).completion(30).tokens == expected.tokens


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        (SOURCES[1], {"beams": 2}, InputError, "no beam searches"),
        (SOURCES[1], {"n_best": 2}, InputError, "n_best"),
        (SOURCES[1], {"max_tokens": 2}, InputError, "max_new_tokens"),
        (SOURCES[1], {"prompt_logprobs": 2}, InputError, "prompt_logprobs"),
        (SOURCES[1], {"max_new_tokens": 4000}, ContextLengthError, "4000"),
        ([5] * 4000, {}, ContextLengthError, "4000"),
        (["a", "b"], {}, InputError, "single source"),
        ([], {}, InputError, "single source"),
    ],
)
def test_an_invalid_request_is_rejected_at_once(
    service: Seq2SeqService, source: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        service.submit(source, **options)
    assert sum(service.stats().refused.values()) == 1


def test_limits_are_those_of_every_service(
    model: Seq2Seq, memory_left: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    invalid: list[Any] = [{"slots": 0}, {"queue": 0}, {"chunk": 64}]
    for options in invalid:
        with pytest.raises(InputError, match=next(iter(options))):
            model.serve(**options)
    with model.serve(slots=1, queue=1) as service:
        opened = threading.Event()
        tickets = [
            service.submit(SOURCES[1], **OPTIONS, cancel=lambda: not opened.wait(60))
            for _ in range(2)
        ]
        with pytest.raises(QueueFullError):
            service.submit(SOURCES[1], **OPTIONS)
        opened.set()
        assert [len(ticket.completion(30).tokens) for ticket in tickets] == [12, 12]
        memory_left(10)
        with pytest.raises(MemoryPlanError):
            service.submit(SOURCES[1], **OPTIONS)
    with pytest.raises(ServiceClosedError):
        service.submit(SOURCES[1])
    monkeypatch.setattr(model._engine, "is_stranded", True)
    with pytest.raises(ForkedError):
        model.serve()
