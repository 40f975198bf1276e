"""The pass that lets the new tokens of a call see each other."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.export.attention_graphs import Kind, graph, in_onnxruntime

from ortolan.export.errors import OptionError
from ortolan.export.passes.both_ways import BothWays
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.ops import Heads, Relative, cached_attention

NEW, BEFORE = 5, 7

KINDS = {
    "plain": Kind(capacity=NEW + BEFORE),
    "rotary": Kind(capacity=NEW + BEFORE, rotated=32),
    "window": Kind(capacity=NEW + BEFORE, window=4),
    "window of one": Kind(capacity=NEW + BEFORE, window=1, rotated=16),
    "window beyond the row": Kind(capacity=NEW + BEFORE, window=100, apart=True),
}


def rewritten(kind: Kind) -> ir.Model:
    model = ir.from_proto(graph(kind))
    assert BothWays()(model).modified
    return model


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("before", [0, 1, BEFORE])
def test_tokens_of_a_call_see_each_other(name: str, before: int) -> None:
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
    output = in_onnxruntime(ir.to_proto(rewritten(kind)))(given)[0]
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
    assert BothWays()(model).modified
    first, second = (node for node in model.graph if node.op_type == "GroupQueryAttention")
    assert first.inputs[10] is second.inputs[10] is not None


@pytest.mark.parametrize("kind", [Kind(biased=True), Kind(biased=True, window=4)])
def test_attention_with_a_bias_is_refused(kind: Kind) -> None:
    with pytest.raises(OptionError, match="GroupQueryAttention with a bias"):
        BothWays()(ir.from_proto(graph(kind)))


def test_other_attention_is_refused() -> None:
    model = ir.from_proto(graph(Kind()))
    (node,) = model.graph
    node.op_type, node.domain = "Attention", ""
    with pytest.raises(OptionError, match=r"got Attention\)"):
        BothWays()(model)
    model.graph.remove(node)
    with pytest.raises(OptionError, match=r"got none\)"):
        BothWays()(model)
