"""Sequences that join and leave between rounds equal what they are alone."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray
from tests.runtime.conftest import POISON, Models, resident_bytes
from tests.runtime.tiny_decoder import VOCABULARY

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.attention_kernels import CHUNK
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import GRID, Runner
from ortolan.runtime.engine.slots import Slots, Snapshot
from ortolan.runtime.errors import MemoryPlanError, NumericError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling

SLOTS = 8
KINDS = ["fp32", "recurrent", "by-token", "int4", "int8-prefill"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a sequence is made from."""

    prompt: int = 5
    limit: int = 4
    seed: int = 1
    temperature: float = 0.0


class Recorded(SampledSequence):
    """A sequence that keeps the logits of each of its tokens."""

    def __init__(self, spec: Spec, *, prompt: list[int] | None = None) -> None:
        random = np.random.default_rng(spec.seed)
        ids = random.integers(0, VOCABULARY, spec.prompt).tolist() if prompt is None else prompt
        self.is_cancelled = False
        super().__init__(
            Request(
                prompt=ids,
                prompt_tokens=len(ids),
                limit=spec.limit,
                sampling=Sampling(temperature=spec.temperature, seed=spec.seed),
                cancelled=lambda: self.is_cancelled,
            ),
            vocab_size=VOCABULARY,
            tokenizer=None,
        )
        self.spec = spec
        self.logits: list[NDArray[np.float32]] = []

    def advance(self, logits_V: NDArray[np.float32]) -> None:
        self.logits.append(logits_V.copy())
        super().advance(logits_V)


def exact(engine: Engine, *, slots: int = SLOTS, **options: Any) -> Generator:
    return Generator(engine, slots=slots, exact=True, **options)


def run(generator: Generator, sequences: Sequence[SampledSequence]) -> None:
    for sequence in sequences:
        generator.submit(sequence)
    generator.run()


