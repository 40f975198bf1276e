"""Completions are bit-identical alone and among concurrent requests."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.runtime.conftest import Models
from tests.runtime.serving.faults import failing
from tests.runtime.serving.holding import held
from tests.runtime.serving.served import KINDS, Spec, alone_in, outcome
from tests.runtime.tiny_adapters import NAMES, Pairs

from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.options import Options
from ortolan.runtime.serving.ticket import Ticket

Alone = Callable[[Spec], Completion]


def assert_same(done: Completion, expected: Completion) -> None:
    """Compare tokens and log-probabilities; of a cancelled text as far as it came."""
    count = len(done.tokens)
    if done.finish_reason != "cancelled":
        assert done.finish_reason == expected.finish_reason
        assert count == len(expected.tokens)
        assert done.prompt_logprobs == expected.prompt_logprobs
    assert done.tokens == expected.tokens[:count]
    assert (done.logprobs or ())[:count] == (expected.logprobs or ())[:count]


requests = st.builds(
    Spec,
    prompt=st.integers(1, 40) | st.sampled_from([GRID - 1, GRID, GRID + 1, 2 * GRID + 44]),
    limit=st.integers(1, 12),
    seed=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 1.0]),
    pattern=st.sampled_from([None, None, "[a-z]{2,9}"]),
    adapter=st.sampled_from(NAMES),
    has_draft=st.booleans(),
    scored=st.sampled_from([None, None, None, 2]),
)


class Requests(RuleBasedStateMachine):
    """Requests to a service, with prefixes in memory and in files, and calls that fail."""

    model: Decoder
    alone: Alone
    folder: Path
    kind: str

    @initialize(
        slots=st.sampled_from([1, 2, 8]),
        chunk=st.sampled_from([32, None]),
        cache_bytes=st.sampled_from([0, 100_000, 1 << 20]),
        has_folder=st.booleans(),
        failures=st.sampled_from([(), (3, 50)]),
    )
    def start(
        self,
        slots: int,
        chunk: int | None,
        cache_bytes: int,
        has_folder: bool,
        failures: tuple[int, ...],
    ) -> None:
        self.stack = ExitStack()
        self.stack.enter_context(failing(lambda call: call in failures))
        chunk = None if self.kind in ("recurrent", "int8-prefill") else chunk
        self.service = self.stack.enter_context(
            self.model.serve(
                slots=slots,
                chunk=chunk,
                cache_bytes=cache_bytes,
                cache_folder=self.folder if has_folder else None,
            )
        )
        # A recurrent state cannot be rewound, a short graph leaves no room for guesses, and an
        # error while drafting is final.
        self.has_drafts = self.kind in ("fp32", "int4") and not failures
        self.specs: dict[Ticket[Completion], Spec] = {}
        self.texts: dict[Ticket[Completion], str] = {}

    @rule(spec=requests, priority=st.integers(0, 2))
    def submit(self, spec: Spec, priority: int) -> None:
        spec = spec if self.has_drafts else spec.without_draft()
        ticket = spec.submit(self.service, priority=priority)
        self.specs[ticket], self.texts[ticket] = spec, ""

    @rule(seconds=st.floats(0, 0.003))
    def go_on(self, seconds: float) -> None:
        time.sleep(seconds)

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(list(self.specs)))
        self.texts[ticket] += next(ticket, Piece()).content

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(list(self.specs))).cancel()

    def teardown(self) -> None:
        if not hasattr(self, "service"):
            return
        self.stack.close()
        for ticket, spec in self.specs.items():
            done = ticket.result(timeout=60)
            assert_same(done, self.alone(spec))
            assert self.texts[ticket] + "".join(piece.content for piece in ticket) == done.text
            assert done.timings.cached_tokens % GRID == 0
        stats = self.service.stats()
        assert stats.running == stats.waiting == stats.state_bytes == 0
        assert stats.failed == {}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_at_any_time_equal_themselves_alone(
    pairs: Pairs, tmp_path: Path, kind: str
) -> None:
    class Case(Requests):
        model = pairs[kind].adapted
        alone = staticmethod(alone_in(model))
        folder = tmp_path / "cache"

    Case.kind = kind
    machine = Case.TestCase
    machine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
    machine().runTest()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_size_and_n_equal_the_service(models: Models, kind: str) -> None:
    model, options = models[kind], Options(max_new_tokens=9, ignore_eos=True, logprobs=2)
    prompts = [Spec(prompt=5 + s, limit=9, seed=s, temperature=0.0).ids for s in range(7)]
    with model.serve(slots=2) as service:
        served = [service.submit(prompt, **options) for prompt in prompts]
        expected = [outcome(ticket.result()) for ticket in served]
    for size in (1, 2, 7):
        parts = [prompts[start : start + size] for start in range(0, 7, size)]
        got = [done for part in parts for done in model.generate(part, **options)]
        assert [outcome(done) for done in got] == expected
    for n in (1, 3):
        got = [done for prompt in prompts for done in model.generate(prompt, n=n, **options)]
        assert [outcome(done) for done in got] == [one for one in expected for _ in range(n)]


def test_requests_wait_until_all_of_their_tokens_fit(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    alone = alone_in(model)
    specs = [Spec(prompt=10 + seed, limit=9, seed=seed, temperature=1.0) for seed in range(9)]
    expected = [alone(spec) for spec in specs]
    memory_left(60 * model.manifest.state_bytes("append"))
    with model.serve(slots=8, cache_bytes=0) as service:
        tickets = [spec.submit(service) for spec in specs]
        for ticket, wanted in zip(tickets, expected, strict=True):
            assert_same(ticket.result(), wanted)
        assert service.stats().failed == {}


def test_a_suspended_request_ends_though_the_next_one_does_not_fit(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    alone = alone_in(model)
    specs = [Spec(prompt=prompt, limit=4, seed=1, temperature=1.0) for prompt in (10, 10, 20)]
    expected = [alone(spec) for spec in specs]
    memory_left(25 * model.manifest.state_bytes("append"))
    with model.serve(slots=1, cache_bytes=0) as service:
        with held(service):
            tickets = [specs[0].submit(service)]
            next(tickets[0])  # it holds the slot, and the others outrank it
            tickets += [spec.submit(service, priority=1) for spec in specs[1:]]
        for ticket, wanted in zip(tickets, expected, strict=True):
            assert_same(ticket.result(60), wanted)
