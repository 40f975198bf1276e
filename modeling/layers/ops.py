"""The attention ops: what they compute, and where a trace emits a node of `lowering.py` instead.

Each function is ordinary PyTorch, and that is its definition. While `torch.onnx.export` traces, it
becomes one node if there is one that computes the same, and standard operators if there is none.

Shape letters: B batch, S new tokens, T tokens attended to, C cache capacity, H query heads,
K key/value heads, D head width, U value width (D unless the spec says otherwise), P rows of the
rotary tables, R rotated channels of a head, M rows of a table of distances.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers import lowering
from ortolan.modeling.layers.cache import LayerCache, StepLengths

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
            attention needs none: padding comes after the row.

    Returns:
        `(B, S, H * U)`, without meaning at padded positions.
    """
    if _has_node(spec, rotary, relative):
        bias = _bias(qkv, relative, spec)
        return lowering.group_query_attention(qkv, rotary, lengths, bias, spec=spec)
    q_BHSD, k_BKSD, v_BKSU = _split_heads(qkv, spec)
    length = qkv.shape[1]
    if rotary is not None:
        cos_SR, sin_SR = (table[:length] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_SR, sin_SR)
        k_BKSD = _rotate(k_BKSD, cos_SR, sin_SR)
    if not spec.causal:
        return _attend(q_BHSD, k_BKSD, v_BKSU, spec, relative=relative, lengths=lengths)
    allowed = None
    if spec.sliding_window is not None or relative is not None or not _has_kernel(spec):
        positions = torch.arange(length, device=qkv.device)
        allowed = _visible(positions[None], length, spec)
    return _attend(q_BHSD, k_BKSD, v_BKSU, spec, relative=relative, allowed=allowed)


