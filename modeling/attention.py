"""Self-attention as a layer: projections around the ops of `ops.py`."""

from torch import Tensor, nn

from ortolan.modeling.cache import LayerCache, Step
from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.linear import PackedLinear
from ortolan.modeling.ops import Rotary, attention, cached_attention


class SelfAttention(nn.Module):
    """Queries, keys and values in one matrix, attention, and the output projection."""

    def __init__(self, config: AttentionConfig, width: int) -> None:
        super().__init__()
        self.config = config
        parts = tuple(
            heads * config.head_dim
            for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        )
        self.qkv = PackedLinear(width, parts, bias=config.qkv_bias)
        self.out = nn.Linear(parts[0], width, bias=config.out_bias)

    def forward(self, x_BSE: Tensor, rotary: Rotary | None) -> Tensor:
        """`(B, S, E)` to `(B, S, E)`, every token seeing those before it."""
        out: Tensor = self.out(attention(self.qkv(x_BSE), rotary, spec=self.config))
        return out

    def step(
        self, x_BSE: Tensor, rotary: Rotary | None, past: LayerCache, step: Step
    ) -> tuple[Tensor, LayerCache]:
        """The same for new tokens behind a cache, which comes back extended."""
        attended, present = cached_attention(self.qkv(x_BSE), past, step, rotary, spec=self.config)
        return self.out(attended), present
