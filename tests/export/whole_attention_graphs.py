"""Graphs of one GroupQueryAttention node without a cache, and what they are given."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from tests.export.attention_graphs import Arrays, Run, Values, graph_of

from ortolan.modeling.config import AttentionConfig, RotaryPositions
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.ops import attention
from ortolan.modeling.layers.positions import rotary_tables
from ortolan.modeling.layers.scores import Relative, window_bias

LENGTH = 7

LENGTHS = np.array([7, 3, 1], np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of attention, and its sizes.

    Attributes:
        around: a bias hides tokens as far away as this or farther, before and after.
    """

    heads: int = 4
    kv_heads: int = 2
    width: int = 32
    scale: float = 0.21
    causal: bool = False
    rotated: int = 0
    interleaved: bool = False
    biased: bool = False
    around: int | None = None
    window: int | None = None
    softcap: float | None = None

    @property
    def spec(self) -> AttentionConfig:
        return AttentionConfig(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.width,
            scale=self.scale,
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


def arrays_of(kind: Kind) -> Arrays:
    random = np.random.default_rng(5)
    width = (kind.heads + 2 * kind.kv_heads) * kind.width
    arrays: Arrays = {
        "query": random.normal(size=(len(LENGTHS), LENGTH, width)).astype("f"),
        "seqlens_k": LENGTHS - 1,
        "total": np.array(LENGTH, np.int32),
    }
    if kind.rotated:
        tables = rotary_tables(RotaryPositions(dim=kind.rotated), LENGTH)
        arrays |= {name: table.numpy() for name, table in zip(("cos", "sin"), tables, strict=True)}
    if kind.biased:
        arrays["bias"] = random.normal(size=(1, kind.heads, LENGTH, LENGTH)).astype("f")
    if kind.around is not None:
        # Of the type with the smallest range: every type has the numbers.
        bias = window_bias(torch.arange(LENGTH)[None], LENGTH, kind.around, torch.float16)
        arrays["bias"] = bias.expand(1, kind.heads, -1, -1).float().numpy()
    return arrays


def graph(kind: Kind) -> ModelProto:
    """What `modeling.layers.nodes` emits for this kind of attention."""
    types: dict[Any, int] = {np.dtype("f"): TensorProto.FLOAT, np.dtype("i"): TensorProto.INT32}
    inputs: Values = {n: (types[array.dtype], array.shape) for n, array in arrays_of(kind).items()}
    outputs: Values = {
        "output": (TensorProto.FLOAT, ["batch", "sequence", kind.heads * kind.width])
    }
    causal = int(kind.causal)
    return graph_of(kind.spec, inputs, outputs, interleaved=kind.interleaved, causal=causal)


def in_pytorch(kind: Kind) -> Run:
    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        arrays = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs.items()}
        out = attention(
            arrays["query"],
            Rotary(arrays["cos"], arrays["sin"], kind.interleaved) if kind.rotated else None,
            spec=kind.spec,
            relative=Relative(bias=arrays["bias"]) if "bias" in arrays else None,
            lengths=arrays["seqlens_k"] + 1,
        )
        return [out.numpy()]

    return run


def run_rows(kind: Kind, run: Run) -> list[NDArray[np.float32]]:
    """What a way to compute it gives for the valid tokens of each row."""
    (got,) = run(arrays_of(kind))
    return [got[row, :length] for row, length in enumerate(LENGTHS)]