def attention_weights(
    qkv: Tensor,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """How much each token takes of each, float32 `(B, H, S, S)`; arguments of `attention`."""
    length = qkv.shape[1]
    q_BHSD, k_BKSD, _ = _split_heads(qkv, spec)
    if rotary is not None:
        cos_SR, sin_SR = (table[:length] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_SR, sin_SR)
        k_BKSD = _rotate(k_BKSD, cos_SR, sin_SR)
    allowed = None if lengths is None else _inside(lengths, length)
    if spec.causal:
        allowed = _visible(torch.arange(length, device=qkv.device)[None], length, spec)
    return _weights(q_BHSD, k_BKSD, spec, relative, allowed)


def cached_attention(
    qkv: Tensor,
    past: LayerCache,
    step: StepLengths,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
) -> tuple[Tensor, LayerCache]:
    """Causal self-attention over a buffer of fixed capacity, which it extends.

    Args:
        qkv: projections of the new tokens, `(B, S, H * D + K * D + K * U)`, right padded.
        past: keys `(B, K, C, D)` and values `(B, K, C, U)` so far; what lies after a row's
            length is ignored, as long as it is finite.
        step: lengths after this step, and T. With more than one new token and a past, B must
            be 1 (the fused kernel's rule).
        rotary: tables with a row for every position, or None.
        spec: heads, widths, scale, window and softcap.
        relative: the part of distances in the scores, for the T of the step.

    Returns:
        `(B, S, H * U)`, without meaning at padded positions, and the extended buffers.
    """
    if _has_node(spec, rotary, relative):
        bias = _bias(qkv, relative, spec)
        return lowering.cached_group_query_attention(qkv, past, step, rotary, bias, spec=spec)
    q_BHSD, k_BKSD, v_BKSU = _split_heads(qkv, spec)
    positions_BS = step.positions(qkv.shape[1])
    if rotary is not None:
        cos_B1SR, sin_B1SR = (table[positions_BS][:, None] for table in rotary)
        q_BHSD = _rotate(q_BHSD, cos_B1SR, sin_B1SR)
        k_BKSD = _rotate(k_BKSD, cos_B1SR, sin_B1SR)
    present = LayerCache(
        _extended(past.key, k_BKSD, positions_BS), _extended(past.value, v_BKSU, positions_BS)
    )
    reach = step.reach(past.key.shape[2])
    k_BKTD, v_BKTU = (buffer[:, :, :reach] for buffer in present)
    allowed = _visible(positions_BS, reach, spec)
    out = _attend(q_BHSD, k_BKTD, v_BKTU, spec, relative=relative, allowed=allowed)
    return out, present


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
    if torch.onnx.is_in_onnx_export():
        q_BHND = lowering.fold(q, states.key if lengths is None else lengths, spec=spec)
    else:
        folded = q.reshape(states.key.shape[0], -1, q.shape[-1])
        q_BHND = torch.unflatten(folded, -1, (spec.num_heads, -1)).transpose(1, 2)
    out_BHNU = _heads(q_BHND, states.key, states.value, spec, lengths=lengths)
    if torch.onnx.is_in_onnx_export():
        return lowering.unfold(out_BHNU, q)
    return _joined(out_BHNU).reshape(*q.shape[:2], -1)


def cross_attention_weights(
    q: Tensor, states: LayerCache, lengths: Tensor | None, *, spec: AttentionConfig
) -> Tensor:
    """How much each token takes of a source's, float32 `(B, H, S, T)`, with one row a source."""
    q_BHSD = torch.unflatten(q, -1, (spec.num_heads, -1)).transpose(1, 2)
    allowed = None if lengths is None else _inside(lengths, states.key.shape[2])
    return _weights(q_BHSD, states.key, spec, None, allowed)


def cross_states(kv: Tensor, *, spec: AttentionConfig) -> LayerCache:
    """Projections of a source, `(B, T, K * D + K * U)`, as the states of `cross_attention`."""
    heads, widths = spec.num_kv_heads, (spec.head_dim, spec.value_width)
    parts = _split(kv, [heads * width for width in widths], -1)
    key, value = (torch.unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in parts)
    return LayerCache(key, value)


def _split_heads(qkv: Tensor, spec: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Projections to queries `(B, H, S, D)`, keys `(B, K, S, D)` and values `(B, K, S, U)`."""
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    if spec.value_width != spec.head_dim:
        widths = [spec.head_dim, spec.head_dim, spec.value_width]
        parts = _split(qkv, [n * width for n, width in zip(heads, widths, strict=True)], -1)
        q, k, v = (
            torch.unflatten(part, -1, (n, -1)).transpose(1, 2)
            for part, n in zip(parts, heads, strict=True)
        )
        return q, k, v
    all_BNSD = torch.unflatten(qkv, -1, (sum(heads), spec.head_dim)).transpose(1, 2)
    q_BHSD, k_BKSD, v_BKSD = _split(all_BNSD, heads, 1)
    return q_BHSD, k_BKSD, v_BKSD


def _split(x: Tensor, sizes: list[int], axis: int) -> Sequence[Tensor]:
    if torch.onnx.is_in_onnx_export():
        return lowering.split(x, sizes, axis)
    return torch.split(x, sizes, axis)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R channels of `(B, N, S, D)` by angles `(..., S, R/2)`, half-split."""
    half = cos.shape[-1]
    left, right = x[..., :half], x[..., half : 2 * half]
    turned = (left * cos - right * sin, right * cos + left * sin)
    return torch.cat((*turned, x[..., 2 * half :]), -1)


def _visible(positions_BS: Tensor, keys: int, spec: AttentionConfig) -> Tensor:
    """Which of `keys` slots each new token may see, bool `(B, 1, S, keys)`."""
    slots = torch.arange(keys, device=positions_BS.device)
    distance = positions_BS[:, None, :, None] - slots
    allowed = distance >= 0
    if spec.sliding_window is not None:
        allowed = allowed & (distance < spec.sliding_window)
    return allowed


def _inside(lengths: Tensor, keys: int) -> Tensor:
    """Which of `keys` slots are no padding, bool `(B, 1, 1, keys)`."""
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


def _has_node(spec: AttentionConfig, rotary: Rotary | None, relative: Relative | None) -> bool:
    """Whether this is a trace, and self-attention one node of it."""
    return torch.onnx.is_in_onnx_export() and lowering.fits_kernel(
        spec,
        rotated=0 if rotary is None else 2 * rotary[0].shape[-1],
        vectors=relative is not None and relative.keys is not None,
    )


def _bias(qkv: Tensor, relative: Relative | None, spec: AttentionConfig) -> Tensor | None:
    """All that distances add to the scaled scores, `(B | 1, H, S, T)`."""
    if relative is None:
        return None
    added = _key_scores(_split_heads(qkv, spec)[0], relative, spec)
    return _sum(relative.bias, added)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None else other if one is None else one + other


def _extended(past_BKCD: Tensor, new_BKSD: Tensor, positions_BS: Tensor) -> Tensor:
    """A buffer with new rows at their positions."""
    if torch.onnx.is_in_onnx_export():
        return lowering.scatter(past_BKCD, new_BKSD, positions_BS[:, 0])
    slots = positions_BS[:, None, :, None]
    return past_BKCD.scatter(2, slots.expand_as(new_BKSD), new_BKSD)


def _attend(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTU: Tensor,
    spec: AttentionConfig,
    *,
    relative: Relative | None = None,
    allowed: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Softmax attention with its heads side by side, `(B, S, H * U)`; see `_heads`."""
    return _joined(
        _heads(q_BHSD, k_BKTD, v_BKTU, spec, relative=relative, allowed=allowed, lengths=lengths)
    )


def _joined(out_BHSU: Tensor) -> Tensor:
    return out_BHSU.transpose(1, 2).flatten(2)


def _heads(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTU: Tensor,
    spec: AttentionConfig,
    *,
    relative: Relative | None = None,
    allowed: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Softmax attention, `(B, H, S, U)`.

    Args:
        q_BHSD: queries.
        k_BKTD: keys.
        v_BKTU: values.
        spec: widths, scale, softcap.
        relative: the part of distances.
        allowed: bool `(B | 1, 1, S, T)`; None for all, or for plain causal.
        lengths: int `(B,)`; valid keys of each row; None where all are.
    """
    if spec.softcap is None:
        bias = None if relative is None else relative.bias
        mask = _sum(bias, _key_scores(q_BHSD, relative, spec))
        if torch.onnx.is_in_onnx_export():
            return lowering.standard_attention(
                q_BHSD, k_BKTD, v_BKTU, _masked(mask, allowed), lengths, spec=spec
            )
        mask = _masked(mask, allowed if lengths is None else _inside(lengths, k_BKTD.shape[2]))
        return F.scaled_dot_product_attention(
            q_BHSD,
            k_BKTD,
            v_BKTU,
            attn_mask=mask,
            is_causal=spec.causal and mask is None,
            scale=spec.scale,
            enable_gqa=spec.num_kv_heads != spec.num_heads,
        )
    if lengths is not None:
        allowed = _inside(lengths, k_BKTD.shape[2])
    weights_BHST = _weights(q_BHSD, k_BKTD, spec, relative, allowed)
    v_BHTU = v_BKTU.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1)
    return (weights_BHST @ v_BHTU.float()).to(q_BHSD.dtype)


def _weights(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    spec: AttentionConfig,
    relative: Relative | None,
    allowed: Tensor | None,
) -> Tensor:
    """How much each query takes of each key, float32 `(B, H, S, T)`; see `_heads`."""
    k_BHTD = k_BKTD.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1)
    scores = q_BHSD.float() @ k_BHTD.float().transpose(2, 3) * spec.scale
    added = _key_scores(q_BHSD, relative, spec)
    if added is not None:
        scores = scores + added.float()
    if spec.softcap is not None:
        # The cap bounds the product of queries and keys; a bias is added after it.
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if relative is not None and relative.bias is not None:
        scores = scores + relative.bias.float()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1)


def _masked(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """What to add to the scores, or where to look at them."""
    if bias is None or allowed is None:
        return allowed if bias is None else bias
    return bias.masked_fill(~allowed, float("-inf"))
