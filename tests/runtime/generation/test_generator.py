"""Texts that join and leave between rounds give what they give alone."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray
from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import VOCABULARY, write_bundle

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.attention_kernels import CHUNK
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.prefix_cache import PrefixCache
from ortolan.runtime.engine.runner import GRID, Runner
from ortolan.runtime.engine.slots import Slots, Snapshot
from ortolan.runtime.errors import MemoryPlanError, NumericError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling

SLOTS = 8
POISON = 13


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a text is made from."""

    prompt: int
    limit: int
    seed: int
    temperature: float


class RecordedText(SampledSequence):
    """A text that keeps the logits of each of its tokens."""

    def __init__(self, asked: Asked, *, prompt: list[int] | None = None) -> None:
        random = np.random.default_rng(asked.seed)
        ids = random.integers(0, VOCABULARY, asked.prompt).tolist() if prompt is None else prompt
        self.is_cancelled = False
        super().__init__(
            Request(
                prompt=ids,
                prompt_tokens=len(ids),
                limit=asked.limit,
                sampling=Sampling(temperature=asked.temperature, seed=asked.seed),
                cancelled=lambda: self.is_cancelled,
            ),
            vocab_size=VOCABULARY,
            tokenizer=None,
        )
        self.asked = asked
        self.logits: list[NDArray[np.float32]] = []

    def advance(self, logits_V: NDArray[np.float32]) -> None:
        self.logits.append(logits_V.copy())
        super().advance(logits_V)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("generator")
    bundles = {
        "fp32": write_bundle(folder / "fp32").path,
        "recurrent": write_bundle(folder / "recurrent", recurrent=True).path,
        "by-token": packed_bundles.write(folder / "by-token", "by-token").path,
        # its kernel takes rows in pairs
        "int4": packed_bundles.write(folder / "int4", "int4", group=64).path,
        "int8-prefill": packed_bundles.write(folder / "int8", "int8-prefill", group=64).path,
    }
    return {kind: Engine(open_bundle(path), threads=1) for kind, path in bundles.items()}


def new_generator(engine: Engine, *, slots: int = SLOTS, **options: Any) -> Generator:
    return Generator(engine, slots=slots, exact=True, **options)


class Blocks(PrefixCache):
    """What was computed for prompts, by their tokens: as many blocks as there were."""

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
def alone(engines: dict[str, Engine]) -> Callable[[str, Asked], RecordedText]:
    """What a text gives that has all slots to itself."""

    @cache
    def run(kind: str, asked: Asked) -> RecordedText:
        generator, text = new_generator(engines[kind]), RecordedText(asked)
        generator.submit(text)
        generator.run()
        return text

    return run


def assert_same(text: RecordedText, expected: RecordedText) -> None:
    """Compare to the bit; of a cancelled text as far as it came."""
    count = len(text.tokens)
    assert text.tokens == expected.tokens[:count]
    for got, want in zip(text.logits, expected.logits[:count], strict=True):
        np.testing.assert_array_equal(got, want)
    if not text.is_cancelled:
        assert count == len(expected.tokens)


texts = st.builds(
    Asked,
    prompt=st.integers(1, 40) | st.sampled_from([127, 128, 129, 300]),
    limit=st.integers(1, 12),
    seed=st.integers(0, 5),
    temperature=st.sampled_from([0.0, 1.0]),
)


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "by-token", "int4", "int8-prefill"])
def test_texts_that_join_and_leave_at_any_time_give_what_they_give_alone(
    engines: dict[str, Engine], alone: Callable[[str, Asked], RecordedText], kind: str
) -> None:
    class Texts(RuleBasedStateMachine):
        @initialize(
            prefill_first=st.booleans(),
            slots=st.sampled_from([2, SLOTS]),
            chunk=st.sampled_from([32, CHUNK, GRID]),
        )
        def start(self, prefill_first: bool, slots: int, chunk: int) -> None:
            self.generator = new_generator(
                engines[kind],
                slots=slots,
                prefill_first=prefill_first,
                chunk=chunk,
                prefixes=Blocks(),
            )
            self.texts: list[RecordedText] = []

        @rule(asked=texts, priority=st.integers(0, 2))
        def submit(self, asked: Asked, priority: int) -> None:
            self.texts.append(RecordedText(asked))
            self.generator.submit(self.texts[-1], priority=priority)

        @rule(rounds=st.integers(1, 6))
        def go_on(self, rounds: int) -> None:
            for _ in range(rounds):
                self.generator.round()

        @precondition(lambda self: any(text.finish_reason is None for text in self.texts))
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            going = [text for text in self.texts if text.finish_reason is None]
            data.draw(st.sampled_from(going)).is_cancelled = True

        def teardown(self) -> None:
            if not hasattr(self, "generator"):
                return
            self.generator.run()
            for text in self.texts:
                assert text.finish_reason is not None
                assert_same(text, alone(kind, text.asked))

    machine = Texts.TestCase
    machine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    machine().runTest()


