"""Texts that join and leave between rounds give what they give alone."""

import gc
from collections.abc import Callable
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
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_text import SampledText
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


class RecordedText(SampledText):
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
        # its kernel takes rows in pairs
        "int4": packed_bundles.write(folder / "int4", "int4", group=64).path,
    }
    return {kind: Engine(open_bundle(path), threads=1) for kind, path in bundles.items()}


def multiple_of(kind: str) -> int:
    return 2 if kind == "int4" else 1


def new_generator(engine: Engine, kind: str, **options: Any) -> Generator:
    return Generator(engine, slots=SLOTS, rows_multiple=multiple_of(kind), **options)


@pytest.fixture(scope="module")
def alone(engines: dict[str, Engine]) -> Callable[[str, Asked], RecordedText]:
    """What a text gives that has all slots to itself."""

    @cache
    def run(kind: str, asked: Asked) -> RecordedText:
        generator, text = new_generator(engines[kind], kind), RecordedText(asked)
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
    prompt=st.integers(1, 40) | st.sampled_from([250, 300]),
    limit=st.integers(1, 12),
    seed=st.integers(0, 20),
    temperature=st.sampled_from([0.0, 1.0]),
)


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "int4"])
def test_texts_that_join_and_leave_at_any_time_give_what_they_give_alone(
    engines: dict[str, Engine], alone: Callable[[str, Asked], RecordedText], kind: str
) -> None:
    class Texts(RuleBasedStateMachine):
        @initialize(prefill_first=st.booleans())
        def start(self, prefill_first: bool) -> None:
            self.generator = new_generator(engines[kind], kind, prefill_first=prefill_first)
            self.texts: list[RecordedText] = []

        @rule(asked=texts)
        def submit(self, asked: Asked) -> None:
            self.texts.append(RecordedText(asked))
            self.generator.submit(self.texts[-1])

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
    generator = new_generator(engines["int4"], "int4")
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
    generator = new_generator(engines["fp32"], "fp32")
    made = [RecordedText(each) for each in asked]
    for text in made:
        generator.submit(text)
    generator.run()
    for text in made:
        assert_same(text, alone("fp32", text.asked))


def test_a_text_whose_logits_are_not_finite_fails_alone(tmp_path: Path) -> None:
    engine = Engine(open_bundle(write_bundle(tmp_path / "bundle", poisoned=POISON).path), threads=1)
    asked = Asked(prompt=6, limit=9, seed=1, temperature=0.0)
    healthy = [RecordedText(asked, prompt=[1, 2, 3, seed]) for seed in range(20, 23)]
    sick = RecordedText(asked, prompt=[1, POISON, 2])
    generator = Generator(engine, slots=4)
    for text in (healthy[0], sick, *healthy[1:]):
        generator.submit(text)
    generator.run()
    with pytest.raises(NumericError, match="expected finite logits"):
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
    generator = new_generator(engines["fp32"], "fp32")

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
