"""A stand-in for litgpt: the names and the behaviour of its GPT that an adapter meets."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    block_size: int = 64
    padded_vocab_size: int = 96
    n_layer: int = 2
    n_head: int = 4
    n_query_groups: int = 2
    n_embd: int = 32

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head


class CausalSelfAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        heads = config.n_head + 2 * config.n_query_groups
        self.qkv = nn.Linear(config.n_embd, heads * config.head_size, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config = self.config
        parts = self.qkv(x).unflatten(-1, (-1, config.head_size)).transpose(1, 2)
        groups = config.n_query_groups
        q, k, v = parts.split((config.n_head, groups, groups), 1)
        q, k = (_turned(part, cos, sin) for part in (q, k))
        k, v = (part.repeat_interleave(config.n_head // groups, 1) for part in (k, v))
        out: Tensor = self.proj(self.scaled_dot_product_attention(q, k, v, None).flatten(2))
        return out

    def scaled_dot_product_attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=True).transpose(1, 2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.norm_2 = nn.RMSNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 48), nn.SiLU(), nn.Linear(48, config.n_embd)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x), cos, sin)
        out: Tensor = x + self.mlp(self.norm_2(x))
        return out


class GPT(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.max_seq_length = config, config.block_size
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        parts: dict[str, nn.Module] = {
            "wte": nn.Embedding(config.padded_vocab_size, config.n_embd),
            "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            "ln_f": nn.RMSNorm(config.n_embd),
        }
        self.transformer = nn.ModuleDict(parts)
        rates = 100.0 ** (-torch.arange(0, config.head_size, 2) / config.head_size)
        angles = (torch.arange(config.block_size)[:, None] * rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, idx: Tensor) -> Tensor:
        x, count = self.transformer["wte"](idx), idx.shape[1]
        for block in self.transformer["h"]:  # type: ignore[attr-defined]
            x = block(x, self.cos[None, :count], self.sin[None, :count])
        out: Tensor = self.lm_head(self.transformer["ln_f"](x))
        return out
