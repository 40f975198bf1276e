"""Beam search alone: against transformers on random models, and where it differs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.runtime.tiny_translators import EOS, SOURCES, START, translator
from transformers import PreTrainedModel

from ortolan.runtime.errors import NumericError
from ortolan.runtime.generation.beam_search import Beams, BeamSearch, EarlyStopping, Scored


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


@cache
def model(name: str) -> PreTrainedModel:
    return translator(name)


@cache
def encoded(name: str) -> Any:
    with torch.inference_mode():
        return model(name).get_encoder()(input_ids=SOURCES.ids, attention_mask=SOURCES.mask)


def by_transformers(name: str, search: Search) -> list[list[Scored]]:
    generate: Any = model(name).generate
    output = generate(
        input_ids=SOURCES.ids,
        attention_mask=SOURCES.mask,
        do_sample=False,
        num_beams=search.beams,
        num_return_sequences=search.n_best,
        max_new_tokens=search.max_tokens,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        eos_token_id=list(search.eos),
        bad_words_ids=[[token] for token in search.suppressed] or None,
        forced_bos_token_id=search.first,
        forced_eos_token_id=search.last,
        return_dict_in_generate=True,
        output_scores=True,
    )
    texts = [without_padding(row, search.eos) for row in output.sequences[:, 1:].tolist()]
    scores = output.sequences_scores.tolist()
    rows = [Scored(tokens=t, score=s) for t, s in zip(texts, scores, strict=True)]
    return [rows[start : start + search.n_best] for start in range(0, len(rows), search.n_best)]


def without_padding(row: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    ends = [index for index, token in enumerate(row) if token in eos]
    return tuple(row[: ends[0] + 1] if ends else row)


def by_ours(name: str, search: Search) -> list[list[Scored]]:
    settings = Beams(
        beams=search.beams,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )
    searches = [
        BeamSearch(settings, eos=search.eos, max_tokens=search.max_tokens) for _ in SOURCES.ids
    ]
    rows = torch.full((len(searches) * search.beams, 1), START)
    while not all(one.is_done for one in searches):
        logits = next_logits(name, rows, search.beams)
        for one, logits_GV in zip(searches, logits, strict=True):
            if not one.is_done:
                advance(one, search, logits_GV)
        rows = extended(rows, searches)
    return [one.best(search.n_best) for one in searches]


def advance(one: BeamSearch, search: Search, logits_GV: NDArray[np.float32]) -> None:
    is_last = one.length == search.max_tokens - 1
    if search.last is not None and is_last:
        one.force(search.last)
    elif search.first is not None and one.length == 0:
        one.force(search.first)
    else:
        one.advance(logits_GV, search.suppressed)


def next_logits(name: str, rows: torch.Tensor, beams: int) -> Iterator[NDArray[np.float32]]:
    states = encoded(name).last_hidden_state.repeat_interleave(beams, 0)
    with torch.inference_mode():
        output = model(name)(
            encoder_outputs=(states,),
            attention_mask=SOURCES.mask.repeat_interleave(beams, 0),
            decoder_input_ids=rows,
            use_cache=False,
        )
    return iter(np.split(output.logits[:, -1].numpy(), len(SOURCES.ids)))


def extended(rows: torch.Tensor, searches: list[BeamSearch]) -> torch.Tensor:
    parents = [
        index * len(one.parents) + parent
        for index, one in enumerate(searches)
        for parent in one.parents
    ]
    tokens = [[token] for one in searches for token in one.tokens]
    return torch.cat((rows[parents], torch.tensor(tokens)), dim=1)


@pytest.mark.parametrize("case", SEARCHES)
@pytest.mark.parametrize(
    "name", ["marian", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bart", "t5"))]
)
def test_sequences_and_scores_equal_transformers(name: str, case: str) -> None:
    search = SEARCHES[case]
    got, expected = by_ours(name, search), by_transformers(name, search)
    assert [[one.tokens for one in row] for row in got] == [
        [one.tokens for one in row] for row in expected
    ]
    np.testing.assert_allclose(scores(got), scores(expected), rtol=1e-5, atol=1e-5)


def scores(rows: list[list[Scored]]) -> list[list[float]]:
    return [[one.score for one in row] for row in rows]


def small_search(beams: int) -> BeamSearch:
    return BeamSearch(Beams(beams=beams), eos={0}, max_tokens=4)


def test_ties_go_to_the_first_beam_and_the_lowest_id() -> None:
    search = small_search(2)
    search.advance(np.zeros((2, 6), np.float32))
    assert (search.tokens, search.parents) == ([1, 2], [0, 0])
    search.advance(np.zeros((2, 6), np.float32))
    assert (search.tokens, search.parents) == ([1, 2], [0, 0])


def test_a_vocabulary_smaller_than_the_candidates_is_searched_whole() -> None:
    search = small_search(3)
    while not search.is_done:
        search.advance(np.log(np.array([[0.2, 0.5, 0.3]] * 3, np.float32)))
    best = search.best(1)[0]
    assert best.tokens == (1, 1, 1, 1)
    assert best.score == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_name_the_step(value: float) -> None:
    search = small_search(2)
    search.advance(np.zeros((2, 6), np.float32))
    logits = np.zeros((2, 6), np.float32)
    logits[1, 4] = value
    with pytest.raises(NumericError, match="step 2"):
        search.advance(logits)


def test_an_unfinished_search_returns_hypotheses_before_beams() -> None:
    search = small_search(2)
    assert search.best(2) == []
    search.advance(np.log(np.array([[0.4, 0.35, 0.2, 0.05]] * 2, np.float32)))
    assert [one.tokens for one in search.best(3)] == [(0,), (1,), (2,)]
    assert not search.is_done
