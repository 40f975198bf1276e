"""Attention ops: plain PyTorch, or a node of `nodes.py` while `torch.onnx.export` traces.

The PyTorch code of a function is its definition. In a trace it becomes one node if ONNX Runtime has
one that computes the same, and standard operators otherwise.

Shape letters: B batch, S new tokens, T tokens attended to, C cache capacity, H query heads,
K key/value heads, D head width, U value width (D unless the spec says otherwise), P rows of the
rotary tables, R rotated channels per head, M rows of a distance table, E model width, N selected
positions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers import nodes
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.rotation import rotate
from ortolan.modeling.layers.scores import Relative, attend, inside, visible, weigh
from ortolan.modeling.layers.sizes import is_one


class Heads(NamedTuple):
    """Queries, keys and values as separate tensors.

    Attributes:
        query: `(B, S, H * D)`.
        key: `(B, S, K * D)`.
        value: `(B, S, K * U)`.
    """

    query: Tensor
    key: Tensor
    value: Tensor


def attention(
    qkv: Tensor | Heads,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
    lengths: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Self-attention without a cache, `(B, S, H * U)`; undefined at padded positions.

    Args:
        qkv: queries, keys and values, side by side `(B, S, H * D + K * D + K * U)` or separate.
        rotary: tables with `P >= S`; None without rotary positions.
        spec: heads, widths, scale, window, softcap, and whether attention is causal.
        relative: contribution of distances to the scores, for T = S.
        lengths: int `(B,)`; valid tokens per row, right padded; None if all are valid. Not needed
            for causal attention, where padding comes after the row.
        sinks: `(H,)`; per head, the score of an extra key whose value is zero.
    """
    if _has_node(spec, rotary):
        bias = None if relative is None else relative.bias
        return nodes.group_query_attention(_apart(qkv), rotary, lengths, bias, sinks, spec=spec)
    q_BHSD, k_BKSD, v_BKSU = _split_heads(qkv, spec)
    q_BHSD, k_BKSD = _rotated((q_BHSD, k_BKSD), rotary)
    allowed = None
    is_plain = sinks is None and relative is None and spec.sliding_window is None
    if spec.causal:
        lengths = None
        # PyTorch has a kernel of plain causal attention, which a trace would decompose.
        if not is_plain or spec.softcap is not None or torch.onnx.is_in_onnx_export():
            allowed = _causal(q_BHSD, spec, relative)
    return _joined(
        attend(
            q_BHSD,
            k_BKSD,
            v_BKSU,
            spec,
            relative=relative,
            allowed=allowed,
            lengths=lengths,
            sinks=sinks,
        )
    )


