"""Rows behind sources: what is kept, moved and dropped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import ortolan
from ortolan.runtime import NumericError, Seq2Seq, open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine.session import Encoded, Engine
from ortolan.runtime.engine.step import Step
from ortolan.runtime.generation.targets import Targets

SOURCE = [5, 40, 7, 31, 8]


@pytest.fixture(scope="module")
def bundle(exported: Callable[[str], Path]) -> Bundle:
    return open_bundle(exported("marian") / "bundle")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, threads=1)


def encoded(engine: Engine) -> Encoded:
    lengths = np.array([len(SOURCE)], np.int32)
    return engine.encode_source({"input_ids": np.array([SOURCE]), "lengths": lengths})


def test_targets_are_kept_for_a_request_of_the_same_shape_unless_it_failed(
    bundle: Bundle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    make, run = Targets.__init__, Step.run

    def watched(targets: Targets, engine: Engine, *, sources: int, per_source: int) -> None:
        made.append((sources, per_source))
        make(targets, engine, sources=sources, per_source=per_source)

    def poisoned(step: Step) -> None:
        run(step)
        step.logits[...] = np.nan

    monkeypatch.setattr(Targets, "__init__", watched)
    model = Seq2Seq(bundle, engine)
    expected = model.generate(SOURCE, beams=2, max_new_tokens=4).tokens
    assert model.generate(SOURCE, beams=2, max_new_tokens=4).tokens == expected
    assert made == [(1, 2)]
    model.generate([SOURCE, SOURCE], max_new_tokens=4)
    model.generate([SOURCE, SOURCE], max_new_tokens=4)
    assert made == [(1, 2), (2, 1)]
    with monkeypatch.context() as failing:
        failing.setattr(Step, "run", poisoned)
        with pytest.raises(NumericError):
            model.generate([SOURCE, SOURCE], max_new_tokens=4)
    model.generate([SOURCE, SOURCE], max_new_tokens=4)
    assert made == [(1, 2), (2, 1), (2, 1)]


def test_the_memory_of_targets_counts_sources_states_and_logits(engine: Engine) -> None:
    source = encoded(engine)
    targets = Targets(engine, sources=1, per_source=3)
    states = sum(buffer.nbytes for buffer in engine.cache(batch=3).buffers())
    logits = 3 * 4 * engine.manifest.vocab_size
    assert targets.size_bytes == states + logits
    targets.begin(source)
    assert targets.size_bytes == source.size_bytes + states + logits


def test_rows_go_on_from_their_parents(engine: Engine) -> None:
    targets = Targets(engine, sources=1, per_source=3)
    targets.begin(encoded(engine))
    histories = [[1, 10, 20], [1, 11, 21], [1, 12, 22]]
    for column in zip(*histories, strict=True):
        targets.step(column)
    targets.reorder([2, 0, 0])
    got = targets.step([30, 31, 32])
    alone = Targets(engine, sources=1, per_source=1)
    for row, history in enumerate([[1, 12, 22, 30], [1, 10, 20, 31], [1, 10, 20, 32]]):
        alone.begin(encoded(engine))
        for token in history:
            logits = alone.step([token])
        np.testing.assert_allclose(got[row], logits[0], rtol=0, atol=1e-5)


def test_rows_that_are_kept_go_on_alone_until_the_next_sources(engine: Engine) -> None:
    lengths = np.array([5, 2, 4], np.int32)
    ids = np.array([SOURCE, [60, 61, 0, 0, 0], [9, 8, 7, 6, 0]])
    source = engine.encode_source({"input_ids": ids, "lengths": lengths})
    targets = Targets(engine, sources=3, per_source=2)
    for _ in range(2):
        targets.begin(source)
        targets.step([1] * 6)
        whole = targets.step([10, 11, 12, 13, 14, 15]).copy()
        targets.keep([5, 4, 0, 1], [2, 0])
        rest = targets.step([20, 21, 22, 23]).copy()
        targets.begin(source)
        targets.step([1] * 6)
        np.testing.assert_array_equal(targets.step([10, 11, 12, 13, 14, 15]), whole)
        expected = targets.step([22, 23, 0, 0, 21, 20])
        np.testing.assert_allclose(rest, expected[[5, 4, 0, 1]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_sources_that_have_ended_are_dropped(
    bundle: Bundle, engine: Engine, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    run = Step.run

    def watched(step: Step) -> None:
        rows.append(len(step.ids))
        run(step)

    monkeypatch.setattr(Step, "run", watched)
    sources = [[7 + index] * (1 + index % 9) for index in range(16)]
    options: Any = {"beams": beams, "early_stopping": True} if beams > 1 else {}
    ends = msgspec.structs.replace(bundle.manifest.tokens, eos=tuple(range(2, 97, 2)))
    manifest = msgspec.structs.replace(bundle.manifest, tokens=ends)
    model = Seq2Seq(Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs), engine)
    together = model.generate(sources, max_new_tokens=24, **options)
    assert rows[0] == 16 * beams
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < 16 * beams
    alone = [model.generate(source, max_new_tokens=24, **options) for source in sources]
    assert [each.tokens for each in together] == [each.tokens for each in alone]


def test_a_text_longer_than_the_first_capacity_is_the_same(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ortolan.load(bundle.path, Seq2Seq, threads=1).generate([5], beams=2)
    monkeypatch.setattr("ortolan.runtime.engine.cache.CAPACITY_STEP", 4)
    got = ortolan.load(bundle.path, Seq2Seq, threads=1).generate([5], beams=2)
    assert (got.tokens, got.score) == (expected.tokens, expected.score)
