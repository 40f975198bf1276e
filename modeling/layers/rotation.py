"""Rotary positions applied to queries and keys (Su et al. 2021, "RoFormer").

Shape letters: B batch, S tokens, N heads, D head width, R rotated channels.
"""

import torch
from torch import Tensor

from ortolan.modeling.layers import nodes
from ortolan.modeling.layers.cache import StepLengths
from ortolan.modeling.layers.nodes import Rotary


def rotate(x: Tensor, angles: Rotary) -> Tensor:
    """Rotate the first R channels of `(B, N, S, D)` by angles `(..., S, R/2)`."""
    half = angles.cos.shape[-1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    if angles.interleaved:
        left, right = turning[..., ::2], turning[..., 1::2]
    else:
        left, right = turning[..., :half], turning[..., half:]
    turned = [left * angles.cos - right * angles.sin, right * angles.cos + left * angles.sin]
    if angles.interleaved:
        turned = [torch.stack(turned, -1).flatten(-2)]
    return torch.cat((*turned, rest), -1)


def turn(heads: Tensor, rotary: Rotary, step: StepLengths | None, *, width: int) -> Tensor:
    """Rotate queries or keys, `(B, S, N * D)`, for layers where the attention op does not.

    Without a step, the first token is at position 0.
    """
    if rotary.of_tokens:
        return _turned(heads, rotary, None, width)
    batch, length, _ = heads.shape
    if step is None:
        positions_BS = torch.arange(length, device=heads.device)[None].expand(batch, -1)
    else:
        positions_BS = step.positions(length)
    return _turned(heads, rotary, positions_BS, width)


def _turned(heads: Tensor, rotary: Rotary, positions_BS: Tensor | None, width: int) -> Tensor:
    """Rotate by the angles of positions, or by those of the tokens."""
    if torch.onnx.is_in_onnx_export():
        return nodes.rotary_embedding(heads, rotary, positions_BS, width)
    cos_B1SR, sin_B1SR = (
        (table if positions_BS is None else table[positions_BS])[:, None] for table in rotary[:2]
    )
    heads_BNSD = torch.unflatten(heads, -1, (-1, width)).transpose(1, 2)
    turned = rotate(heads_BNSD, rotary._replace(cos=cos_B1SR, sin=sin_B1SR))
    return turned.transpose(1, 2).flatten(2)
