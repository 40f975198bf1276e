"""Attention scores, and the softmax over them.

Shape letters: B batch, S new tokens, T tokens attended to, H query heads, K key/value heads, D head
width, U value width, M rows of a distance table.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers import nodes


class Relative(NamedTuple):
    """Contribution of the distance between two tokens to their score.

    Attributes:
        bias: added to the scaled scores, `(B, H, S, T)` or `(1, H, S, T)`.
        rows: row of a distance table per query and key, int64 `(B, S, T)` or `(1, S, T)`.
        buckets: row of a bias table per distance, int64 `(M,)`.
        reach: last position that each query sees, int64 `(B, S)`; None for its own position.
    """

    bias: Tensor | None = None
    rows: Tensor | None = None
    buckets: Tensor | None = None
    reach: Tensor | None = None

    def by(self, table: nn.Embedding) -> "Relative":
        """Look up the bias of each distance in a table `(buckets, heads)`."""
        if self.rows is None or self.buckets is None:
            raise TypeError("a bias table needs the bucket of every distance")
        by_distance_MH = table(self.buckets)
        added = F.embedding(self.rows, by_distance_MH)
        if table.embedding_dim == 1:  # torch.export cannot permute an axis of one head
            added = added.squeeze(-1)[:, None]
        else:
            added = added.permute(0, 3, 1, 2)
        return Relative(bias=add(self.bias, added), reach=self.reach)


def window_bias(positions_BS: Tensor, keys: int, window: int, dtype: torch.dtype) -> Tensor:
    """Bias that hides keys `window` or more tokens away, `(B, 1, S, keys)`.

    It is finite: a row of padding may see nothing else, and -inf would make it NaN.
    """
    slots = torch.arange(keys, device=positions_BS.device)
    distance_BST = (positions_BS[..., None] - slots).abs()
    never = torch.full((), torch.finfo(dtype).min / 2, dtype=dtype, device=slots.device)
    seen = torch.zeros((), dtype=dtype, device=slots.device)
    return torch.where(distance_BST < window, seen, never)[:, None]


def attend(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTU: Tensor,
    spec: AttentionConfig,
    *,
    relative: Relative | None = None,
    allowed: Tensor | None = None,
    lengths: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention, `(B, H, S, U)`.

    Keys are `allowed`, bool `(B | 1, 1, S, T)`, or the first `lengths`, int `(B,)`; without both,
    all are, or those of plain causal attention. A sink `(H,)` is the score of a key whose value is
    zero.
    """
    if spec.softcap is None and sinks is None:
        mask = None if relative is None else relative.bias
        if torch.onnx.is_in_onnx_export():
            return nodes.standard_attention(
                q_BHSD, k_BKTD, v_BKTU, _masked(mask, allowed), lengths, spec=spec
            )
        mask = _masked(mask, allowed if lengths is None else inside(lengths, k_BKTD.shape[2]))
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
        allowed = inside(lengths, k_BKTD.shape[2])
    weights_BHST = weigh(q_BHSD, k_BKTD, spec, relative, allowed, sinks)
    v_BHTU = v_BKTU.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1)
    return (weights_BHST @ v_BHTU.float()).to(q_BHSD.dtype)


def weigh(
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    spec: AttentionConfig,
    relative: Relative | None,
    allowed: Tensor | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention weights, float32 `(B, H, S, T)`; see `attend`."""
    k_BHTD = k_BKTD.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1)
    scores = q_BHSD.float() @ k_BHTD.float().transpose(2, 3) * spec.scale
    if spec.softcap is not None:
        # The cap applies to the product of queries and keys; a bias is added after it.
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if relative is not None and relative.bias is not None:
        scores = scores + relative.bias.float()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    if sinks is None:
        return scores.softmax(-1)
    sink_BHS1 = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sink_BHS1), -1).softmax(-1)[..., :-1]


def _masked(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """Combine a bias with the keys that may be seen."""
    if bias is None or allowed is None:
        return allowed if bias is None else bias
    return bias.masked_fill(~allowed, float("-inf"))


def visible(
    positions_BS: Tensor, keys: int, spec: AttentionConfig, reach_BS: Tensor | None = None
) -> Tensor:
    """Slots that each new token may see, up to its own or `reach_BS`, bool `(B, 1, S, keys)`."""
    slots = torch.arange(keys, device=positions_BS.device)
    distance = positions_BS[:, None, :, None] - slots
    allowed = distance >= 0 if reach_BS is None else slots <= reach_BS[:, None, :, None]
    if spec.sliding_window is not None:
        allowed = allowed & (distance < spec.sliding_window)
    return allowed


def inside(lengths: Tensor, keys: int) -> Tensor:
    """Slots that are not padding, bool `(B, 1, 1, keys)`."""
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


def add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Sum of two tensors, either of which may be None."""
    return one if other is None else other if one is None else one + other
