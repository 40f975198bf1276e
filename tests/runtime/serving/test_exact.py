"""Completions are bit-identical alone and among concurrent requests."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.runtime.serving.served import KINDS, Spec, alone_in

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import GRID
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.options import Options
from ortolan.runtime.serving.ticket import Ticket

Alone = Callable[[str, Spec], Completion]


@pytest.fixture(scope="module")
def alone(models: dict[str, Decoder]) -> Alone:
    return alone_in(models)


def assert_same(ticket: Ticket, expected: Completion) -> None:
    """Of a cancelled text as far as it came."""
    completion = ticket.completion(timeout=60)
    if completion.finish_reason == "cancelled":
        assert completion.tokens == expected.tokens[: len(completion.tokens)]
    else:
        assert completion.tokens == expected.tokens


requests = st.builds(
    Spec,
    prompt=st.integers(1, 40) | st.sampled_from([GRID - 1, GRID, GRID + 1, 2 * GRID + 44]),
    limit=st.integers(1, 12),
    seed=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 1.0]),
    pattern=st.sampled_from([None, None, "[a-z]{2,9}"]),
)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_at_any_time_equal_themselves_alone(
    models: dict[str, Decoder], alone: Alone, kind: str
) -> None:
    class Requests(RuleBasedStateMachine):
        @initialize(
            slots=st.sampled_from([2, 8]),
            chunk=st.sampled_from([32, None]),
            cache_bytes=st.sampled_from([0, 1 << 20]),
        )
        def start(self, slots: int, chunk: int | None, cache_bytes: int) -> None:
            chunk = None if kind in ("recurrent", "int8-prefill") else chunk
            self.service = models[kind].serve(slots=slots, chunk=chunk, cache_bytes=cache_bytes)
            self.specs: dict[Ticket, Spec] = {}

        @rule(spec=requests, priority=st.integers(0, 2))
        def submit(self, spec: Spec, priority: int) -> None:
            self.specs[spec.submit(self.service, priority=priority)] = spec

        @rule(seconds=st.floats(0, 0.003))
        def go_on(self, seconds: float) -> None:
            time.sleep(seconds)

        @precondition(lambda self: self.specs)
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            data.draw(st.sampled_from(list(self.specs))).cancel()

        def teardown(self) -> None:
            if not hasattr(self, "service"):
                return
            self.service.close()
            for ticket, spec in self.specs.items():
                assert_same(ticket, alone(kind, spec))
            assert self.service.stats().running == self.service.stats().waiting == 0

    machine = Requests.TestCase
    machine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
    machine().runTest()


@pytest.mark.parametrize("kind", ["fp32", "int4"])
def test_threads_do_not_affect_each_other(
    models: dict[str, Decoder], alone: Alone, kind: str
) -> None:
    specs = [
        Spec(prompt=1 + 9 * number % 140, limit=1 + number % 7, seed=number % 5, temperature=1.0)
        for number in range(40)
    ]
    with models[kind].serve(slots=8) as service, ThreadPoolExecutor(12) as threads:
        got = list(threads.map(lambda spec: spec.submit(service).completion(), specs))
    assert [done.tokens for done in got] == [alone(kind, spec).tokens for spec in specs]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_size_and_n_equal_the_service(models: dict[str, Decoder], kind: str) -> None:
    model, options = models[kind], Options(max_new_tokens=9, ignore_eos=True, logprobs=2)
    prompts = [Spec(prompt=5 + s, limit=9, seed=s, temperature=0.0).ids for s in range(7)]
    with model.serve(slots=2) as service:
        served = [service.submit(prompt, **options) for prompt in prompts]
        expected = [outcome(ticket.completion()) for ticket in served]
    for size in (1, 2, 7):
        parts = [prompts[start : start + size] for start in range(0, 7, size)]
        got = [done for part in parts for done in model.generate(part, **options)]
        assert [outcome(done) for done in got] == expected
    for n in (1, 3):
        got = [done for prompt in prompts for done in model.generate(prompt, n=n, **options)]
        assert [outcome(done) for done in got] == [one for one in expected for _ in range(n)]


def outcome(done: Completion) -> tuple[Any, ...]:
    """Tokens and log-probabilities."""
    return done.tokens, done.logprobs


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_prefix_changes_nothing(
    models: dict[str, Decoder], alone: Alone, kind: str
) -> None:
    specs = [Spec(prompt=300 - cut, limit=5, seed=1, temperature=1.0) for cut in (0, 0, 20, 170)]
    with models[kind].serve(slots=2) as service:
        got = [spec.submit(service).completion() for spec in specs]
        stats = service.stats()
    assert [done.timings.cached_tokens for done in got] == [0, 256, 256, 128]
    assert (stats.cached_tokens, stats.prompt_tokens) == (640, 1010)
    assert [done.tokens for done in got] == [alone(kind, spec).tokens for spec in specs]
