"""The attention ops: what they compute, and the ONNX node that a step becomes.

Each function is ordinary PyTorch. While `torch.onnx.export` traces, `cached_attention` emits a
single node instead, whose contract is that of ONNX Runtime's GroupQueryAttention
(onnxruntime, docs/ContribOperators.md). `export/portable.py` gives that node a body of standard
operators for tools that lack the kernel. Knows no layers and no weights.

Shape letters: B batch, S new tokens, T tokens attended to, C cache capacity, H query heads,
K key/value heads, D head width, P rows of the rotary tables, R rotated channels of a head.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.cache import LayerCache, Step
from ortolan.modeling.config import AttentionConfig

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, `(P, R/2)` each."""

_Attributes = dict[
    str, int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
]
"""What `symbolic_multi_out` takes; a dict is invariant, so every kind must be named."""


def attention(qkv: Tensor, rotary: Rotary | None, *, spec: AttentionConfig) -> Tensor:
    """Causal self-attention without a cache.

    Args:
        qkv: projections side by side, `(B, S, (H + 2K) * D)`.
        rotary: tables with `P >= S`, or None for positions that were added before.
        spec: heads, scale, window and softcap.

    Returns:
        `(B, S, H * D)`.
    """
    q_BHSD, k_BKSD, v_BKSD = _split_heads(qkv, spec)
    length = qkv.shape[1]
    if rotary is not None:
        cos_SR, sin_SR = (table[:length] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_SR, sin_SR)
        k_BKSD = _rotate(k_BKSD, cos_SR, sin_SR)
    positions = torch.arange(length, device=qkv.device)
    plain = spec.sliding_window is None and spec.softcap is None
    allowed = None if plain else _visible(positions[None], length, spec)
    return _attend(q_BHSD, k_BKSD, v_BKSD, allowed, spec)


def cached_attention(
    qkv: Tensor, past: LayerCache, step: Step, rotary: Rotary | None, *, spec: AttentionConfig
) -> tuple[Tensor, LayerCache]:
    """Causal self-attention over a buffer of fixed capacity, which it extends.

    Args:
        qkv: projections of the new tokens, `(B, S, (H + 2K) * D)`, right padded.
        past: keys and values so far, `(B, K, C, D)`; what lies behind a row's length is ignored,
            as long as it is finite.
        step: lengths after this step. With more than one new token and a past, B must be 1
            (the fused kernel's rule).
        rotary: tables with a row for every position, or None.
        spec: heads, scale, window and softcap.

    Returns:
        `(B, S, H * D)`, without meaning at padded positions, and the extended buffers.

    Source: com.microsoft.GroupQueryAttention, version 1, packed QKV and shared buffers.
    """
    if torch.onnx.is_in_onnx_export():
        return _emit_group_query_attention(qkv, past, step, rotary, spec)
    q_BHSD, k_BKSD, v_BKSD = _split_heads(qkv, spec)
    positions_BS = step.positions(qkv.shape[1])
    if rotary is not None:
        cos_B1SR, sin_B1SR = (table[positions_BS][:, None] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_B1SR, sin_B1SR)
        k_BKSD = _rotate(k_BKSD, cos_B1SR, sin_B1SR)
    slots = positions_BS[:, None, :, None].expand_as(k_BKSD)
    present = LayerCache(past.key.scatter(2, slots, k_BKSD), past.value.scatter(2, slots, v_BKSD))
    allowed = _visible(positions_BS, past.key.shape[2], spec)
    return _attend(q_BHSD, present.key, present.value, allowed, spec), present


def _split_heads(qkv: Tensor, spec: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """`(B, S, (H + 2K) * D)` to queries `(B, H, S, D)`, keys and values `(B, K, S, D)`."""
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
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


def _attend(
    q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, allowed: Tensor | None, spec: AttentionConfig
) -> Tensor:
    """Softmax attention; `allowed` is None for plain causal. Returns `(B, S, H * D)`."""
    if spec.softcap is None:
        out_BHSD = F.scaled_dot_product_attention(
            q_BHSD,
            k_BKTD,
            v_BKTD,
            attn_mask=allowed,
            is_causal=allowed is None,
            scale=spec.scale,
            enable_gqa=spec.num_kv_heads != spec.num_heads,
        )
    else:
        group = spec.num_heads // spec.num_kv_heads
        k_BHTD, v_BHTD = (x.repeat_interleave(group, 1) for x in (k_BKTD, v_BKTD))
        scores = q_BHSD.float() @ k_BHTD.float().transpose(2, 3) * spec.scale
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        out_BHSD = (scores.softmax(-1) @ v_BHTD.float()).to(q_BHSD.dtype)
    return out_BHSD.transpose(1, 2).flatten(2)


def _emit_group_query_attention(
    qkv: Tensor, past: LayerCache, step: Step, rotary: Rotary | None, spec: AttentionConfig
) -> tuple[Tensor, LayerCache]:
    """One `com.microsoft::GroupQueryAttention` node; present keeps the capacity of past."""
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
