"""A stand-in for x-transformers: what its decoders have that an adapter meets."""

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.attend import Attend


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.attend = Attend(causal=True, scale=(dim // heads) ** -0.5)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.to_q, self.to_k, self.to_v)
        )
        q, k = (_turned(part, freqs[:, None]) for part in (q, k))
        out, intermediates = self.attend(
            q, k, v, mask=None, attn_bias=None, prev_attn=None, row_mask=None, causal=True
        )
        intermediates.values = v
        result: Tensor = self.to_out(out.transpose(1, 2).flatten(2))
        return result


def _turned(x: Tensor, freqs: Tensor) -> Tensor:
    even, odd = torch.unflatten(x, -1, (-1, 2)).unbind(-1)
    return x * freqs.cos() + torch.stack((-odd, even), -1).flatten(-2) * freqs.sin()


class Decoder(nn.Module):
    inv_freq: Tensor

    def __init__(self, *, dim: int, depth: int, heads: int, rotary_pos_emb: bool = True) -> None:
        super().__init__()
        width = dim // heads
        self.dim = dim
        self.register_buffer("inv_freq", 100.0 ** (-torch.arange(0, width, 2) / width))
        self.layers = nn.ModuleList(
            [
                nn.ModuleList([nn.LayerNorm(dim), Attention(dim, heads), nn.Linear(dim, dim)])
                for _ in range(depth)
            ]
        )

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1])[None] if pos is None else pos
        freqs = (places[..., None] * self.inv_freq).repeat_interleave(2, -1)
        for layer in self.layers:
            norm, attention, feed_forward = layer.children()
            x = x + attention(norm(x), freqs)
            x = x + feed_forward(x).relu().square()
        return x


class TransformerWrapper(nn.Module):
    def __init__(self, *, num_tokens: int, max_seq_len: int, attn_layers: Decoder) -> None:
        super().__init__()
        self.max_seq_len = max_seq_len
        self.token_emb = nn.Embedding(num_tokens, attn_layers.dim)
        self.attn_layers = attn_layers
        self.to_logits = nn.Linear(attn_layers.dim, num_tokens, bias=False)

    def forward(self, x: Tensor, pos: Tensor | None = None, **_: Any) -> Tensor:
        out: Tensor = self.to_logits(self.attn_layers(self.token_emb(x), pos=pos))
        return out