def test_an_odd_number_of_texts_in_few_bits_gives_what_each_gives_alone(
    engines: dict[str, Engine], alone: Callable[[str, Asked], RecordedText]
) -> None:
    asked = [Asked(prompt=5, limit=12, seed=seed, temperature=0.0) for seed in range(3)]
    generator = new_generator(engines["int4"])
    made = [RecordedText(each) for each in asked]
    for text in made:
        generator.submit(text)
    generator.run()
    for text in made:
        assert_same(text, alone("int4", text.asked))


def test_more_texts_than_slots_are_served_in_turn(
    engines: dict[str, Engine], alone: Callable[[str, Asked], RecordedText]
) -> None:
    asked = [
        Asked(prompt=1 + 7 * seed % 30, limit=1 + seed % 9, seed=seed, temperature=1.0)
        for seed in range(30)
    ]
    generator = new_generator(engines["fp32"])
    made = [RecordedText(each) for each in asked]
    for text in made:
        generator.submit(text)
    generator.run()
    for text in made:
        assert_same(text, alone("fp32", text.asked))


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "by-token", "int4", "int8-prefill"])
@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 6])
def test_a_suspended_text_goes_on_as_if_nothing_had_happened(
    engines: dict[str, Engine],
    alone: Callable[[str, Asked], RecordedText],
    kind: str,
    rounds: int,
) -> None:
    """Two low ones run, are prefilled or wait when two high ones come."""
    low = [RecordedText(Asked(prompt=200, limit=9, seed=seed, temperature=1.0)) for seed in (1, 2)]
    high = [RecordedText(Asked(prompt=9, limit=5, seed=seed, temperature=1.0)) for seed in (3, 4)]
    generator = new_generator(engines[kind], slots=2, prefill_first=False)
    for text in low:
        generator.submit(text)
    for _ in range(rounds):
        generator.round()
    for text in high:
        generator.submit(text, priority=1)
    before = [len(text.tokens) for text in low]
    while all(text.finish_reason is None for text in high):
        assert [len(text.tokens) for text in low] == before
        generator.round()
    generator.run()
    for text in (*low, *high):
        assert_same(text, alone(kind, text.asked))


def test_a_suspended_text_can_be_cancelled(engines: dict[str, Engine]) -> None:
    low, high = (RecordedText(Asked(prompt=5, limit=9, seed=1, temperature=0.0)) for _ in range(2))
    generator = Generator(engines["fp32"], slots=1)
    generator.submit(low)
    generator.round()
    generator.submit(high, priority=1)
    generator.round()
    generator.cancel(low)
    assert low.completion().finish_reason == "cancelled"
    generator.run()
    assert len(high.completion().tokens) == 9


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "by-token", "int4", "int8-prefill"])
def test_a_prompt_with_a_known_beginning_gives_what_it_gives_without(
    engines: dict[str, Engine], alone: Callable[[str, Asked], RecordedText], kind: str
) -> None:
    asked = Asked(prompt=300, limit=6, seed=1, temperature=1.0)
    prefixes = Blocks()
    for again in range(3):
        text = RecordedText(asked)
        generator = new_generator(engines[kind], slots=2, prefixes=prefixes)
        generator.submit(text)
        generator.run()
        assert_same(text, alone(kind, asked))
        assert text.completion().timings.cached_tokens == (256 if again else 0)
    assert prefixes.fetched == 2


