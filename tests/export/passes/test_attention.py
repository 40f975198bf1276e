"""Attention rewritten for other devices, and for tokens that see each other, against PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from syrupy.assertion import SnapshotAssertion
from tests.export import attention_graphs as cached
from tests.export import whole_attention_graphs as whole
from tests.export.attention_graphs import CONVERSATIONS, SINKS, Kind, Run, graph, in_onnxruntime
from tests.refusals import refusal

from ortolan.export.passes.both_ways import see_both_ways
from ortolan.export.passes.plain_attention import plain_attention
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.ops import Heads, cached_attention
from ortolan.modeling.layers.scores import Relative

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
    plain_attention(converted, device)
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


# --- tokens that see each other -------------------------------------------------------------------

NEW, BEFORE = 5, 7

KINDS = {
    "plain": Kind(capacity=NEW + BEFORE),
    "rotary": Kind(capacity=NEW + BEFORE, rotated=32),
    "window": Kind(capacity=NEW + BEFORE, window=4),
    "window of one": Kind(capacity=NEW + BEFORE, window=1, rotated=16),
    "window beyond the row": Kind(capacity=NEW + BEFORE, window=100, apart=True),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("before", [0, 1, BEFORE])
@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_tokens_of_a_call_see_each_other(name: str, before: int, device: str) -> None:
    kind, random = KINDS[name], np.random.default_rng(0)
    widths, total = kind.widths, before + NEW
    parts = [
        random.normal(size=(1, NEW, width)).astype(np.float32)
        for width in (kind.heads * kind.width, *[kind.kv_heads * kind.width] * 2)
    ]
    cache = random.normal(size=(2, 1, kind.kv_heads, kind.capacity, kind.width)).astype(np.float32)
    inputs = {
        "past_key": cache[0],
        "past_value": cache[1],
        "seqlens_k": np.array([total - 1], np.int32),
        "total": np.array(total, np.int32),
    }
    if kind.rotary is not None:
        inputs |= {"cos": kind.rotary.cos.numpy(), "sin": kind.rotary.sin.numpy()}
    names = ("query", "key", "value")
    whole = {"query": np.concatenate(parts, -1)}
    given = inputs | (dict(zip(names, parts, strict=True)) if kind.apart else whole)
    model = ir.from_proto(cached.graph(kind))
    see_both_ways(model.graph)
    graph = ir.to_proto(model) if device == "cpu" else plain(ir.to_proto(model), device)
    output = in_onnxruntime(graph)(given)[0]
    wanted, _ = cached_attention(
        Heads(*map(torch.from_numpy, parts)),
        LayerCache(*map(torch.from_numpy, cache)),
        StepLengths(torch.tensor([total - 1]), torch.tensor(total), total),
        kind.rotary,
        spec=kind.spec,
        relative=Relative(reach=torch.full((1, NEW), total - 1)),
    )
    assert output.shape == (1, NEW, widths[0] if kind.apart else kind.heads * kind.width)
    np.testing.assert_allclose(output, wanted, atol=1e-5)


def test_layers_with_equal_windows_share_a_bias() -> None:
    model = ir.from_proto(graph(KINDS["window"]))
    (node,) = model.graph
    model.graph.append(ir.node("GroupQueryAttention", node.inputs, node.attributes, num_outputs=3))
    see_both_ways(model.graph)
    first, second = (node for node in model.graph if node.op_type == "GroupQueryAttention")
    assert first.inputs[10] is second.inputs[10] is not None


def of_another_operator() -> ir.Model:
    model = ir.from_proto(graph(Kind()))
    (node,) = model.graph
    node.op_type, node.domain = "Attention", ""
    return model


def without_attention() -> ir.Model:
    model = of_another_operator()
    model.graph.remove(model.graph[0])
    return model


REFUSED: dict[str, Callable[[], ir.Model]] = {
    "a bias": lambda: ir.from_proto(graph(Kind(biased=True))),
    "a bias and a window": lambda: ir.from_proto(graph(Kind(biased=True, window=4))),
    "another operator": of_another_operator,
    "no attention": without_attention,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_attention_cannot_see_all_new_tokens(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: see_both_ways(REFUSED[name]().graph)) == snapshot
