"""The attention ops: what they compute, and the ONNX node that a step becomes.

Each function is ordinary PyTorch. While `torch.onnx.export` traces, `cached_attention` emits a
single node instead, whose contract is that of ONNX Runtime's GroupQueryAttention
(onnxruntime, docs/ContribOperators.md). `export/portable.py` gives that node a body of standard
operators for tools that lack the kernel. Attention without a cache, and to a source, becomes
standard operators itself. Knows no layers and no weights.

Shape letters: B batch, S new tokens, T tokens attended to, C cache capacity, H query heads,
K key/value heads, D head width, U value width (D unless the spec says otherwise), P rows of the
rotary tables, R rotated channels of a head, M rows of a table of distances.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.cache import LayerCache, Step
from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.errors import ConfigError

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, `(P, R/2)` each."""


class Relative(NamedTuple):
    """How the distance between two tokens changes their score.

    Attributes:
        bias: added to the scaled scores, `(B, H, S, T)` or `(1, H, S, T)`.
        rows: of `keys`, by query and key, int64 `(B, S, T)` or `(1, S, T)`.
        keys: vectors added to the keys, `(M, D)`.
    """

    bias: Tensor | None = None
    rows: Tensor | None = None
    keys: Tensor | None = None


_Attributes = dict[
    str, int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
]
"""What `symbolic_multi_out` takes; a dict is invariant, so every kind must be named."""


