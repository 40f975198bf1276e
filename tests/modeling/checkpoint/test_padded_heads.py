"""Weights whose heads are wider than in the checkpoint, read row by row."""

import pytest
import torch
from torch import Tensor

from ortolan.modeling.checkpoint.padded_heads import PaddedHeads, padded_pieces
from ortolan.modeling.weights import HeadPadding, Target

HEADS, PUBLISHED, OURS, WIDTH = 3, 5, 8, 4


class Tensors:
    """A tensor in memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": tuple(self.tensor.shape)}

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        return self.tensor.narrow(axis, start, stop - start)


def rows(bias: bool) -> tuple[Tensor, Tensor]:
    shape = (HEADS, PUBLISHED) if bias else (HEADS, PUBLISHED, WIDTH)
    stored = torch.randn(shape)
    ours = torch.zeros(HEADS, OURS, *shape[2:])
    ours[:, :PUBLISHED] = stored
    return stored.flatten(0, 1), ours.flatten(0, 1)


@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_heads_are_filled_with_zeros(bias: bool) -> None:
    stored, expected = rows(bias)
    piece = PaddedHeads("a", HEADS * OURS, HeadPadding(PUBLISHED, OURS, 0))
    assert piece.stored_shapes(tuple(expected.shape)) == {"a": tuple(stored.shape)}
    for start in range(HEADS * OURS):
        for stop in range(start + 1, HEADS * OURS + 1):
            assert torch.equal(piece.read(Tensors(stored), start, stop), expected[start:stop])


def test_columns_of_heads_are_filled_with_zeros() -> None:
    stored, expected = (tensor.T for tensor in rows(bias=False))
    piece = PaddedHeads("a", WIDTH, HeadPadding(PUBLISHED, OURS, 1))
    assert piece.stored_shapes(tuple(expected.shape)) == {"a": tuple(stored.shape)}
    for start, stop in ((0, WIDTH), (1, 3), (3, 4)):
        assert torch.equal(piece.read(Tensors(stored), start, stop), expected[start:stop])


def test_the_table_says_which_weights_are_padded() -> None:
    padding = HeadPadding(PUBLISHED, OURS, 0)
    table = {
        "layers.{}.q": Target("blocks.{}.qkv", heads=padding),
        "layers.{}.k": Target("blocks.{}.qkv", heads=padding),
        "layers.{}.up": Target("blocks.{}.up"),
    }
    assert padded_pieces(table, "blocks.7.qkv", (24, 16)) == (
        PaddedHeads("layers.7.q", 24, padding),
        PaddedHeads("layers.7.k", 16, padding),
    )
    assert padded_pieces(table, "blocks.7.up", (24,)) == ()
