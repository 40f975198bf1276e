"""Encoder-decoder bundles against transformers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.runtime.tiny_translators import EOS, FORMS, SOURCES, START, family_of, reference
from transformers import PreTrainedModel

from ortolan.runtime import Seq2Seq, open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.generation.beam_search import EarlyStopping

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


def by_transformers(model: PreTrainedModel, **options: Any) -> Any:
    """Sequences of all sources."""
    generate: Any = model.generate
    with torch.inference_mode():
        return generate(
            input_ids=SOURCES.ids,
            attention_mask=SOURCES.mask,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def without_padding(row: list[int], eos: Sequence[int] = EOS) -> tuple[int, ...]:
    ends = [index for index, token in enumerate(row) if token in eos]
    return tuple(row[: ends[0] + 1] if ends else row)


def test_greedy_sequences_equal_transformers(pair: Pair) -> None:
    output = by_transformers(pair.reference, max_new_tokens=NEW_TOKENS)
    expected = [without_padding(row) for row in output.sequences[:, 1:].tolist()]
    alone = [pair.bundle.generate(source, max_new_tokens=NEW_TOKENS) for source in SOURCE_IDS]
    assert [done.tokens for done in alone] == expected
    together = pair.bundle.generate(SOURCE_IDS, max_new_tokens=NEW_TOKENS)
    assert [done.tokens for done in together] == expected
    assert [done.finish_reason for done in together] == [
        "stop" if tokens[-1] in EOS else "length" for tokens in expected
    ]
    assert len(set(expected)) > 12, "texts that do not depend on the source"


# --- beams ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options of both implementations."""

    beams: int = 4
    eos: tuple[int, ...] = EOS
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    suppressed: tuple[int, ...] = ()
    first: int | None = None
    last: int | None = None
    n_best: int = 1


SEARCHES = {
    "plain": Search(),
    "one end": Search(eos=(2,), max_tokens=8),
    "two beams": Search(beams=2),
    "many beams": Search(beams=7, n_best=7),
    "n-best": Search(n_best=4),
    "early": Search(early_stopping=True),
    "never": Search(early_stopping="never", n_best=2),
    "never, for short texts": Search(early_stopping="never", length_penalty=-0.5),
    "short texts": Search(length_penalty=-1.0, n_best=4),
    "long texts": Search(length_penalty=2.0, n_best=4),
    "early, long texts": Search(early_stopping=True, length_penalty=3.0, n_best=4),
    "never, long texts": Search(early_stopping="never", length_penalty=1.5, n_best=4),
    "no penalty": Search(length_penalty=0.0, early_stopping="never"),
    "forced": Search(first=30, last=2, n_best=4),
    "suppressed": Search(suppressed=(1, 10, 39, 52, 53, 55, 63, 75, 81), n_best=4),
    "one token": Search(max_tokens=1, n_best=4),
}


@pytest.mark.parametrize(
    ("pair", "case"),
    [
        pytest.param(form, case, marks=() if form == "marian" else pytest.mark.slow)
        for form in ("marian", "bart", "t5", "marian-split")
        for case in SEARCHES
    ],
    indirect=["pair"],
)
def test_beam_sequences_and_scores_equal_transformers(pair: Pair, case: str) -> None:
    search = SEARCHES[case]
    output = by_transformers(
        pair.reference,
        num_beams=search.beams,
        num_return_sequences=search.n_best,
        max_new_tokens=search.max_tokens,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        eos_token_id=list(search.eos),
        bad_words_ids=[[token] for token in search.suppressed] or None,
        forced_bos_token_id=search.first,
        forced_eos_token_id=search.last,
    )
    tokens = msgspec.structs.replace(
        pair.bundle.manifest.tokens,
        eos=search.eos,
        suppressed=search.suppressed,
        forced_first=search.first,
        forced_last=search.last,
    )
    manifest = msgspec.structs.replace(pair.bundle.manifest, tokens=tokens)
    model = Seq2Seq(replace(pair.bundle.bundle, manifest=manifest), pair.engine)
    done = model.generate(
        SOURCE_IDS,
        beams=search.beams,
        n_best=search.n_best,
        max_new_tokens=search.max_tokens,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )
    rows = [row for best in done for row in (best, *best.alternatives)]
    expected = [without_padding(row, search.eos) for row in output.sequences[:, 1:].tolist()]
    assert [row.tokens for row in rows] == expected
    scores = [row.score for row in rows]
    np.testing.assert_allclose(scores, output.sequences_scores.tolist(), rtol=1e-4, atol=1e-4)


# --- logits -----------------------------------------------------------------------------------


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