class Blocks:
    """A prefix cache that keeps everything, by tokens."""

    grid = GRID

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Snapshot] = {}
        self.fetched = 0

    def fetch(self, ids: Sequence[int], slots: Slots, row: int) -> int:
        for tokens in range((len(ids) - 1) // GRID * GRID, 0, -GRID):
            kept = self.kept.get(tuple(ids[:tokens]))
            if kept is not None:
                slots.restore(kept, row=row)
                self.fetched += 1
                return tokens
        return 0

    def offer(self, ids: Sequence[int], slots: Slots, row: int, tokens: int) -> None:
        length = slots.lengths[row]
        assert tokens % GRID == 0
        assert tokens <= length <= len(ids)
        assert tokens == length or not slots.replaces
        slots.lengths[row] = tokens  # the rest is not kept
        self.kept[tuple(ids[:tokens])] = slots.snapshot(row=row)
        slots.lengths[row] = length


@pytest.fixture(scope="module")
def engine(bare: Decoder) -> Engine:
    return bare._engine


@pytest.fixture(scope="module")
def alone(models: Models) -> Callable[[str, Spec], Recorded]:
    """The sequence that has all slots to itself."""

    @cache
    def generate(kind: str, spec: Spec) -> Recorded:
        sequence = Recorded(spec)
        run(exact(models[kind]._engine), [sequence])
        return sequence

    return generate


def assert_same(sequence: Recorded, expected: Recorded) -> None:
    """Compare to the bit; a cancelled sequence as far as it came."""
    count = len(sequence.tokens)
    assert sequence.tokens == expected.tokens[:count]
    for got, want in zip(sequence.logits, expected.logits[:count], strict=True):
        np.testing.assert_array_equal(got, want)
    if not sequence.is_cancelled:
        assert count == len(expected.tokens)


specs = st.builds(
    Spec,
    prompt=st.integers(1, 40) | st.sampled_from([127, 128, 129, 300]),
    limit=st.integers(1, 12),
    seed=st.integers(0, 5),
    temperature=st.sampled_from([0.0, 1.0]),
)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_that_join_and_leave_at_any_time_equal_themselves_alone(
    models: Models, alone: Callable[[str, Spec], Recorded], kind: str
) -> None:
    class Sequences(RuleBasedStateMachine):
        @initialize(
            prefill_first=st.booleans(),
            slots=st.sampled_from([2, SLOTS]),
            chunk=st.sampled_from([32, CHUNK, GRID]),
        )
        def start(self, prefill_first: bool, slots: int, chunk: int) -> None:
            self.generator = exact(
                models[kind]._engine,
                slots=slots,
                prefill_first=prefill_first,
                chunk=chunk,
                prefixes=Blocks(),
            )
            self.sequences: list[Recorded] = []

        @rule(spec=specs, priority=st.integers(0, 2))
        def submit(self, spec: Spec, priority: int) -> None:
            self.sequences.append(Recorded(spec))
            self.generator.submit(self.sequences[-1], priority=priority)

        @rule(rounds=st.integers(1, 6))
        def go_on(self, rounds: int) -> None:
            for _ in range(rounds):
                self.generator.round()

        @precondition(lambda self: any(one.finish_reason is None for one in self.sequences))
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            active = [one for one in self.sequences if one.finish_reason is None]
            data.draw(st.sampled_from(active)).is_cancelled = True

        def teardown(self) -> None:
            if not hasattr(self, "generator"):
                return
            self.generator.run()
            for sequence in self.sequences:
                assert sequence.finish_reason is not None
                assert_same(sequence, alone(kind, sequence.spec))

    machine = Sequences.TestCase
    machine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    machine().runTest()


@pytest.mark.parametrize(("kind", "count"), [("int4", 3), ("fp32", 30)])
def test_odd_numbers_and_more_sequences_than_slots(
    models: Models, alone: Callable[[str, Spec], Recorded], kind: str, count: int
) -> None:
    """The kernels of int4 compute rows in pairs."""
    sequences = [
        Recorded(Spec(prompt=1 + 7 * seed % 30, limit=1 + seed % 9, seed=seed, temperature=1.0))
        for seed in range(count)
    ]
    run(exact(models[kind]._engine), sequences)
    for sequence in sequences:
        assert_same(sequence, alone(kind, sequence.spec))


# --- priorities -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 6])
def test_a_suspended_sequence_continues_as_if_nothing_had_happened(
    models: Models, alone: Callable[[str, Spec], Recorded], kind: str, rounds: int
) -> None:
    """Two low ones wait, are prefilled or decoded when two high ones arrive."""
    low = [Recorded(Spec(prompt=200, limit=9, seed=seed, temperature=1.0)) for seed in (1, 2)]
    high = [Recorded(Spec(prompt=9, limit=5, seed=seed, temperature=1.0)) for seed in (3, 4)]
    generator = exact(models[kind]._engine, slots=2, prefill_first=False)
    for sequence in low:
        generator.submit(sequence)
    for _ in range(rounds):
        generator.round()
    for sequence in high:
        generator.submit(sequence, priority=1)
    before = [len(sequence.tokens) for sequence in low]
    while all(sequence.finish_reason is None for sequence in high):
        assert [len(sequence.tokens) for sequence in low] == before
        generator.round()
    generator.run()
    for sequence in (*low, *high):
        assert_same(sequence, alone(kind, sequence.spec))


def test_a_suspended_sequence_can_be_cancelled(engine: Engine) -> None:
    low, high = Recorded(Spec(limit=9)), Recorded(Spec(limit=9))
    generator = Generator(engine, slots=1)
    generator.submit(low)
    generator.round()
    generator.submit(high, priority=1)
    generator.round()
    assert generator.held_tokens > len(high.request.prompt), "suspended states count"
    generator.cancel(low)
    assert low.completion().finish_reason == "cancelled"
    generator.run()
    assert len(high.completion().tokens) == 9


# --- memory -----------------------------------------------------------------------------------


class Plan(RequestMemory):
    """A memory plan with room for a number of tokens."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        super().__init__(engine.manifest)
        self.tokens, self.seen = tokens, 0

    def check(self, *, tokens: int, held_tokens: int = 0, **_: Any) -> None:
        assert held_tokens <= tokens
        if tokens > self.tokens:
            raise MemoryPlanError(f"generate: expected {tokens}, got {self.tokens}.")
        self.seen = max(self.seen, tokens)


def test_a_sequence_waits_until_all_of_its_tokens_fit(
    engine: Engine, alone: Callable[[str, Spec], Recorded]
) -> None:
    plan = Plan(engine, 60)
    sequences = [
        Recorded(Spec(prompt=10 + seed, limit=9, seed=seed, temperature=1.0)) for seed in range(9)
    ]
    run(exact(engine, memory=plan), sequences)
    assert 40 < plan.seen <= 60
    for sequence in sequences:
        assert_same(sequence, alone("fp32", sequence.spec))


def test_a_sequence_that_never_fits_fails_alone(engine: Engine) -> None:
    fits, too_long, after = (Recorded(Spec(prompt=prompt)) for prompt in (20, 40, 20))
    run(exact(engine, memory=Plan(engine, 30)), [fits, too_long, after])
    with pytest.raises(MemoryPlanError):
        too_long.completion()
    assert [len(sequence.completion().tokens) for sequence in (fits, after)] == [4, 4]


def test_a_suspended_sequence_ends_though_the_next_does_not_fit(engine: Engine) -> None:
    low, high, long = (Recorded(Spec(prompt=prompt)) for prompt in (10, 10, 20))
    generator = Generator(engine, slots=1, memory=Plan(engine, 30))
    generator.submit(low)
    generator.round()
    generator.submit(high, priority=1)
    generator.round()
    generator.submit(long, priority=1)
    generator.run()
    assert [len(sequence.completion().tokens) for sequence in (low, high, long)] == [4, 4, 4]


# --- failures ---------------------------------------------------------------------------------


def test_a_sequence_whose_logits_are_not_finite_fails_alone(poisoned: Decoder) -> None:
    spec = Spec(prompt=6, limit=9)
    healthy = [Recorded(spec, prompt=[1, 2, 3, seed]) for seed in range(20, 23)]
    sick = Recorded(spec, prompt=[1, POISON, 2])
    run(Generator(poisoned._engine, slots=4), [healthy[0], sick, *healthy[1:]])
    with pytest.raises(NumericError, match="overflow"):
        sick.completion()
    assert [len(sequence.completion().tokens) for sequence in healthy] == [9, 9, 9]


def test_a_call_without_rows_cannot_happen(engine: Engine) -> None:
    """It would crash the process."""
    assert Generator(engine, slots=2).round() is False
    runner = Runner(engine, engine.slots(2))
    with pytest.raises(ValueError, match="rows"):
        runner.step([])
    with pytest.raises(ValueError, match="row"):
        runner.select([])


@pytest.mark.slow
def test_ten_thousand_cancelled_sequences_leave_no_memory_behind(engine: Engine) -> None:
    generator = exact(engine)

    def cancel(count: int) -> None:
        for number in range(count):
            sequence = Recorded(Spec(prompt=3, limit=50, seed=number % 7))
            generator.submit(sequence)
            for _ in range(number % 4):
                generator.round()
            sequence.is_cancelled = True
        generator.run()

    cancel(500)
    gc.collect()
    before = resident_bytes()
    cancel(10_000)
    gc.collect()
    assert resident_bytes() - before <= 10_000_000
