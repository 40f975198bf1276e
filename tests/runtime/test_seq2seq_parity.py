"""Encoder-decoder bundles against transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.runtime.tiny_translators import EOS, FORMS, SOURCES, START, family_of, reference
from transformers import PreTrainedModel

from ortolan.runtime import Completion, Seq2Seq, open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner

NEW_TOKENS = 24

SLOW = ("bart", "t5", "t5wide-split")
"""Slow to trace, and similar to others."""

SOURCE_IDS = [
    row[:length] for row, length in zip(SOURCES.ids.tolist(), SOURCES.lengths.tolist(), strict=True)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A model of transformers and its bundle."""

    reference: PreTrainedModel
    engine: Engine
    bundle: Seq2Seq


@pytest.fixture(
    scope="module",
    params=[pytest.param(form, marks=pytest.mark.slow if form in SLOW else ()) for form in FORMS],
)
def pair(request: pytest.FixtureRequest, exported: Callable[[str], Path]) -> Pair:
    bundle = open_bundle(exported(request.param) / "bundle")
    engine = Engine(bundle, threads=1)
    model = Seq2Seq(bundle, engine)
    return Pair(reference=reference(family_of(request.param)), engine=engine, bundle=model)


def by_transformers(model: PreTrainedModel, source: list[int], **options: Any) -> Any:
    generate: Any = model.generate
    with torch.inference_mode():
        return generate(
            input_ids=torch.tensor([source]),
            attention_mask=torch.ones(1, len(source), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def without_padding(row: list[int]) -> tuple[int, ...]:
    ends = [index for index, token in enumerate(row) if token in EOS]
    return tuple(row[: ends[0] + 1] if ends else row)


def test_greedy_sequences_equal_transformers(pair: Pair) -> None:
    expected = [
        without_padding(by_transformers(pair.reference, source).sequences[0, 1:].tolist())
        for source in SOURCE_IDS
    ]
    alone = [pair.bundle.generate(source, max_new_tokens=NEW_TOKENS) for source in SOURCE_IDS]
    assert [done.tokens for done in alone] == expected
    together = pair.bundle.generate(SOURCE_IDS, max_new_tokens=NEW_TOKENS)
    assert [done.tokens for done in together] == expected
    assert [done.finish_reason for done in together] == [
        "stop" if tokens[-1] in EOS else "length" for tokens in expected
    ]
    assert len(set(expected)) > 12, "texts that do not depend on the source"


def test_beam_sequences_and_scores_equal_transformers(pair: Pair) -> None:
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 1.2}
    outputs = [by_transformers(pair.reference, source, **options) for source in SOURCE_IDS]
    expected = [
        [without_padding(row) for row in done.sequences[:, 1:].tolist()] for done in outputs
    ]
    ours: Any = {"beams": 4, "n_best": 3, "length_penalty": 1.2, "max_new_tokens": NEW_TOKENS}
    alone = [pair.bundle.generate(source, **ours) for source in SOURCE_IDS]
    assert [texts(done) for done in alone] == expected
    together = pair.bundle.generate(SOURCE_IDS, **ours)
    assert [texts(done) for done in together] == expected
    scores = [[done.score, *(other.score for other in done.alternatives)] for done in together]
    np.testing.assert_allclose(
        scores, [done.sequences_scores.tolist() for done in outputs], rtol=1e-4, atol=1e-4
    )


def texts(outputs: Completion) -> list[tuple[int, ...]]:
    return [outputs.tokens, *(other.tokens for other in outputs.alternatives)]


def test_logits_equal_transformers(pair: Pair) -> None:
    ids = [START, *SOURCE_IDS[5], *SOURCE_IDS[8]][:30]
    with torch.inference_mode():
        expected = pair.reference(
            input_ids=torch.tensor([SOURCE_IDS[3]]), decoder_input_ids=torch.tensor([ids])
        ).logits[0]
    got = pair.bundle.logits(SOURCE_IDS[3], ids)
    limit = 1e-4 * max(1.0, float(expected.abs().max()))
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=limit)


def test_a_token_that_is_appended_changes_nothing_before_it(pair: Pair) -> None:
    source, ids = SOURCE_IDS[4], [START, *SOURCE_IDS[8]]
    whole = pair.bundle.logits(source, ids)
    for length in range(1, len(ids)):
        assert_same(pair.bundle.logits(source, ids[:length]), whole[:length])


def test_decode_steps_equal_teacher_forcing(pair: Pair) -> None:
    source, ids = SOURCE_IDS[4], [START, *SOURCE_IDS[8]]
    lengths = np.array([len(source)], np.int32)
    slots, stepped = pair.engine.slots(), []
    slots.put_sources(
        [0], pair.engine.encode_source({"input_ids": np.array([source]), "lengths": lengths})
    )
    runner = Runner(pair.engine, slots)
    runner.select([0])
    for token in ids:
        runner.step([token])
        stepped.append(runner.logits_BV[0].copy())
    assert_same(np.array(stepped), pair.bundle.logits(source, ids))


def assert_same(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Compare sums that were added up in another order."""
    limit = 1e-5 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


def test_a_batch_equals_its_sources_alone(pair: Pair) -> None:
    # more rows than are computed together, and searches that end one after the other
    options: Any = {"beams": 3, "early_stopping": True, "max_new_tokens": 12}
    together = pair.bundle.generate(SOURCE_IDS * 2, **options)
    alone = [pair.bundle.generate(source, **options) for source in SOURCE_IDS]
    assert [done.tokens for done in together] == [done.tokens for done in alone] * 2
    assert len({len(done.tokens) for done in alone}) > 1


def test_one_row_per_source_has_its_own_graph(exported: Callable[[str], Path]) -> None:
    bundle = open_bundle(exported("marian-split") / "bundle")
    engine = Engine(bundle, threads=1)
    assert engine.ort_session(1) is not engine.ort_session(2)
    assert engine.ort_session(1, rows_per_source=4) is engine.ort_session(2)
    # Nothing to fold, and the position is the length.
    spared = {"ai.onnx::Transpose", "ai.onnx::Range", "ai.onnx::GatherND"}
    assert not spared & set(bundle.graphs["decode"].operators)
    assert spared <= set(bundle.graphs["prefill"].operators)
