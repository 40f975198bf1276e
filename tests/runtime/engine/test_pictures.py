"""Ids of vectors of images."""

import gc

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime.bundle.parts import Features
from ortolan.runtime.engine.pictures import FIRST, Pictures

FEATURES = Features(token=7, size=3, vectors=2, encoder="0" * 64)

A, B = (np.full((2, 3), number, np.float32) for number in (1, 2))


def pixels(number: int) -> NDArray[np.float32]:
    return np.full((1, 2, 2), number, np.float32)


def test_ids_become_placeholders_and_rows() -> None:
    pictures = Pictures(FEATURES)
    one, other = pictures.find([pixels(1)], lambda: A), pictures.find([pixels(2)], lambda: B)
    assert set(one.ids).isdisjoint(other.ids)
    assert min(*one.ids, *other.ids) >= FIRST
    placed = pictures.place([4, *other.ids, 5, one.ids[1], other.ids[0]])
    assert placed.ids.tolist() == [[4, 7, 7, 5, 7, 7]]
    vectors = placed.vectors[placed.rows[0]]
    assert vectors[[1, 2, 4, 5]].tolist() == [*B.tolist(), A[1].tolist(), B[0].tolist()]
    assert placed.rows[0, [0, 3]].tolist() == [0, 0]
    alone = pictures.place([1, 2])
    assert (alone.ids.tolist(), alone.rows.tolist()) == ([[1, 2]], [[0, 0]])
    assert alone.vectors.shape == (1, 3)


def test_vectors_are_computed_once_within_the_budget() -> None:
    pictures = Pictures(FEATURES, most_bytes=2 * A.nbytes)
    computed: list[int] = []

    def find(number: int) -> range:
        def compute() -> NDArray[np.float32]:
            computed.append(number)
            return np.full((2, 3), number, np.float32)

        return pictures.find([pixels(number)], compute).ids

    first = find(1)
    assert find(1) == first
    assert computed == [1]
    find(2)
    find(3)  # the first one leaves
    find(2)
    assert computed == [1, 2, 3]
    assert find(1) == first  # from the pixels
    assert computed == [1, 2, 3, 1]


def test_equal_numbers_of_different_vectors_get_other_ids() -> None:
    pictures = Pictures(FEATURES)
    one, other = pictures.hold(A, 5), pictures.hold(B, 5)
    assert one.ids != other.ids
    assert pictures.hold(A, 5) is one


def test_a_picture_that_nobody_holds_is_forgotten() -> None:
    pictures = Pictures(FEATURES)
    ids = list(pictures.hold(A).ids)
    gc.collect()
    with pytest.raises(KeyError):
        pictures.place(ids)


def test_ids_follow_from_values_and_shapes_in_any_process() -> None:
    pictures, again = Pictures(FEATURES), Pictures(FEATURES)
    assert pictures.find([pixels(1)], lambda: A).ids == again.find([pixels(1)], lambda: A).ids
    wide, tall = (np.ones(shape, np.float32) for shape in ((1, 2, 4), (1, 4, 2)))
    one, other = pictures.find([wide], lambda: A), pictures.find([tall], lambda: B)
    assert set(one.ids).isdisjoint(other.ids)
    halves = pictures.find([tall[:, :2], tall[:, 2:]], lambda: B)
    assert halves.ids == pictures.find([tall[:, :2], tall[:, 2:]], lambda: A).ids
    assert halves.ids != one.ids
