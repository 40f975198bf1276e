"""ONNX nodes that the attention ops become while `torch.onnx.export` traces.

Self-attention becomes `com.microsoft::GroupQueryAttention` wherever its kernel supports the layer,
with or without a cache. Cross-attention, and layers that the kernel does not support, become the
standard `Attention`; `ops.py` spells out everything else. `export/passes/portable_bodies.py` gives
GroupQueryAttention a body of standard operators.

Contracts: onnxruntime, docs/ContribOperators.md; onnx, Attention-24 and TensorScatter-24.

Shape letters: B batch, S new tokens, T tokens attended to, C cache capacity, H query heads,
K key/value heads, D head width, U value width, G rows per source.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ortolan.modeling.config import AttentionConfig, MixtureConfig
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.sizes import Size, is_one, is_same


class Rotary(NamedTuple):
    """Rotary tables: the angles of every position, or of every token.

    Attributes:
        cos: cosines for the first R channels of a head, `(P, R/2)`, or `(B, S, R/2)` of tokens.
        sin: sines, likewise.
        interleaved: a pair is two adjacent channels; otherwise two channels R/2 apart.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool = False

    @property
    def of_tokens(self) -> bool:
        """Whether these are the angles of tokens, which attention cannot find by a position."""
        return self.cos.ndim == 3


Projections = tuple[Tensor, Tensor | None, Tensor | None]
"""Queries, keys and values; or all three side by side, then None and None."""

_Attributes = dict[
    str, int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
]
"""Attributes that `symbolic` accepts; dict is invariant, so all value types must be listed."""

OPSET = 24


def fits_kernel(spec: AttentionConfig, *, rotated: int) -> bool:
    """Whether the GroupQueryAttention kernel supports a layer's self-attention.

    Source: com.microsoft.GroupQueryAttention, version 1, as onnxruntime 1.31 checks it on the CPU.
    """
    if spec.value_width != spec.head_dim:
        return False
    return spec.head_dim % (16 if rotated else 8) == 0 and rotated % 16 == 0


def group_query_attention(
    projections: Projections,
    rotary: Rotary | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None = None,
    *,
    spec: AttentionConfig,
) -> Tensor:
    """Self-attention without a cache, `(B, S, H * D)`."""
    total = _int32(_size(projections[0], 1), ())
    if lengths is None:  # all rows are full
        last = (total - 1).expand(projections[0].shape[0])
    else:
        last = lengths.to(torch.int32) - 1
    inputs = (*projections, None, None, last, total, *_tables(rotary), None, bias, sinks)
    attributes = _attributes(spec, rotary) | {"causal": int(spec.causal)}
    return _group_query_attention(inputs, attributes, spec)[0]


def cached_group_query_attention(
    projections: Projections,
    past: LayerCache,
    step: StepLengths,
    rotary: Rotary | None,
    bias: Tensor | None,
    sinks: Tensor | None = None,
    *,
    spec: AttentionConfig,
) -> tuple[Tensor, LayerCache]:
    """Self-attention after a cache; the updated cache has the same capacity."""
    inputs = (*projections, *past, step.seqlens_k, step.total, *_tables(rotary), None, bias, sinks)
    cache = (projections[0].shape[0], *past.key.shape[1:])
    out, *present = _group_query_attention(inputs, _attributes(spec, rotary), spec, (cache, cache))
    return out, LayerCache(*present)


def shared_group_query_attention(
    query: Tensor,
    present: LayerCache,
    step: StepLengths,
    rotary: Rotary | None,
    sinks: Tensor | None,
    *,
    spec: AttentionConfig,
) -> Tensor:
    """Attention to a cache that another layer has already extended; it adds no keys."""
    nothing = query.new_zeros(query.shape[0], 0, spec.num_kv_heads * spec.head_dim)
    rows = (step.seqlens_k, step.total, *_tables(rotary), None, None, sinks)
    inputs = (query, nothing, nothing, *present, *rows)
    return _group_query_attention(inputs, _attributes(spec, rotary), spec)[0]