def attention_weights(
    qkv: Tensor | Heads,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
    lengths: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention weights, float32 `(B, H, S, S)`; arguments as for `attention`.

    The weight of a sink is left out, so with sinks a row sums to less than 1.
    """
    q_BHSD, k_BKSD, _ = _split_heads(qkv, spec)
    q_BHSD, k_BKSD = _rotated((q_BHSD, k_BKSD), rotary)
    allowed = None if lengths is None else inside(lengths, q_BHSD.shape[2])
    if spec.causal:
        allowed = _causal(q_BHSD, spec, relative)
    return weigh(q_BHSD, k_BKSD, spec, relative, allowed, sinks)


def cached_attention(
    qkv: Tensor | Heads,
    past: LayerCache,
    step: StepLengths,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    relative: Relative | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, LayerCache]:
    """Causal self-attention over a buffer of fixed capacity: output, and the extended buffers.

    Arguments are as for `attention`, for the new tokens. With more than one new token and a past,
    B must be 1, since the fused kernel requires it. Slots of keys `(B, K, C, D)` and values
    `(B, K, C, U)` after a row's length are ignored but must be finite.
    """
    if _has_node(spec, rotary):
        bias = None if relative is None else relative.bias
        return nodes.cached_group_query_attention(
            _apart(qkv), past, step, rotary, bias, sinks, spec=spec
        )
    q_BHSD, k_BKSD, v_BKSU = _split_heads(qkv, spec)
    positions_BS = step.positions(q_BHSD.shape[2])
    q_BHSD, k_BKSD = _rotated((q_BHSD, k_BKSD), rotary, positions_BS)
    present = LayerCache(
        extended(past.key, k_BKSD, positions_BS), extended(past.value, v_BKSU, positions_BS)
    )
    return _attended(q_BHSD, present, step, positions_BS, spec, relative, sinks), present


def shared_attention(
    query: Tensor,
    present: LayerCache,
    step: StepLengths,
    rotary: Rotary | None,
    *,
    spec: AttentionConfig,
    sinks: Tensor | None = None,
) -> Tensor:
    """Self-attention to the buffers that `cached_attention` returned for another layer.

    They have the keys and values of the new tokens; only the queries `(B, S, H * D)` are rotated.
    """
    if _has_node(spec, rotary):
        return nodes.shared_group_query_attention(query, present, step, rotary, sinks, spec=spec)
    q_BHSD = torch.unflatten(query, -1, (spec.num_heads, -1)).transpose(1, 2)
    positions_BS = step.positions(q_BHSD.shape[2])
    (q_BHSD,) = _rotated((q_BHSD,), rotary, positions_BS)
    return _attended(q_BHSD, present, step, positions_BS, spec, None, sinks)


def _attended(
    q_BHSD: Tensor,
    present: LayerCache,
    step: StepLengths,
    positions_BS: Tensor,
    spec: AttentionConfig,
    relative: Relative | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of new tokens to buffers that have their keys and values, `(B, S, H * U)`."""
    reach = step.reach(present.key.shape[2])
    k_BKTD, v_BKTU = (buffer[:, :, :reach] for buffer in present)
    allowed = visible(positions_BS, reach, spec, None if relative is None else relative.reach)
    return _joined(
        attend(q_BHSD, k_BKTD, v_BKTU, spec, relative=relative, allowed=allowed, sinks=sinks)
    )


def _causal(q_BHSD: Tensor, spec: AttentionConfig, relative: Relative | None) -> Tensor:
    """Keys that each of the first tokens may see, bool `(1, 1, S, S)`."""
    length = q_BHSD.shape[2]
    positions = torch.arange(length, device=q_BHSD.device)
    return visible(positions[None], length, spec, None if relative is None else relative.reach)


def _rotated(
    heads: Sequence[Tensor], rotary: Rotary | None, positions_BS: Tensor | None = None
) -> list[Tensor]:
    """Rotate queries and keys `(B, N, S, D)` at positions, by default the first ones."""
    if rotary is None:
        return list(heads)
    if positions_BS is None:
        cos, sin = (table[: heads[0].shape[2]] for table in rotary[:2])
    else:
        cos, sin = (table[positions_BS][:, None] for table in rotary[:2])
    return [rotate(x_BNSD, rotary._replace(cos=cos, sin=sin)) for x_BNSD in heads]


def cross_attention(
    q: Tensor, states: LayerCache, lengths: Tensor | None, *, spec: AttentionConfig
) -> Tensor:
    """Attention to a source whose keys and values are already computed.

    Every query `(G * B, S, H * D)` sees the whole source, so G adjacent rows that share a source
    (beams) are computed as one longer row, without copying the source. Int `lengths` `(B,)` are
    the valid tokens per source, right padded; None if all are valid.
    """
    if torch.onnx.is_in_onnx_export():
        q_BHND = nodes.fold(q, states.key if lengths is None else lengths, spec=spec)
    else:
        folded = q.reshape(states.key.shape[0], -1, q.shape[-1])
        q_BHND = torch.unflatten(folded, -1, (spec.num_heads, -1)).transpose(1, 2)
    out_BHNU = attend(q_BHND, states.key, states.value, spec, lengths=lengths)
    if torch.onnx.is_in_onnx_export():
        return nodes.unfold(out_BHNU, q)
    return _joined(out_BHNU).reshape(*q.shape[:2], -1)


def cross_attention_weights(
    q: Tensor, states: LayerCache, lengths: Tensor | None, *, spec: AttentionConfig
) -> Tensor:
    """Attention weights to a source, float32 `(B, H, S, T)`, for one row per source."""
    q_BHSD = torch.unflatten(q, -1, (spec.num_heads, -1)).transpose(1, 2)
    allowed = None if lengths is None else inside(lengths, states.key.shape[2])
    return weigh(q_BHSD, states.key, spec, None, allowed)


def cross_states(kv: Tensor, *, spec: AttentionConfig) -> LayerCache:
    """Keys and values for `cross_attention` from `(B, T, K * D + K * U)`."""
    heads, widths = spec.num_kv_heads, (spec.head_dim, spec.value_width)
    parts = split(kv, [heads * width for width in widths], -1)
    key, value = (
        split_heads(part, width, (width,))[0].transpose(1, 2)
        for part, width in zip(parts, widths, strict=True)
    )
    return LayerCache(key, value)


def select(x_BSE: Tensor, positions_BN: Tensor) -> Tensor:
    """Select positions int64 `(B, N)` of `(B, S, E)`, as `(B, N, E)`."""
    if is_one(x_BSE.shape[1]) and is_one(positions_BN.shape[1]):
        return x_BSE
    if torch.onnx.is_in_onnx_export():
        # One node; `gather` would need an index for every channel.
        return torch.onnx.ops.symbolic(
            "GatherND",
            (x_BSE, positions_BN.unsqueeze(-1)),
            {"batch_dims": 1},
            dtype=x_BSE.dtype,
            shape=(*positions_BN.shape, x_BSE.shape[-1]),
            version=13,
        )
    return x_BSE.gather(1, positions_BN.unsqueeze(-1).expand(-1, -1, x_BSE.shape[-1]))


def split_projections(qkv: Tensor, spec: AttentionConfig) -> Heads:
    """Split `(B, S, H * D + K * D + K * U)` into queries, keys and values."""
    widths = (
        spec.num_heads * spec.head_dim,
        spec.num_kv_heads * spec.head_dim,
        spec.num_kv_heads * spec.value_width,
    )
    return Heads(*split(qkv, list(widths), -1))


def split_heads(x: Tensor, width: int, parts: tuple[int, ...]) -> Sequence[Tensor]:
    """Split every head of `(B, S, N * width)` into parts, `(B, S, N, part)` each."""
    tracing = torch.onnx.is_in_onnx_export()
    apart = nodes.split_channels(x, width) if tracing else torch.unflatten(x, -1, (-1, width))
    return split(apart, list(parts), -1)


def over_heads(x: Tensor, function: Callable[[Tensor], Tensor], width: int) -> Tensor:
    """Apply a function to every head of `(B, S, N * width)`."""
    if torch.onnx.is_in_onnx_export():
        return nodes.join_channels(function(nodes.split_channels(x, width)))
    return function(torch.unflatten(x, -1, (-1, width))).flatten(-2)


def _apart(qkv: Tensor | Heads) -> nodes.Projections:
    """Inputs of a node: three tensors, or one and two None."""
    return qkv if isinstance(qkv, Heads) else (qkv, None, None)


def _split_heads(qkv: Tensor | Heads, spec: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Projections to queries `(B, H, S, D)`, keys `(B, K, S, D)` and values `(B, K, S, U)`."""
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    if isinstance(qkv, Heads) or spec.value_width != spec.head_dim:
        parts = qkv if isinstance(qkv, Heads) else split_projections(qkv, spec)
        q, k, v = (
            torch.unflatten(part, -1, (n, -1)).transpose(1, 2)
            for part, n in zip(parts, heads, strict=True)
        )
        return q, k, v
    all_BNSD = torch.unflatten(qkv, -1, (sum(heads), spec.head_dim)).transpose(1, 2)
    q_BHSD, k_BKSD, v_BKSD = split(all_BNSD, heads, 1)
    return q_BHSD, k_BKSD, v_BKSD


def split(x: Tensor, sizes: list[int], axis: int) -> Sequence[Tensor]:
    """`torch.split`."""
    if torch.onnx.is_in_onnx_export():
        return nodes.split(x, sizes, axis)
    return torch.split(x, sizes, axis)


def softplus(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`; one node, where the exporter would add PyTorch's linear branch."""
    if torch.onnx.is_in_onnx_export():
        return torch.onnx.ops.symbolic(
            "Softplus", (x,), dtype=x.dtype, shape=x.shape, version=nodes.OPSET
        )
    return F.softplus(x)


def _has_node(spec: AttentionConfig, rotary: Rotary | None) -> bool:
    """Whether a trace is running in which this self-attention is one node."""
    rotated = 0 if rotary is None else 2 * rotary[0].shape[-1]
    return torch.onnx.is_in_onnx_export() and nodes.fits_kernel(spec, rotated=rotated)


def extended(past: Tensor, new: Tensor, positions_BS: Tensor) -> Tensor:
    """Write `(B, ..., S, D)` to a buffer `(B, ..., C, D)` at positions int64 `(B, S)`."""
    if torch.onnx.is_in_onnx_export():
        return nodes.scatter(past, new, positions_BS[:, 0])
    slots = positions_BS.reshape(positions_BS.shape[0], *[1] * (past.dim() - 3), -1, 1)
    return past.scatter(-2, slots.expand_as(new), new)


def _joined(out_BHSU: Tensor) -> Tensor:
    return out_BHSU.transpose(1, 2).flatten(2)
