"""Beam search where transformers is no reference: ties, small vocabularies and early ends."""

import math

import numpy as np
import pytest

from ortolan.runtime.generation.beam_search import Beams, BeamSearch


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


def test_an_unfinished_search_returns_hypotheses_before_beams() -> None:
    search = small_search(2)
    assert search.best(2) == []
    search.advance(np.log(np.array([[0.4, 0.35, 0.2, 0.05]] * 2, np.float32)))
    assert [one.tokens for one in search.best(3)] == [(0,), (1,), (2,)]
    assert not search.is_done