def _group_query_attention(
    inputs: tuple[Tensor | None, ...],
    attributes: _Attributes,
    spec: AttentionConfig,
    caches: Sequence[tuple[Size, ...]] = (),
) -> Sequence[Tensor]:
    """Output of the node, `(B, S, H * D)`, and the extended caches of these shapes."""
    first = cast(Tensor, inputs[0])
    shape = (*first.shape[:2], spec.num_heads * spec.head_dim)
    node = ("com.microsoft::GroupQueryAttention", _trimmed(*inputs), attributes)
    if not caches:
        return [torch.onnx.ops.symbolic(*node, dtype=first.dtype, shape=shape, version=1)]
    dtypes, shapes = [first.dtype] * (1 + len(caches)), (shape, *caches)
    return torch.onnx.ops.symbolic_multi_out(*node, dtypes=dtypes, shapes=shapes, version=1)


def split(x: Tensor, sizes: list[int], axis: int) -> Sequence[Tensor]:
    """`torch.split` as one node; the exporter would emit a sequence, which few tools support."""
    axis %= x.ndim
    shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
    return torch.onnx.ops.symbolic_multi_out(
        "Split",
        (x, _constant(sizes)),
        {"axis": axis},
        dtypes=[x.dtype] * len(sizes),
        shapes=shapes,
        version=OPSET,
    )


def split_channels(x: Tensor, width: int) -> Tensor:
    """`(B, S, N * D)` to `(B, S, N, D)`, for any B and S."""
    count = int(x.shape[-1]) // width
    return _reshape(x, _constant([0, 0, count, width]), (*x.shape[:2], count, width))


def join_channels(x: Tensor) -> Tensor:
    """`(B, S, N, D)` to `(B, S, N * D)`."""
    width = int(x.shape[-2]) * int(x.shape[-1])
    return _reshape(x, _constant([0, 0, width]), (*x.shape[:2], width))


def scatter(past: Tensor, new: Tensor, start: Tensor) -> Tensor:
    """Write `(B, ..., S, D)` to a buffer `(B, ..., C, D)` from slots `start`, int64 `(B,)`."""
    return torch.onnx.ops.symbolic(
        "TensorScatter",
        (past, new, start),
        {"axis": past.dim() - 2},
        dtype=past.dtype,
        shape=tuple(past.shape),
        version=OPSET,
    )


def rotary_embedding(
    heads: Tensor, rotary: Rotary, positions_BS: Tensor | None, width: int
) -> Tensor:
    """Rotate heads side by side, `(B, S, N * width)`, at positions or by angles of the tokens."""
    return torch.onnx.ops.symbolic(
        "RotaryEmbedding",
        _trimmed(heads, rotary.cos, rotary.sin, positions_BS),
        {
            "num_heads": int(heads.shape[-1]) // width,
            "rotary_embedding_dim": 2 * int(rotary.cos.shape[-1]),
            "interleaved": int(rotary.interleaved),
        },
        dtype=heads.dtype,
        shape=tuple(heads.shape),
        version=OPSET,
    )


def standard_attention(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTU: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    *,
    spec: AttentionConfig,
) -> Tensor:
    """The standard Attention node, `(B, H, S, U)`.

    The mask is bool, or numbers to add to the scores, `(B | 1, H | 1, S, T)`; int `lengths` `(B,)`
    count the valid keys of each row.
    """
    nonpad = None if lengths is None else lengths.to(torch.int64)
    return torch.onnx.ops.symbolic(
        "Attention",
        _trimmed(q_BHSD, k_BKTD, v_BKTU, mask, None, None, nonpad),
        {"scale": float(spec.scale)},
        dtype=q_BHSD.dtype,
        shape=(*q_BHSD.shape[:3], v_BKTU.shape[-1]),
        version=OPSET,
    )


def fold(q: Tensor, sources: Tensor, *, spec: AttentionConfig) -> Tensor:
    """Fold queries `(G * B, S, H * D)` into longer rows `(B, H, G * S, D)`.

    The G rows of a source are adjacent; `sources` is any tensor `(B, ...)`. The shapes are computed
    in the graph, so that nothing has to prove that B divides the rows.
    """
    batch = sources.shape[0]
    if is_one(q.shape[1]) and is_same(q.shape[0], batch):
        # With one query per source there is nothing to fold, and no axes to swap.
        one = (batch, spec.num_heads, 1, spec.head_dim)
        return _reshape(q, _constant([-1, *one[1:]]), one)
    heads = [-1, spec.num_heads, spec.head_dim]
    shape = torch.cat((_size(sources, 0), _constant(heads)))
    rows = (q.shape[0] * q.shape[1]) // batch
    folded = _reshape(q, shape, (batch, rows, *heads[1:]))
    return folded.transpose(1, 2)


