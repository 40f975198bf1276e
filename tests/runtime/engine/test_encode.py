"""Sources of a batch, one by one where a call of the encoder would mix them."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import IDS, LENGTHS
from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.encode import encode
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.slots import Encoded

IDS_BT = np.array([[3, 4, 5], [9, 0, 0]])

LENGTHS_B = np.array([3, 1], np.int32)


class MixingEngine:
    """An encoder whose states hold the greatest id of the call: of padding, and of all sources."""

    def __init__(self, prefill_precision: str | None) -> None:
        state = State(
            name="key",
            input="key",
            output="key",
            shape=("batch", 2, "source", 1),
            dtype="float32",
            update="source",
        )
        self.manifest = SimpleNamespace(prefill_precision=prefill_precision, states=(state,))
        self.widths: list[int] = []

    def encode_source(self, inputs: Mapping[str, NDArray[Any]]) -> Encoded:
        ids_BT = next(iter(inputs.values())).reshape(len(next(iter(inputs.values()))), -1)
        self.widths.append(ids_BT.shape[1])
        states = np.full((len(ids_BT), 2, ids_BT.shape[1], 1), ids_BT.max(), np.float32)
        lengths = inputs.get(LENGTHS, np.full(len(ids_BT), ids_BT.shape[1], np.int32))
        return Encoded(lengths=lengths, states=(states,))


def encoded(
    prefill_precision: str | None, feeds: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.float32], list[int]]:
    engine = MixingEngine(prefill_precision)
    source = encode(cast(Engine, engine), feeds)
    assert source.lengths.tolist() == feeds[LENGTHS].tolist() if LENGTHS in feeds else True
    return source.states[0], engine.widths


def test_integer_products_see_one_source_without_its_padding() -> None:
    states, widths = encoded("int8", {IDS: IDS_BT, LENGTHS: LENGTHS_B})
    assert widths == [3, 1]
    assert states[:, 0, :, 0].tolist() == [[5, 5, 5], [9, 0, 0]]


def test_integer_products_see_one_image() -> None:
    states, widths = encoded("int8", {"pixels": np.array([[1.0, 2.0], [3.0, 4.0]])})
    assert widths == [2, 2]
    assert states[:, 0, :, 0].tolist() == [[2, 2], [4, 4]]


@pytest.mark.parametrize("rows", [1, 2])
def test_other_encoders_take_all_sources_at_once(rows: int) -> None:
    feeds = {IDS: IDS_BT[:rows], LENGTHS: LENGTHS_B[:rows]}
    states, widths = encoded(None, feeds)
    assert widths == [3]
    assert (states == feeds[IDS].max()).all()