class Plan(RequestMemory):
    """A memory plan with room for a number of tokens, whatever is free."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        super().__init__(engine.manifest)
        self.tokens, self.seen = tokens, 0

    def check(self, *, tokens: int, held_tokens: int = 0, **_: Any) -> None:
        assert held_tokens <= tokens
        if tokens > self.tokens:
            raise MemoryPlanError(f"generate: expected {tokens}, got {self.tokens}.")
        self.seen = max(self.seen, tokens)


def test_a_text_waits_until_the_plan_has_room_for_all_of_its_tokens(
    engines: dict[str, Engine], alone: Callable[[str, Asked], RecordedText]
) -> None:
    plan = Plan(engines["fp32"], 60)
    generator = new_generator(engines["fp32"], memory=plan)
    made = [
        RecordedText(Asked(prompt=10 + seed, limit=9, seed=seed, temperature=1.0))
        for seed in range(9)
    ]
    for text in made:
        generator.submit(text)
    generator.run()
    assert 40 < plan.seen <= 60
    for text in made:
        assert_same(text, alone("fp32", text.asked))


def test_a_text_for_which_there_is_never_room_fails_alone(engines: dict[str, Engine]) -> None:
    generator = new_generator(engines["fp32"], memory=Plan(engines["fp32"], 30))
    fits, too_long, after = (
        RecordedText(Asked(prompt=prompt, limit=4, seed=1, temperature=0.0))
        for prompt in (20, 40, 20)
    )
    for text in (fits, too_long, after):
        generator.submit(text)
    generator.run()
    with pytest.raises(MemoryPlanError):
        too_long.completion()
    assert [len(text.completion().tokens) for text in (fits, after)] == [4, 4]


def test_a_suspended_text_ends_though_there_is_no_room_for_the_next(
    engines: dict[str, Engine],
) -> None:
    low, high, long = (
        RecordedText(Asked(prompt=prompt, limit=4, seed=1, temperature=0.0))
        for prompt in (10, 10, 20)
    )
    generator = Generator(engines["fp32"], slots=1, memory=Plan(engines["fp32"], 30))
    generator.submit(low)
    generator.round()
    generator.submit(high, priority=1)
    generator.round()
    generator.submit(long, priority=1)
    generator.run()
    assert [len(text.completion().tokens) for text in (low, high, long)] == [4, 4, 4]


def test_a_text_whose_logits_are_not_finite_fails_alone(tmp_path: Path) -> None:
    engine = Engine(open_bundle(write_bundle(tmp_path / "bundle", poisoned=POISON).path), threads=1)
    asked = Asked(prompt=6, limit=9, seed=1, temperature=0.0)
    healthy = [RecordedText(asked, prompt=[1, 2, 3, seed]) for seed in range(20, 23)]
    sick = RecordedText(asked, prompt=[1, POISON, 2])
    generator = Generator(engine, slots=4)
    for text in (healthy[0], sick, *healthy[1:]):
        generator.submit(text)
    generator.run()
    with pytest.raises(NumericError, match="overflow"):
        sick.completion()
    assert [len(text.completion().tokens) for text in healthy] == [9, 9, 9]


def test_a_call_without_rows_is_not_reachable(engines: dict[str, Engine]) -> None:
    """It would end the process."""
    engine = engines["fp32"]
    assert Generator(engine, slots=2).round() is False
    runner = Runner(engine, engine.slots(2))
    with pytest.raises(ValueError, match="rows to be selected"):
        runner.step([])
    with pytest.raises(ValueError, match="at least one row"):
        runner.select([])


def test_ten_thousand_cancelled_texts_leave_no_memory_behind(engines: dict[str, Engine]) -> None:
    generator = new_generator(engines["fp32"])

    def cancel(count: int) -> None:
        for number in range(count):
            text = RecordedText(Asked(prompt=3, limit=50, seed=number % 7, temperature=0.0))
            generator.submit(text)
            for _ in range(number % 4):
                generator.round()
            text.is_cancelled = True
        generator.run()

    cancel(500)
    gc.collect()
    before = resident_bytes()
    cancel(10_000)
    gc.collect()
    assert resident_bytes() - before <= 10_000_000


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    pytest.skip("no /proc on this system")
