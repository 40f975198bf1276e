"""Self-attention without a cache: one node, its body, and PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from tests.export.attention_graphs import (
    Arrays,
    Run,
    Shape,
    in_onnxruntime,
    in_reference,
    without_kernel,
)

from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.modeling.config import AttentionConfig, RotaryPositions
from ortolan.modeling.layers.ops import Relative, Rotary, attention
from ortolan.modeling.layers.positions import rotary_tables

HEADS, KV_HEADS, WIDTH, LENGTH = 4, 2, 32, 7
LENGTHS = np.array([7, 3, 1], np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    causal: bool = False
    rotated: int = 0
    interleaved: bool = False
    biased: bool = False
    window: int | None = None
    softcap: float | None = None

    @property
    def spec(self) -> AttentionConfig:
        return AttentionConfig(
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=WIDTH,
            scale=0.21,
            causal=self.causal,
            sliding_window=self.window,
            softcap=self.softcap,
        )


KINDS = {
    "plain": Kind(),
    "causal": Kind(causal=True),
    "window": Kind(causal=True, window=2),
    "rotary": Kind(rotated=32),
    "partial rotary": Kind(rotated=16, causal=True),
    "interleaved rotary": Kind(rotated=16, interleaved=True),
    "bias": Kind(biased=True),
    "causal bias": Kind(biased=True, causal=True),
    "bias and softcap": Kind(biased=True, softcap=0.7),
    "softcap": Kind(softcap=0.7),
}


def given(kind: Kind) -> Arrays:
    random = np.random.default_rng(5)
    width = (HEADS + 2 * KV_HEADS) * WIDTH
    arrays: Arrays = {
        "query": random.normal(size=(len(LENGTHS), LENGTH, width)).astype("f"),
        "seqlens_k": LENGTHS - 1,
        "total": np.array(LENGTH, np.int32),
    }
    if kind.rotated:
        tables = rotary_tables(RotaryPositions(dim=kind.rotated), LENGTH)
        arrays |= {name: table.numpy() for name, table in zip(("cos", "sin"), tables, strict=True)}
    if kind.biased:
        arrays["bias"] = random.normal(size=(1, HEADS, LENGTH, LENGTH)).astype("f")
    return arrays


def graph(kind: Kind) -> ModelProto:
    """What `modeling.lowering` emits for this kind of attention."""
    spec, arrays = kind.spec, given(kind)
    names = ["query", "", "", "", "", "seqlens_k", "total", "cos", "sin", "", "bias"]
    names = [name if name in arrays else "" for name in names]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["output"],
        domain="com.microsoft",
        num_heads=spec.num_heads,
        kv_num_heads=spec.num_kv_heads,
        scale=spec.scale,
        do_rotary=int(kind.rotated > 0),
        local_window_size=spec.sliding_window or -1,
        softcap=spec.softcap or 0.0,
        causal=int(spec.causal),
    )
    if kind.interleaved:
        node.attribute.append(helper.make_attribute("rotary_interleaved", 1))
    types: dict[Any, int] = {np.dtype("f"): TensorProto.FLOAT, np.dtype("i"): TensorProto.INT32}
    shape: Shape = ["batch", "sequence", HEADS * WIDTH]
    return helper.make_model(
        helper.make_graph(
            [node],
            "attention",
            [
                helper.make_tensor_value_info(name, types[array.dtype], array.shape)
                for name, array in arrays.items()
            ],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
        ),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)],
    )


@cache
def wanted(kind: Kind) -> NDArray[np.float32]:
    arrays = {name: torch.from_numpy(np.asarray(array)) for name, array in given(kind).items()}
    out: NDArray[np.float32] = attention(
        arrays["query"],
        Rotary(arrays["cos"], arrays["sin"], kind.interleaved) if kind.rotated else None,
        spec=kind.spec,
        relative=Relative(bias=arrays["bias"]) if kind.biased else None,
        lengths=torch.from_numpy(LENGTHS),
    ).numpy()
    return out


def portable(kind: Kind) -> ModelProto:
    model = graph(kind)
    attach_bodies(model)
    return model


WAYS: dict[str, Callable[[Kind], Run]] = {
    "kernel": lambda kind: in_onnxruntime(graph(kind)),
    "kernel with a body beside it": lambda kind: in_onnxruntime(portable(kind)),
    "body in onnxruntime": lambda kind: in_onnxruntime(without_kernel(portable(kind))),
    "body in onnx.reference": lambda kind: in_reference(portable(kind)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_node_without_a_cache_computes_what_pytorch_does(name: str, way: str) -> None:
    kind = KINDS[name]
    (got,) = WAYS[way](kind)(given(kind))
    for row, length in enumerate(LENGTHS):
        difference = np.abs(got[row, :length] - wanted(kind)[row, :length]).max()
        assert difference < 2e-6


def test_every_kind_gives_other_numbers() -> None:
    results = [wanted(kind)[0] for kind in KINDS.values()]
    for index, one in enumerate(results):
        for other in results[:index]:
            assert np.abs(one - other).max() > 1e-3
