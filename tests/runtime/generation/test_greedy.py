"""A text in one call of a graph is the text of its steps; and which texts are written so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.runtime.tiny_translators import FORMS, SOURCES

from ortolan.runtime import NumericError, Sampling, Seq2Seq, Translation, open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.engine.step import Step
from ortolan.runtime.generation.greedy_graph import SUMS, can_repeat

SOURCE = [5, 40, 7, 31, 8]

SOURCE_IDS = [
    row[:length] for row, length in zip(SOURCES.ids.tolist(), SOURCES.lengths.tolist(), strict=True)
]


@pytest.fixture(scope="module")
def bundle(exported: Callable[[str], Path]) -> Bundle:
    return open_bundle(exported("marian") / "bundle")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, threads=1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is run: a graph that repeats itself, or a step."""
    made: list[str] = []
    repeat, run = Engine.repeat, Step.run

    def repeated(engine: Engine, *given: Any) -> Any:
        made.append("repeat")
        return repeat(engine, *given)

    def stepped(step: Step) -> None:
        made.append("step")
        run(step)

    monkeypatch.setattr(Engine, "repeat", repeated)
    monkeypatch.setattr(Step, "run", stepped)
    return made


def translator(bundle: Bundle, engine: Engine, **tokens: Any) -> Seq2Seq:
    """The model, whose manifest says something else of its tokens."""
    changed = msgspec.structs.replace(bundle.manifest.tokens, **tokens)
    manifest = msgspec.structs.replace(bundle.manifest, tokens=changed)
    return Seq2Seq(Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs), engine)


def by_steps(model: Seq2Seq, source: list[int], **asked: Any) -> Translation:
    """A text that may be cancelled between two steps, and is not."""
    return model.generate(source, cancel=lambda: False, **asked)


def essence(done: Translation) -> tuple[Any, ...]:
    return done.tokens, done.text, done.finish_reason


# no kernel takes the narrow heads of that T5, so its states need a capacity
@pytest.mark.parametrize("form", [form for form in FORMS if form != "t5"])
def test_one_call_writes_what_the_steps_write(
    form: str, exported: Callable[[str], Path], calls: list[str]
) -> None:
    bundle = open_bundle(exported(form) / "bundle")
    engine = Engine(bundle, threads=1)
    assert engine.repeats
    model = translator(bundle, engine, forced_first=None)  # BART has one
    expected = [essence(by_steps(model, source, max_new_tokens=30)) for source in SOURCE_IDS]
    assert set(calls) == {"step"}
    calls.clear()
    got = [essence(model.generate(source, max_new_tokens=30)) for source in SOURCE_IDS]
    assert calls == ["repeat"] * len(SOURCE_IDS)
    assert got == expected
    assert len({len(tokens) for tokens, *_ in got}) > 2


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("last", [None, 3])
def test_a_text_without_an_end_has_as_many_tokens_as_are_asked_for(
    bundle: Bundle, engine: Engine, calls: list[str], limit: int, last: int | None
) -> None:
    model = translator(bundle, engine, eos=(), forced_last=last)
    done = model.generate(SOURCE, max_new_tokens=limit)
    assert calls == ["repeat"]
    assert essence(done) == essence(by_steps(model, SOURCE, max_new_tokens=limit))
    assert (len(done.tokens), done.finish_reason) == (limit, "length")


def test_a_forced_end_is_an_end(bundle: Bundle, engine: Engine) -> None:
    model = translator(bundle, engine, eos=(3,), suppressed=(3,), forced_last=3)
    done = model.generate(SOURCE, max_new_tokens=5)
    assert essence(done) == essence(by_steps(model, SOURCE, max_new_tokens=5))
    assert (done.tokens[-1], len(done.tokens), done.finish_reason) == (3, 5, "stop")


def test_suppressed_tokens_are_never_chosen(bundle: Bundle, engine: Engine) -> None:
    free = translator(bundle, engine, eos=()).generate(SOURCE, max_new_tokens=12)
    model = translator(bundle, engine, eos=(), suppressed=tuple(set(free.tokens)))
    done = model.generate(SOURCE, max_new_tokens=12)
    assert done.tokens == by_steps(model, SOURCE, max_new_tokens=12).tokens
    assert not set(done.tokens) & set(free.tokens)