def unfold(out_BHNU: Tensor, q: Tensor) -> Tensor:
    """Undo `fold`: `(B, H, G * S, U)` to `(G * B, S, H * U)`, the rows of `q`."""
    width = out_BHNU.shape[1] * out_BHNU.shape[3]
    if is_one(q.shape[1]) and is_same(q.shape[0], out_BHNU.shape[0]):
        return _reshape(out_BHNU, _constant([-1, 1, width]), (*q.shape[:2], width))
    if width == q.shape[-1]:
        shape = _size(q, 0, 3)
    else:
        shape = torch.cat((_size(q, 0, 2), _constant([width])))
    return _reshape(out_BHNU.transpose(1, 2), shape, (*q.shape[:2], width))


def mixture(
    x: Tensor,
    logits: Tensor,
    gate_up: tuple[Tensor, Tensor | None],
    down: tuple[Tensor, Tensor | None],
    *,
    spec: MixtureConfig,
) -> Tensor:
    """The experts of a layer as one node, `(B, S, E)` to `(B, S, E)`.

    The softmax of a token's highest router logits `(B, S, N)` weighs its experts; for the weights
    and biases see `layers.mixture.Experts`.

    Source: com.microsoft.MoE, version 1. Its CPU kernel needs gate and up rows interleaved.
    """
    attributes: _Attributes = {
        "k": spec.per_token,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": float(spec.alpha),
        "activation_beta": float(spec.beta),
        "normalize_routing_weights": 1,
    }
    if spec.limit is not None:
        attributes["swiglu_limit"] = float(spec.limit)
    tokens = (x.shape[0] * x.shape[1], spec.experts)
    logits_TN = _reshape(logits, _constant([-1, spec.experts]), tokens)
    return torch.onnx.ops.symbolic(
        "com.microsoft::MoE",
        _trimmed(x, logits_TN, *gate_up, *down),
        attributes,
        dtype=x.dtype,
        shape=x.shape,
        version=1,
    )


def _attributes(spec: AttentionConfig, rotary: Rotary | None) -> _Attributes:
    pairs: _Attributes = {"rotary_interleaved": 1} if rotary and rotary.interleaved else {}
    return pairs | {
        "num_heads": spec.num_heads,
        "kv_num_heads": spec.num_kv_heads,
        "scale": float(spec.scale),
        "do_rotary": int(rotary is not None),
        # A two-sided window is expressed as a bias; the node only has causal windows.
        "local_window_size": (spec.sliding_window if spec.causal else None) or -1,
        "softcap": float(spec.softcap or 0.0),
    }


def _tables(rotary: Rotary | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if rotary is None else (rotary.cos, rotary.sin)


def _trimmed(*inputs: Tensor | None) -> list[Tensor | None]:
    """Inputs without trailing None."""
    trimmed = list(inputs)
    while trimmed and trimmed[-1] is None:
        trimmed.pop()
    return trimmed


def _size(x: Tensor, start: int, end: int | None = None) -> Tensor:
    """Sizes of axes `start` to `end`, one axis by default, int64 `(N,)`."""
    end = start + 1 if end is None else end
    return torch.onnx.ops.symbolic(
        "Shape",
        (x,),
        {"start": start, "end": end},
        dtype=torch.int64,
        shape=(end - start,),
        version=OPSET,
    )


def _constant(values: list[int]) -> Tensor:
    return torch.onnx.ops.symbolic(
        "Constant",
        (),
        {"value_ints": values},
        dtype=torch.int64,
        shape=(len(values),),
        version=OPSET,
    )


def _int32(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(shape).to(torch.int32)


def _reshape(x: Tensor, to: Tensor, shape: Sequence[Size]) -> Tensor:
    return torch.onnx.ops.symbolic("Reshape", (x, to), dtype=x.dtype, shape=shape, version=OPSET)
