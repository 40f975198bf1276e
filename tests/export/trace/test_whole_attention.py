"""Attention without a cache as one node and as its body, against PyTorch."""

import numpy as np
import pytest
from tests.export.attention_graphs import WAYS, ways
from tests.export.whole_attention_graphs import KINDS, graph, in_pytorch, run_rows


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_node_without_a_cache_computes_what_pytorch_does(name: str, way: str) -> None:
    kind = KINDS[name]
    got, expected = (run_rows(kind, run) for run in (ways(graph(kind))[way], in_pytorch(kind)))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


def test_every_kind_computes_other_numbers() -> None:
    results = [run_rows(kind, in_pytorch(kind))[0] for kind in KINDS.values()]
    for index, one in enumerate(results):
        for other in results[:index]:
            assert np.abs(one - other).max() > 1e-3
