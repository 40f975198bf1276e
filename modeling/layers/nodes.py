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
from typing import NamedTuple

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
    first = projections[0]
    batch, length, _ = first.shape
    total = _int32(_size(first, 1), ())
    # Without lengths, all rows are full.
    last = (total - 1).expand(batch) if lengths is None else lengths.to(torch.int32) - 1
    return torch.onnx.ops.symbolic(
        "com.microsoft::GroupQueryAttention",
        _trimmed(
            *(*projections, None, None, last, total),
            *(*_tables(rotary), None, bias, sinks),
        ),
        _attributes(spec, rotary) | {"causal": int(spec.causal)},
        dtype=first.dtype,
        shape=(batch, length, spec.num_heads * spec.head_dim),
        version=1,
    )


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
    first = projections[0]
    batch, new_tokens, _ = first.shape
    cache_shape = (batch, *past.key.shape[1:])
    out, key, value = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        _trimmed(
            *(*projections, past.key, past.value, step.seqlens_k, step.total),
            *(*_tables(rotary), None, bias, sinks),
        ),
        _attributes(spec, rotary),
        dtypes=(first.dtype, first.dtype, first.dtype),
        shapes=((batch, new_tokens, spec.num_heads * spec.head_dim), cache_shape, cache_shape),
        version=1,
    )
    return out, LayerCache(key, value)


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
    batch, new_tokens, _ = query.shape
    nothing = query.new_zeros(batch, 0, spec.num_kv_heads * spec.head_dim)
    return torch.onnx.ops.symbolic(
        "com.microsoft::GroupQueryAttention",
        _trimmed(
            *(query, nothing, nothing, present.key, present.value, step.seqlens_k, step.total),
            *(*_tables(rotary), None, None, sinks),
        ),
        _attributes(spec, rotary),
        dtype=query.dtype,
        shape=(batch, new_tokens, spec.num_heads * spec.head_dim),
        version=1,
    )


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
    """Rotate heads side by side, `(B, S, N * width)`.

    Args:
        heads: queries or keys.
        rotary: tables, or angles of the tokens.
        positions_BS: int64 `(B, S)`, rows of the tables; None for angles of the tokens.
        width: channels of a head.
    """
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

    Args:
        q_BHSD: queries.
        k_BKTD: keys.
        v_BKTU: values.
        mask: bool, or numbers to add to the scores; `(B | 1, H | 1, S, T)`.
        lengths: int `(B,)`; valid keys per row, counted from the first; None if all are valid.
        spec: scale.
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

    The shapes are computed in the graph, so that nothing has to prove that B divides the rows.

    Args:
        q: queries; the G rows of a source are adjacent.
        sources: any tensor `(B, ...)`.
        spec: heads and width.
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

    Args:
        x: input.
        logits: router logits, `(B, S, N)`; a token's experts are weighted by the softmax of the
            highest ones.
        gate_up: weights `(N, 2 * I, E)` and bias; see `layers.mixture.Experts`.
        down: weights `(N, E, I)` and bias.
        spec: experts per token, and their activation.

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
