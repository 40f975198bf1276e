"""Attention of standard operators, where a GPU has no correct kernel, against PyTorch."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from tests.export import attention_graphs as cached
from tests.export import whole_attention_graphs as whole
from tests.export.attention_graphs import CONVERSATIONS, SINKS, Run, in_onnxruntime

from ortolan.export.passes.plain_attention import PlainAttention

TOLERANCE = 2e-5

CACHED = (
    cached.KINDS
    | SINKS
    | {
        "a bias for each row": cached.Kind(biased=True, by_row=True),
        "another layer's cache": cached.Kind(shared=True, rotated=32, window=5),
        "another layer's cache, sinks": cached.Kind(shared=True, sinks=True),
        "sinks, bias and softcap": cached.Kind(sinks=True, biased=True, softcap=1.5),
    }
)

WHOLE = whole.KINDS | {
    "window on both sides": whole.Kind(around=2),
    "causal, rotary and window": whole.Kind(causal=True, rotated=32, window=3),
}


def is_unfit(kind: Any, device: str) -> bool:
    """Whether a device needs standard operators for a kind."""
    causal = getattr(kind, "causal", True)
    if device == "webgpu":
        return not causal or kind.softcap is not None
    has_cache = isinstance(kind, cached.Kind) and not kind.shared
    return not has_cache or kind.biased or kind.sinks


def plain(model: ModelProto, device: Any) -> ModelProto:
    converted = ir.from_proto(model)
    PlainAttention(device)(converted)
    rewritten = ir.to_proto(converted)
    opsets = {entry.domain: entry for entry in rewritten.opset_import}
    assert opsets[""].version == 24
    return rewritten


def operators(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def assert_near(got: list[NDArray[Any]], expected: list[NDArray[Any]]) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("device", ["cuda", "webgpu"])
@pytest.mark.parametrize("name", CACHED)
def test_with_a_cache(name: str, device: str) -> None:
    kind = CACHED[name]
    model = plain(cached.graph(kind), device)
    assert ("GroupQueryAttention" in operators(model)) != is_unfit(kind, device)
    run: Run = in_onnxruntime(model)
    for conversation in CONVERSATIONS.values():
        expected = conversation.run(kind, cached.in_pytorch(kind))
        assert_near(conversation.run(kind, run), expected)


@pytest.mark.parametrize("device", ["cuda", "webgpu"])
@pytest.mark.parametrize("name", WHOLE)
def test_without_a_cache(name: str, device: str) -> None:
    kind = WHOLE[name]
    model = plain(whole.graph(kind), device)
    assert ("GroupQueryAttention" in operators(model)) != is_unfit(kind, device)
    expected = whole.run_rows(kind, whole.in_pytorch(kind))
    assert_near(whole.run_rows(kind, in_onnxruntime(model)), expected)


def test_cuda_extends_a_cache_in_place_by_tensor_scatter() -> None:
    kind = cached.Kind(sinks=True)
    assert operators(plain(cached.graph(kind), "cuda")) >= {"TensorScatter"}
    assert operators(plain(cached.graph(kind), "webgpu")) == {"GroupQueryAttention"}
    softcap = operators(plain(cached.graph(cached.Kind(softcap=2.0)), "webgpu"))
    assert "ScatterND" in softcap
    assert "TensorScatter" not in softcap