def test_the_first_of_equal_logits_wins(
    bundle: Bundle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    repeat = Engine.repeat

    def flat(engine: Engine, outputs: Any, feeds: dict[str, Any]) -> Any:
        # so far below all logits that these are lost in the sum
        feeds["allowed"] = np.full_like(feeds["allowed"], -1e30)
        seen.append(feeds)
        return repeat(engine, outputs, feeds)

    monkeypatch.setattr(Engine, "repeat", flat)
    done = translator(bundle, engine, eos=()).generate(SOURCE, max_new_tokens=3)
    assert done.tokens == (0, 0, 0)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"cancel": lambda: False},
        {"stop": ["zzzz"]},
        {"temperature": 1.0},
        {"sampling": Sampling(repetition_penalty=1.1)},
        {"sampling": Sampling(logit_bias={5: 1.0})},
        {"beams": 2},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_looks_at_each_step_goes_step_by_step(
    bundle: Bundle, engine: Engine, calls: list[str], asked: dict[str, Any]
) -> None:
    Seq2Seq(bundle, engine).generate(SOURCE, max_new_tokens=3, **asked)
    assert set(calls) == {"step"}


def test_streams_batches_and_texts_with_a_first_token_go_step_by_step(
    bundle: Bundle, engine: Engine, calls: list[str]
) -> None:
    model = Seq2Seq(bundle, engine)
    assert "".join(model.stream(SOURCE)) == model.generate(SOURCE).text
    assert (calls.count("repeat"), calls[-1]) == (1, "repeat")
    calls.clear()
    model.generate([SOURCE, SOURCE])
    done = translator(bundle, engine, forced_first=9).generate(SOURCE, max_new_tokens=3)
    assert done.tokens[0] == 9
    assert set(calls) == {"step"}


def test_larger_translators_and_bodies_of_fixed_capacity_are_not_repeated(
    bundle: Bundle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = bundle.graphs["decoder"]
    assert engine.repeats
    assert can_repeat(bundle.manifest, step)
    operators = {**step.operators, "ai.onnx::TensorScatter": 2}
    assert not can_repeat(bundle.manifest, replace(step, operators=operators))
    states = (msgspec.structs.replace(bundle.manifest.states[0], update="replace"),)
    fixed = msgspec.structs.replace(bundle.manifest, states=states)
    assert not can_repeat(fixed, step)
    monkeypatch.setattr("ortolan.runtime.engine.threads.SMALL_BYTES", 0)
    assert not Engine(bundle, threads=1).repeats


def test_a_logit_that_is_not_finite_is_looked_for_step_by_step(
    bundle: Bundle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat, run = Engine.repeat, Step.run
    expected = by_steps(Seq2Seq(bundle, engine), SOURCE, max_new_tokens=8)
    count = 0

    def overflowing(engine: Engine, outputs: Any, feeds: Any) -> Any:
        found = repeat(engine, outputs, feeds)
        found[list(outputs).index(SUMS)][-1] = np.inf
        return found

    def poisoned(step: Step) -> None:
        nonlocal count
        count += 1
        run(step)
        if count == 3:
            step.logits[...] = np.nan

    monkeypatch.setattr(Engine, "repeat", overflowing)
    # -inf alone may be meant
    assert Seq2Seq(bundle, engine).generate(SOURCE, max_new_tokens=8).tokens == expected.tokens
    monkeypatch.setattr(Step, "run", poisoned)
    with pytest.raises(NumericError, match="step 3: expected finite"):
        Seq2Seq(bundle, engine).generate(SOURCE, max_new_tokens=8)


def test_the_sums_of_a_call_show_what_is_not_finite(bundle: Bundle, engine: Engine) -> None:
    model = Seq2Seq(bundle, engine)
    encoded = engine.encode_source(model._reader.feeds([SOURCE]))
    for state in encoded.states:
        state[...] = np.nan
    writer = model._translator._writer
    assert writer is not None
    assert writer.write(encoded, limit=4) is None


def test_times_are_those_of_the_call_shared_by_its_tokens(bundle: Bundle, engine: Engine) -> None:
    done = translator(bundle, engine, eos=()).generate(SOURCE, max_new_tokens=8)
    timings = done.timings
    assert (timings.prompt_tokens, timings.new_tokens) == (len(SOURCE), 8)
    each = timings.time_to_first_token_s - timings.prefill_s
    assert each > 0
    assert timings.decode_s <= 7.01 * each
    assert timings.tokens_per_second == pytest.approx(7 / timings.decode_s)