def attention(
    qkv: Tensor,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Self-attention without a cache.

    Args:
        qkv: projections side by side, `(B, S, H * D + K * D + K * U)`.
        rotary: tables with `P >= S`, or None for other positions.
        spec: heads, widths, scale, window, softcap, and whether it is causal.
        relative: the part of distances in the scores, for T = S.
        lengths: int `(B,)`; valid tokens of each row, right padded; None where all are. Causal
            attention needs none: what pads a row stands behind it.

    Returns:
        `(B, S, H * U)`, without meaning at padded positions.
    """
    q_BHSD, k_BKSD, v_BKSU = _split_heads(qkv, spec)
    length = qkv.shape[1]
    if rotary is not None:
        cos_SR, sin_SR = (table[:length] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_SR, sin_SR)
        k_BKSD = _rotate(k_BKSD, cos_SR, sin_SR)
    plain = spec.sliding_window is None and relative is None and _has_kernel(spec)
    if not spec.causal:
        allowed = _inside(lengths, length)
    elif plain:
        allowed = None
    else:
        positions = torch.arange(length, device=qkv.device)
        allowed = _visible(positions[None], length, spec)
    return _attend(q_BHSD, k_BKSD, v_BKSU, allowed, spec, relative)


def cached_attention(
    qkv: Tensor,
    past: LayerCache,
    step: Step,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
) -> tuple[Tensor, LayerCache]:
    """Causal self-attention over a buffer of fixed capacity, which it extends.

    Args:
        qkv: projections of the new tokens, `(B, S, H * D + K * D + K * U)`, right padded.
        past: keys `(B, K, C, D)` and values `(B, K, C, U)` so far; what lies behind a row's
            length is ignored, as long as it is finite.
        step: lengths after this step. With more than one new token and a past, B must be 1
            (the fused kernel's rule).
        rotary: tables with a row for every position, or None.
        spec: heads, widths, scale, window and softcap.
        relative: the part of distances in the scores, for T = C.

    Returns:
        `(B, S, H * U)`, without meaning at padded positions, and the extended buffers.

    Raises:
        ConfigError: a trace of what the node cannot express.

    Source: com.microsoft.GroupQueryAttention, version 1, packed QKV and shared buffers.
    """
    if torch.onnx.is_in_onnx_export():
        return _emit_group_query_attention(qkv, past, step, rotary, spec, relative)
    q_BHSD, k_BKSD, v_BKSU = _split_heads(qkv, spec)
    positions_BS = step.positions(qkv.shape[1])
    if rotary is not None:
        cos_B1SR, sin_B1SR = (table[positions_BS][:, None] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_B1SR, sin_B1SR)
        k_BKSD = _rotate(k_BKSD, cos_B1SR, sin_B1SR)
    slots = positions_BS[:, None, :, None]
    present = LayerCache(
        past.key.scatter(2, slots.expand_as(k_BKSD), k_BKSD),
        past.value.scatter(2, slots.expand_as(v_BKSU), v_BKSU),
    )
    allowed = _visible(positions_BS, past.key.shape[2], spec)
    return _attend(q_BHSD, present.key, present.value, allowed, spec, relative), present


def cross_attention(
    q: Tensor, states: LayerCache, lengths: Tensor | None, *, spec: AttentionConfig
) -> Tensor:
    """Attention to a source whose keys and values were computed before.

    Every new token sees all of the source, so several rows that continue one text (beams) are
    as good as one longer row: the source is neither copied nor repeated for them.

    Args:
        q: queries, `(G * B, S, H * D)`; each of the B sources has G rows, one after the other.
        states: keys `(B, K, T, D)` and values `(B, K, T, U)` of the sources.
        lengths: int `(B,)`; valid tokens of each source, right padded; None where all are.
        spec: heads, widths, scale and softcap.

    Returns:
        `(G * B, S, H * U)`.
    """
    batch, keys = states.key.shape[0], states.key.shape[2]
    folded = q.reshape(batch, -1, q.shape[-1])
    q_BHSD = torch.unflatten(folded, -1, (spec.num_heads, spec.head_dim)).transpose(1, 2)
    out = _attend(q_BHSD, states.key, states.value, _inside(lengths, keys), spec)
    return out.reshape(*q.shape[:2], -1)


def cross_states(kv: Tensor, *, spec: AttentionConfig) -> LayerCache:
    """Projections of a source, `(B, T, K * D + K * U)`, as the states of `cross_attention`."""
    heads, widths = spec.num_kv_heads, (spec.head_dim, spec.value_width)
    parts = torch.split(kv, [heads * width for width in widths], -1)
    key, value = (torch.unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in parts)
    return LayerCache(key, value)


def _split_heads(qkv: Tensor, spec: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Projections to queries `(B, H, S, D)`, keys `(B, K, S, D)` and values `(B, K, S, U)`."""
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    if spec.value_width != spec.head_dim:
        widths = [spec.head_dim, spec.head_dim, spec.value_width]
        parts = torch.split(qkv, [n * width for n, width in zip(heads, widths, strict=True)], -1)
        q, k, v = (
            torch.unflatten(part, -1, (n, -1)).transpose(1, 2)
            for part, n in zip(parts, heads, strict=True)
        )
        return q, k, v
    all_BNSD = torch.unflatten(qkv, -1, (sum(heads), spec.head_dim)).transpose(1, 2)
    q_BHSD, k_BKSD, v_BKSD = torch.split(all_BNSD, heads, 1)
    return q_BHSD, k_BKSD, v_BKSD


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R channels of `(B, N, S, D)` by angles `(..., S, R/2)`, half-split."""
    rotated = 2 * cos.shape[-1]
    left, right = x[..., :rotated].chunk(2, -1)
    turned = (left * cos - right * sin, right * cos + left * sin)
    return torch.cat((*turned, x[..., rotated:]), -1)


def _visible(positions_BS: Tensor, keys: int, spec: AttentionConfig) -> Tensor:
    """Which of `keys` slots each new token may see, bool `(B, 1, S, keys)`."""
    slots = torch.arange(keys, device=positions_BS.device)
    distance = positions_BS[:, None, :, None] - slots
    allowed = distance >= 0
    if spec.sliding_window is not None:
        allowed = allowed & (distance < spec.sliding_window)
    return allowed


def _inside(lengths: Tensor | None, keys: int) -> Tensor | None:
    """Which of `keys` slots are no padding, bool `(B, 1, 1, keys)`; None for all."""
    if lengths is None:
        return None
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


def _key_scores(q_BHSD: Tensor, relative: Relative | None, spec: AttentionConfig) -> Tensor | None:
    """What vectors added to the keys add to the scaled scores, `(B, H, S, T)`."""
    if relative is None or relative.rows is None or relative.keys is None:
        return None
    # One product with each distance, then a choice: a vector for each pair would be D times it.
    by_distance_BHSM = q_BHSD @ relative.keys.T * spec.scale
    rows_BHST = relative.rows[:, None].expand(*q_BHSD.shape[:2], -1, -1)
    return by_distance_BHSM.gather(-1, rows_BHST)


def _has_kernel(spec: AttentionConfig) -> bool:
    """Whether PyTorch's kernel serves; traces get operators instead of its decomposition."""
    return spec.softcap is None and not torch.onnx.is_in_onnx_export()


def _attend(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTU: Tensor,
    allowed: Tensor | None,
    spec: AttentionConfig,
    relative: Relative | None = None,
) -> Tensor:
    """Softmax attention, `(B, S, H * U)`; `allowed` is None for all, or for plain causal."""
    added = _key_scores(q_BHSD, relative, spec)
    bias = None if relative is None else relative.bias
    if _has_kernel(spec):
        mask = added if bias is None else bias if added is None else added + bias
        if mask is None:
            mask = allowed
        elif allowed is not None:
            mask = mask.masked_fill(~allowed, float("-inf"))
        out_BHSU = F.scaled_dot_product_attention(
            q_BHSD,
            k_BKTD,
            v_BKTU,
            attn_mask=mask,
            is_causal=spec.causal and mask is None,
            scale=spec.scale,
            enable_gqa=spec.num_kv_heads != spec.num_heads,
        )
    else:
        group = spec.num_heads // spec.num_kv_heads
        k_BHTD, v_BHTU = (x.repeat_interleave(group, 1) for x in (k_BKTD, v_BKTU))
        scores = q_BHSD.float() @ k_BHTD.float().transpose(2, 3) * spec.scale
        if added is not None:
            scores = scores + added.float()
        if spec.softcap is not None:
            # The cap bounds what queries and keys say; a bias stands outside of it.
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if bias is not None:
            scores = scores + bias.float()
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        out_BHSU = (scores.softmax(-1) @ v_BHTU.float()).to(q_BHSD.dtype)
    return out_BHSU.transpose(1, 2).flatten(2)


def _emit_group_query_attention(
    qkv: Tensor,
    past: LayerCache,
    step: Step,
    rotary: Rotary | None,
    spec: AttentionConfig,
    relative: Relative | None,
) -> tuple[Tensor, LayerCache]:
    """One `com.microsoft::GroupQueryAttention` node; present keeps the capacity of past."""
    if relative is not None or spec.value_width != spec.head_dim:
        raise ConfigError(
            "attention: expected positions outside the scores and values as wide as keys, got "
            "others. GroupQueryAttention has no place for them."
        )
    attributes: _Attributes = {
        "num_heads": spec.num_heads,
        "kv_num_heads": spec.num_kv_heads,
        "scale": float(spec.scale),
        "do_rotary": int(rotary is not None),
        "local_window_size": spec.sliding_window or -1,
        "softcap": float(spec.softcap or 0.0),
    }
    tables = rotary or (None, None)
    batch, new_tokens, _ = qkv.shape
    cache_shape = (batch, *past.key.shape[1:])
    out, key, value = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        (qkv, None, None, past.key, past.value, step.seqlens_k, step.total, *tables),
        attributes,
        dtypes=(qkv.dtype, qkv.dtype, qkv.dtype),
        shapes=((batch, new_tokens, spec.num_heads * spec.head_dim), cache_shape, cache_shape),
        version=1,
    )
    return out, LayerCache(key, value)
