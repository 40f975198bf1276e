"""Attention without a cache as one node and as its body, against PyTorch."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto
from tests.export.attention_graphs import Run, in_onnxruntime, in_reference, without_kernel
from tests.export.whole_attention_graphs import KINDS, Kind, graph, in_pytorch, run_rows

from ortolan.export.passes.portable_bodies import attach_bodies


def portable(kind: Kind) -> ModelProto:
    model = graph(kind)
    attach_bodies(model)
    return model


WAYS: dict[str, Callable[[Kind], Run]] = {
    "kernel": lambda kind: in_onnxruntime(graph(kind)),
    "kernel with a body": lambda kind: in_onnxruntime(portable(kind)),
    "body in onnxruntime": lambda kind: in_onnxruntime(without_kernel(portable(kind))),
    "body in onnx.reference": lambda kind: in_reference(portable(kind)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_node_without_a_cache_computes_what_pytorch_does(name: str, way: str) -> None:
    kind = KINDS[name]
    got, expected = (run_rows(kind, run) for run in (WAYS[way](kind), in_pytorch(kind)))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


def test_every_kind_computes_other_numbers() -> None:
    results = [run_rows(kind, in_pytorch(kind))[0] for kind in KINDS.values()]
    for index, one in enumerate(results):
        for other in results[:index]:
            assert np.abs(one - other).max() > 1e-3
