"""Relative positions against the published code."""

import math

import pytest
import torch
from transformers.models.falcon.modeling_falcon import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from ortolan.modeling.config import (
    RelativeBiasPositions,
)
from ortolan.modeling.layers.positions import (
    alibi_slopes,
    relative_buckets,
    relative_index,
    rounded_alibi,
)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (4, 3), (64, 1000), (10, 6)])
def test_buckets_equal_t5(buckets: int, most: int, causal: bool) -> None:
    positions = RelativeBiasPositions(buckets=buckets, max_distance=most)
    distances = torch.arange(-3 * most, 3 * most + 1)
    expected = T5Attention._relative_position_bucket(  # type: ignore[no-untyped-call]
        distances, bidirectional=not causal, num_buckets=buckets, max_distance=most
    )
    table = relative_buckets(positions, causal=causal)
    assert table.dtype == torch.int64
    assert torch.equal(table[distances.clamp(-most, most) + most], expected)


def test_distances_are_counted_from_the_query_and_bounded() -> None:
    result = relative_index(torch.tensor([[0, 3]]), 6, 2)
    assert result.tolist() == [[[2, 3, 4, 4, 4, 4], [0, 0, 1, 2, 3, 4]]]


def published_slopes(n: int) -> list[float]:
    """`get_slopes` of the paper's repository, which defines what other numbers of heads get."""

    def power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + published_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", range(1, 34))
def test_slopes_equal_the_paper(heads: int) -> None:
    assert alibi_slopes(heads) == pytest.approx(published_slopes(heads), rel=1e-12)


@pytest.mark.parametrize("heads", [4, 6])
def test_rounded_alibi_equals_falcon(heads: int) -> None:
    tokens = torch.ones(1, 600, dtype=torch.long)
    expected = build_alibi_tensor(tokens, heads, torch.float32)[:, 0]
    assert torch.equal(rounded_alibi(heads, 600), expected)
    assert len(set(expected[0].tolist())) < 600
